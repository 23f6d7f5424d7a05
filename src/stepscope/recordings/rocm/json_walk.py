"""Walks JSON too large to hold: the wanted values come out whole, the wanted lists a few thousand
entries at a time.

    {"tool": [{"agents": [...], "buffer_records": {"hip_api": [e, e, e, ...]}}]}
    -> (("tool", "agents"), b"[...]")
       (("tool", "buffer_records", "hip_api"), b"[e,e]")  (the same, b"[e, ...]")

Lists on the way to a wanted value add nothing to its path. An entry's end is `}, {"`, which cannot
stand inside a string; a nested list could have it too: then the piece does not decode, and its
entries are taken one by one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import msgspec

from stepscope.api import FormatError, Source, Stream
from stepscope.readers.kineto.json_recovery import Skimmer

PIECE_BYTES = 4 << 20
MAX_VALUE_BYTES = 64 << 20
"""Bytes of one value, or one entry of a list, that is kept: real ones have kilobytes."""
MAX_DEPTH = 8
MAX_MALFORMED = 10_000
"""Entries of one list that do not decode: beyond, the list is of something else."""
PLAIN = re.compile(rb"[^\s,\]}\[{\"]{0,256}")
KEY = re.compile(rb'[\s,]{0,4096}"((?:[^"\\]|\\.){0,4096})"\s{0,1024}:\s{0,1024}(?=\S)')
CUT = re.compile(rb'\}\s{0,1024},\s{0,1024}(?=\{\s{0,1024}["}])')
SPACE = re.compile(rb"[ \t\r\n,]+")
MAX_VALUES = 50_000
"""Values outside of the wanted lists: real files have a few dozen for each process."""
CUT_WINDOW = 1 << 16

Path = tuple[str, ...]
Decode = Callable[[bytes], object]


class WalkError(Exception):
    """The text is not JSON of the shape that is walked."""


@dataclass(slots=True)
class Walk:
    """One pass over a text in blocks."""

    blocks: Iterator[bytes]
    lists: frozenset[Path]
    """Lists whose entries are given in pieces."""
    values: frozenset[Path]
    """Values that are given whole."""
    try_decode: Callable[[Path, bytes], bool]
    """Takes a piece: b"[...]" of a list, or a whole value. False when it does not decode."""
    truncated: bool = False
    num_oversized: int = 0
    num_values: int = 0
    num_malformed: dict[Path, int] = field(default_factory=dict)
    _text: bytes = b""
    _at: int = 0
    _dropped: int = 0
    """Bytes before `_text`."""
    _uncut: int = 0
    """Byte of the whole up to which it is known that no cut helps."""
    _is_over: bool = False

    def run(self) -> None:
        """Walk to the end of the text, or of what can be read of it."""
        self._more()
        self._skip_space()
        if self._peek() != b"{":
            raise WalkError(f"it begins with {self._text[self._at : self._at + 16]!r}")
        try:
            self._enter((), 0)
        except EOFError:
            self.truncated = True

    # The cursor stands before a value in each of these.

    def _enter(self, path: Path, depth: int) -> None:
        """An object, or a list of objects, on the way to what is wanted."""
        if self._peek() == b"[":
            self._at += 1
            while self._past_space() != b"]":
                self._value(path, depth + 1)
            self._at += 1
            return
        self._at += 1
        while self._past_space() != b"}":
            self._value((*path, self._key()), depth + 1)
        self._at += 1

    def _value(self, path: Path, depth: int) -> None:
        opens = self._past_space()
        self.num_values += 1
        if self.num_values > MAX_VALUES:
            raise WalkError(f"it has more than {MAX_VALUES} values that are no records")
        if path in self.lists and opens == b"[":
            self._at += 1
            self._list(path)
        elif path in self.values:
            self._whole(path)
        elif opens in (b"{", b"[") and depth < MAX_DEPTH and self._leads_on(path):
            self._enter(path, depth)
        else:
            self._skim(keep=0)

    def _leads_on(self, path: Path) -> bool:
        return any(wanted[: len(path)] == path for wanted in (*self.lists, *self.values))

    def _whole(self, path: Path) -> None:
        text = self._skim(keep=MAX_VALUE_BYTES)
        if text is None:
            self.num_oversized += 1
        elif not self.try_decode(path, text):
            self._count(path)

    def _list(self, path: Path) -> None:
        """Entries by the megabyte; the last ones, and damaged ones, one by one."""
        while True:
            if self._past_space() == b"]":
                self._at += 1
                return
            while len(self._text) - self._at < PIECE_BYTES and self._more():
                pass
            # What was searched, or did not decode (the list may end in it), is taken one by one to
            # its end and not searched again.
            if self._dropped + self._at >= self._uncut:
                end = self._last_cut()
                upto = len(self._text) if end is None else end
                text = b"" if end is None else self._text[self._at : end]
                if text and self.try_decode(path, b"[" + text + b"]"):
                    self._at = upto
                    continue
                self._uncut = self._dropped + upto
            if not self._one_by_one(path, self._uncut):
                return

    def _one_by_one(self, path: Path, upto: int) -> bool:
        """Some megabytes of entries, each whole, up to this byte of the whole. False at the list's
        end."""
        entries: list[bytes] = []
        size = 0
        try:
            while size < PIECE_BYTES and self._dropped + self._at < upto:
                if self._past_space() == b"]":
                    self._at += 1
                    return False
                entry = self._skim(keep=MAX_VALUE_BYTES)
                size += 64 + len(entry or b"")
                if entry is None:
                    self.num_oversized += 1
                else:
                    entries.append(entry)
            return True
        finally:
            self._take(path, entries)

    def _take(self, path: Path, entries: list[bytes]) -> None:
        if not entries or self.try_decode(path, b"[" + b",".join(entries) + b"]"):
            return
        for entry in entries:
            if not self.try_decode(path, b"[" + entry + b"]"):
                self._count(path)
                if self.num_malformed[path] > MAX_MALFORMED:
                    raise WalkError(
                        f"more than {MAX_MALFORMED} entries of {'.'.join(path)} are no records"
                    )

    def _count(self, path: Path) -> None:
        self.num_malformed[path] = self.num_malformed.get(path, 0) + 1

    def _last_cut(self) -> int | None:
        for start in (max(self._at, len(self._text) - CUT_WINDOW), self._at):
            cuts = [match.start() + 1 for match in CUT.finditer(self._text, start)]
            if cuts:
                return cuts[-1]
        return None

    def _skim(self, *, keep: int) -> bytes | None:
        """Past one value; its text where that is no longer than `keep`."""
        self._drop()
        if self._peek() not in (b"{", b"[", b'"'):
            return self._plain()
        skimmer, kept, size = Skimmer(), [], 0
        while True:
            start = self._at
            end = skimmer.end(self._text, start)
            upto = len(self._text) if end is None else end
            size += upto - start
            if size <= keep:
                kept.append(self._text[start:upto])
            else:
                kept.clear()
            self._at = upto
            if end is not None:
                return b"".join(kept) if size <= keep else None
            self._drop()
            if not self._more():
                raise EOFError

    def _plain(self) -> bytes:
        """A number or a word."""
        while True:
            match = PLAIN.match(self._text, self._at)
            assert match is not None
            if match.end() < len(self._text) or not self._more():
                break
        if match.end() == self._at:
            raise EOFError  # Neither a value nor an end: what follows cannot be distinguished.
        self._at = match.end()
        return match[0]

    def _key(self) -> str:
        while (match := KEY.match(self._text, self._at)) is None:
            if len(self._text) - self._at > 1 << 14 or not self._more():
                raise EOFError
        self._at = match.end()
        return match[1].decode("utf-8", "replace")

    def _past_space(self) -> bytes:
        self._skip_space()
        if not (char := self._peek()):
            raise EOFError
        return char

    def _skip_space(self) -> None:
        while True:
            spaces = SPACE.match(self._text, self._at)
            self._at = self._at if spaces is None else spaces.end()
            if self._at < len(self._text) or not self._more():
                return

    def _peek(self) -> bytes:
        return self._text[self._at : self._at + 1]

    def _drop(self) -> None:
        """Give up the text behind the cursor, once there is enough of it."""
        if self._at > PIECE_BYTES:
            self._forget(b"")

    def _more(self) -> bool:
        block = b"" if self._is_over else next(self.blocks, b"")
        self._is_over = not block
        self._forget(block)
        return not self._is_over

    def _forget(self, block: bytes) -> None:
        """The text behind the cursor goes, the block is put to the rest."""
        self._dropped += self._at
        self._text, self._at = self._text[self._at :] + block, 0


def decoded(decode: Decode, text: bytes) -> object | None:
    """What the text decodes to; None when it does not."""
    try:
        return decode(text)
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
        return None


def walked(source: Source, stream: Stream, walk: Walk, tool: str, wanted: str) -> None:
    """The walk to its end; FormatError where the text is none of the tool's JSON, InputError where
    there is none. `wanted` says what to give instead."""
    try:
        walk.run()
    except WalkError as problem:
        if stream.text_bytes:
            raise FormatError(
                f"{source.label} is not the JSON of {tool}: {problem}. {wanted}"
            ) from None
    stream.refuse_empty(source.label, wanted)
