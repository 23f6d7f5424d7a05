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
        """Where the value ends in `text`, or the list around it does; None when it goes on in the next block."""
        while at < len(text):
            if self._in_string:
                at, self._in_string = self._skip_string(text, at)
                if self._depth == 0 and not self._in_string:
                    return at
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

    def _skip_string(self, text: bytes, at: int) -> tuple[int, bool]:
        """Where to go on, and whether that is still inside the string."""
        if self._escaped:
            self._escaped = False
            at += 1
        end = text.find(b'"', at)
        end = end if end >= 0 else len(text)
        if text.find(b"\\", at, end) >= 0:
            found = IN_STRING.match(text, at)
            end = found.end() if found else at
        at = end
        if at >= len(text):
            return at, True
        self._escaped = text[at : at + 1] != b'"'
        return at + 1, self._escaped
