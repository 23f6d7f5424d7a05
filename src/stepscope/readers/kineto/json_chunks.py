"""Cuts a stream of text into chunks of whole events, whatever the file's layout, and keeps memory
bounded.

A file is a header of top-level fields, the array of events, and a trailer; or a bare array. An
event boundary is `}, {"<known field>":`, which cannot stand inside a string because a string has no
bare quotes. A nested list of objects could match too: then the chunk does not decode, is taken
apart, and what is left over waits for the next block.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Iterator

from stepscope.core.timings import stage
from stepscope.readers.kineto.event_decoder import ScanError, Scanner
from stepscope.readers.kineto.json_recovery import Skimmer, rescue
from stepscope.readers.trace.columns import Columns

CHUNK_BYTES = 4 << 20
PIECE_BYTES = 32 << 10
"""A chunk with damage in it is scanned in pieces of this size, so that only the damaged piece goes
event by event."""
MAX_EVENT_BYTES = 16 << 20
MAX_OUTSIDE_BYTES = 8 << 20
"""Kept of the text outside the events: real files have kilobytes."""
END_BYTES = 256 << 10
NEAR_CUTS = 64
"""Braces that are looked at from the end of the text for a cut, before all of it is searched."""
MAX_ARRAYS = 1000
"""Lists of events in one file: real ones have one, a file joined of several a few. What follows is
text outside of events."""
OVERLAP_BYTES = 8192
SEAM_BYTES = 1 << 16
"""Bytes of an event that two blocks share, in each of them: a longer one has them joined."""

ARRAY = re.compile(rb'"traceEvents"\s{0,1024}:\s{0,1024}\[')
CUT = re.compile(
    rb'\}\s{0,4096},\s{0,4096}(?=\{\s{0,4096}"(?:ph|name|cat|pid|tid|ts|dur|args|id|s|bp)"\s{0,1024}:)'
)
CLOSING = re.compile(rb"\}\s{0,1024}\]")
SEPARATORS = b" \t\r\n,\x00"
EMPTY_ARRAY = b'"traceEvents":[]'


class NotJsonError(Exception):
    """The text does not start like JSON."""


class Outside:
    """The text around the arrays of events: its beginning whole, and its end where there is too
    much between."""

    def __init__(self) -> None:
        self.dropped = 0
        self._kept: list[bytes] = []
        self._size = 0
        self._end = b""

    def add(self, text: bytes) -> None:
        if self._size + len(text) <= MAX_OUTSIDE_BYTES and not self.dropped:
            self._kept.append(text)
            self._size += len(text)
        else:
            self.dropped += len(text)
            self._end = (self._end + text)[-END_BYTES:]

    def text(self) -> bytes:
        return b"".join([*self._kept, self._end])


class Feed:
    """Pushes text through a Scanner and collects columns."""

    def __init__(self, scanner: Scanner) -> None:
        self.scanner = scanner
        self.outside = Outside()
        self.arrays = 0
        self.oversized = 0
        self.truncated = False
        self._buffer = b""
        self._wanted = CHUNK_BYTES
        self._skimmer = Skimmer()
        self._state: Callable[[bool], list[Columns] | None] = self._at_start

    def run(self, blocks: Iterable[bytes]) -> Iterator[Columns]:
        """Columns for every chunk of the stream, each good until the next is asked for."""
        for block in blocks:
            rest = yield from self._in_block(block)
            self._buffer = self._buffer + rest if self._buffer else rest
            while (columns := self._state(False)) is not None:
                yield from columns
        while (columns := self._state(True)) is not None:
            yield from columns

    def _in_block(self, block: bytes) -> Generator[Columns, None, bytes]:
        """Columns of the event that begins before the block, and of those in it where they stand:
        joining the two would copy the whole block. What is left of it is returned."""
        first = CUT.search(block, 0, SEAM_BYTES) if self._is_at_seam(block) else None
        last = None if first is None else self._last_cut(block)
        if first is None or last is None or last <= first.end():
            return block
        seam = self._scan(self._buffer + block[: first.start() + 1])
        if seam is None:
            return block
        yield seam
        self._buffer = b""
        pieces = self._scan_in_place(memoryview(block)[first.end() : last])
        if pieces is None:
            return block[first.end() :]
        yield from pieces
        return block[last:]

    def _is_at_seam(self, block: bytes) -> bool:
        """Whether the buffer is the beginning of one event that goes on in a large block."""
        is_one = self._state == self._in_events and self._buffer[:1] == b"{"
        return is_one and len(self._buffer) < SEAM_BYTES and len(block) >= CHUNK_BYTES

    # Each state returns columns (and is called again), or None when it needs more text or there is
    # no more to do.

    def _at_start(self, _last: bool) -> list[Columns] | None:
        self._buffer = self._buffer.lstrip(b"\xef\xbb\xbf \t\r\n\x00")
        if not self._buffer:
            return None
        if self._buffer[:1] == b"[":
            self._enter_events(1)
        elif self._buffer[:1] == b"{":
            self._state = self._around_events
        else:
            raise NotJsonError(f"it does not start like JSON but with {self._buffer[:16]!r}")
        return []

    def _around_events(self, last: bool) -> list[Columns] | None:
        matches = ARRAY.finditer(self._buffer)
        match = next((m for m in matches if self._buffer[m.start() - 1 : m.start()] != b"\\"), None)
        if match and self.arrays < MAX_ARRAYS:
            self.outside.add(self._buffer[: match.start()])
            self.outside.add(EMPTY_ARRAY)
            self._enter_events(match.end())
            return []
        keep = 0 if last else min(OVERLAP_BYTES, len(self._buffer))
        self.outside.add(self._buffer[: len(self._buffer) - keep])
        self._buffer = self._buffer[len(self._buffer) - keep :]
        return None

    def _enter_events(self, at: int) -> None:
        self.arrays += 1
        self._buffer, self._wanted = self._buffer[at:], CHUNK_BYTES
        self._state = self._in_events

    def _leave_events(self, at: int) -> None:
        self._buffer = self._buffer[at:]
        self._state = self._around_events

    def _in_events(self, last: bool) -> list[Columns] | None:
        if self._buffer[:1] and self._buffer[:1] in SEPARATORS:
            self._buffer = self._buffer.lstrip(SEPARATORS)
        if self._buffer[:1] == b"]":
            self._leave_events(1)
            return []
        if last:
            return self._finish()
        if len(self._buffer) < self._wanted:
            return None
        cut = self._last_cut(self._buffer)
        if cut is not None:
            pieces = self._scan_in_place(memoryview(self._buffer)[:cut])
            if pieces is not None:
                self._buffer, self._wanted = self._buffer[cut:], CHUNK_BYTES
                return pieces
        taken = self._take_apart()
        if self._state == self._in_events and len(self._buffer) > MAX_EVENT_BYTES:
            self._state, self._skimmer = self._in_oversized, Skimmer()
            self.oversized += 1
        return taken

    def _last_cut(self, text: bytes) -> int | None:
        """Where the last whole event of the text ends."""
        size = at = len(text)
        for _ in range(NEAR_CUTS):
            at = text.rfind(b"}", 0, at)
            if at < 0:
                return None
            if CUT.match(text, at):
                return at + 1
        for window in (1 << 16, 1 << 20, size):
            start = max(0, size - window)
            cuts = [m.start() + 1 for m in CUT.finditer(text, start)]
            if cuts:
                return cuts[-1]
            if start == 0:
                break
        return None

    @stage("scan")
    def _scan_in_place(self, text: memoryview) -> list[Columns] | None:
        try:
            return self.scanner.scan_in_place(text)
        except ScanError:
            return None

    @stage("scan")
    def _scan(self, text: bytes | memoryview) -> Columns | None:
        try:
            return self.scanner.scan(text)
        except ScanError:
            return None

    def _take_apart(self, *, final: bool = False) -> list[Columns]:
        """Scan the buffer in pieces, the damaged ones event by event; an event that is not whole
        stays."""
        taken: list[Columns] = []
        at, size, limit = 0, PIECE_BYTES, len(self._buffer)
        while at < limit:
            cut = CUT.search(self._buffer, min(at + size, limit), limit)
            end = cut.start() + 1 if cut else limit
            columns = self._scan(memoryview(self._buffer)[at:end])
            if columns is not None:
                taken.append(columns)
                at, size = self._skip_separators(end), PIECE_BYTES
                continue
            saved = rescue(self._buffer[at:end], self.scanner, final=final and end == limit)
            taken.append(saved.columns)
            at += saved.consumed
            if saved.ended:
                self._leave_events(at)
                return taken
            at = self._skip_separators(at)
            if at < end == limit:
                break
            size = 2 * (end - at) + PIECE_BYTES if at < end else PIECE_BYTES
        self._buffer = self._buffer[at:]
        self._wanted = max(CHUNK_BYTES, 2 * len(self._buffer))
        return taken

    def _skip_separators(self, at: int) -> int:
        while self._buffer[at : at + 1] and self._buffer[at : at + 1] in SEPARATORS:
            at += 1
        return at

    def _finish(self) -> list[Columns] | None:
        """The last text: it holds the array's end, unless the file was cut off."""
        for end in self._closing_candidates():
            columns = self._scan(memoryview(self._buffer)[:end])
            if columns is not None:
                self._leave_events(end + 1)
                return [columns]
        taken = self._take_apart(final=True)
        if self._state == self._in_events:
            self.truncated = True
            self._buffer, self._state = b"", self._at_end
        return taken

    def _closing_candidates(self) -> list[int]:
        """Places of the last few brackets that may close the array, the last first."""
        closings = [
            m.end() - 1
            for m in CLOSING.finditer(self._buffer, max(0, len(self._buffer) - (1 << 16)))
        ]
        return closings[-4:][::-1]

    def _in_oversized(self, last: bool) -> list[Columns] | None:
        """Inside an event too large to keep: drop text until it ends."""
        end = self._skimmer.end(self._buffer)
        if end is None:
            self._buffer = b""
            self.truncated = self.truncated or last
            return None
        self.scanner.tally.raw_events += 1
        self._buffer, self._wanted = self._buffer[end:], CHUNK_BYTES
        self._state = self._in_events
        return []

    def _at_end(self, _last: bool) -> list[Columns] | None:
        return None
