"""Follows brackets and strings through text that comes in blocks, to find where a value ends without keeping it."""

from __future__ import annotations

import re

STRUCTURE = re.compile(rb'([\[{]+)|([\]}]+)|"')
IN_STRING = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)


class Skimmer:
    """Skims one value, however large, in the memory of one block."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def end(self, text: bytes, at: int = 0) -> int | None:
        """Where the value ends in `text`; None when it goes on in the next block. A bracket that closes what is around it ends it too."""
        while at < len(text):
            if self._in_string:
                at = self._skip_string(text, at)
                continue
            found = STRUCTURE.search(text, at)
            if found is None:
                return None
            at = found.end()
            if found[1]:
                self._depth += len(found[1])
            elif not found[2]:
                self._in_string = True
            elif len(found[2]) < self._depth:
                self._depth -= len(found[2])
            else:
                return found.start() + self._depth
        return None

    def _skip_string(self, text: bytes, at: int) -> int:
        if self._escaped:
            self._escaped = False
            at += 1
        found = IN_STRING.match(text, at)
        at = found.end() if found else at
        if at < len(text):
            self._in_string = text[at : at + 1] != b'"'
            self._escaped = self._in_string
            at += 1
        return at
