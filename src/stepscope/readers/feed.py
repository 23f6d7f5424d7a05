"""Cuts a stream of text into chunks of whole events, whatever the file's layout, and keeps memory bounded.

A file is a header of top-level fields, the array of events, and a trailer; or a bare array. An event boundary is
`}, {"<known field>":`, which cannot stand inside a string because a string has no bare quotes. A nested list of objects could
match too: then the chunk does not decode, is walked event by event, and what is left over waits for the next block.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from stepscope.errors import FormatError
from stepscope.readers.rescue import rescue
from stepscope.readers.scan import Columns, LossyTimesError, Scanner, ScanError

CHUNK_BYTES = 2 << 20
MAX_EVENT_BYTES = 64 << 20
MAX_OUTSIDE_BYTES = 32 << 20
"""Kept of the fields outside the events (each side): real ones have kilobytes."""
OVERLAP_BYTES = 8192

ARRAY = re.compile(rb'(?<!\\)"traceEvents"\s*:\s*\[')
CUT = re.compile(rb'\}\s{0,4096},\s{0,4096}(?=\{\s{0,4096}"(?:ph|name|cat|pid|tid|ts|dur|args|id|s|bp)"\s*:)')


class Feed:
    """Pushes text through a Scanner and collects columns."""

    def __init__(self, scanner: Scanner) -> None:
        self.scanner = scanner
        self.outside: list[bytes] = []
        """Text outside the arrays of events, in order: header, then trailer."""
        self.arrays = 0
        self.oversized = 0
        self.truncated = False
        self.dropped_outside = False
        self._buffer = b""
        self._searched = 0
        self._wanted = CHUNK_BYTES
        self._state = self._at_start

    def run(self, blocks: Iterable[bytes]) -> Iterator[Columns]:
        """Columns for every chunk of the stream."""
        for block in blocks:
            self._buffer = self._buffer + block if self._buffer else block
            while (columns := self._state(False)) is not None:
                yield from columns
        while (columns := self._state(True)) is not None:
            yield from columns

    # Each state returns columns (and is called again), or None when it needs more text.

    def _at_start(self, last: bool) -> list[Columns] | None:
        self._buffer = self._buffer.lstrip(b"\xef\xbb\xbf \t\r\n\x00") if not self.arrays else self._buffer
        if not self._buffer:
            return None
        if self._buffer[:1] == b"[":
            self._buffer = self._buffer[1:]
            self._enter_events()
        elif self._buffer[:1] == b"{":
            self._state = self._outside_events
        else:
            raise FormatError(f"it does not start like JSON but with {self._buffer[:16]!r}")
        return []

    def _outside_events(self, last: bool) -> list[Columns] | None:
        match = ARRAY.search(self._buffer)
        if match:
            self._keep_outside(self._buffer[: match.start()])
            self._buffer = self._buffer[match.end() :]
            self._enter_events()
            return []
        keep = 0 if last else OVERLAP_BYTES
        if last or len(self._buffer) > MAX_EVENT_BYTES:
            self._keep_outside(self._buffer[: len(self._buffer) - keep])
            self._buffer = self._buffer[len(self._buffer) - keep :]
        return None

    def _enter_events(self) -> None:
        self.arrays += 1
        self._searched, self._wanted = 0, CHUNK_BYTES
        self._state = self._in_events

    def _in_events(self, last: bool) -> list[Columns] | None:
        if last:
            return self._finish()
        if len(self._buffer) < self._wanted:
            return None
        cut = self._last_cut()
        if cut is None:
            if len(self._buffer) > MAX_EVENT_BYTES:
                self.oversized += 1
                self._state = self._in_oversized
                return []
            self._searched = max(0, len(self._buffer) - OVERLAP_BYTES)
            self._wanted = len(self._buffer) + CHUNK_BYTES
            return None
        self._searched, self._wanted = 0, CHUNK_BYTES
        return self._take(cut)

    def _last_cut(self) -> int | None:
        """Where the last whole event of the buffer ends."""
        size = len(self._buffer)
        for window in (1 << 16, 1 << 20, size):
            start = max(self._searched, size - window)
            cuts = [m.start() + 1 for m in CUT.finditer(self._buffer, start)]
            if cuts:
                return cuts[-1]
            if start <= self._searched:
                return None
        return None

    def _take(self, cut: int) -> list[Columns]:
        columns = self._scan(self._buffer[:cut])
        if columns is not None:
            self._buffer = self._buffer[cut:].lstrip(b" \t\r\n,")
            return [columns]
        saved = rescue(self._buffer[:cut], self.scanner)
        self._buffer = self._buffer[saved.consumed :]
        if saved.ended:
            self._state = self._outside_events
        elif saved.consumed < cut:
            self._searched = cut - saved.consumed
            self._wanted = len(self._buffer) + CHUNK_BYTES
        else:
            self._buffer = self._buffer.lstrip(b" \t\r\n,")
        return [saved.columns]

    def _scan(self, chunk: bytes) -> Columns | None:
        try:
            return self.scanner.scan(chunk)
        except LossyTimesError:
            self.scanner.times_as_text = True
            return self._scan(chunk)
        except ScanError:
            return None

    def _finish(self) -> list[Columns] | None:
        """The last text: it holds the array's end, unless the file was cut off."""
        if not self._buffer.strip(b" \t\r\n,\x00"):
            self.truncated = True
            self._buffer, self._state = b"", self._at_end
            return []
        for end in self._closing_candidates():
            columns = self._scan(self._buffer[:end])
            if columns is not None:
                self._buffer = self._buffer[end + 1 :]
                self._state = self._outside_events
                return [columns]
        saved = rescue(self._buffer, self.scanner)
        self._buffer = self._buffer[saved.consumed :]
        self._state = self._outside_events if saved.ended else self._at_end
        self.truncated = self.truncated or not saved.ended
        return [saved.columns]

    def _closing_candidates(self) -> Iterator[int]:
        at = len(self._buffer)
        for _ in range(4):
            at = self._buffer.rfind(b"]", 0, at)
            if at < 0:
                return
            yield at

    def _in_oversized(self, last: bool) -> list[Columns] | None:
        """Inside an event too large to keep: drop text until the next event begins."""
        match = CUT.search(self._buffer)
        if match:
            self._buffer = self._buffer[match.start() + 1 :].lstrip(b" \t\r\n,")
            self._searched, self._wanted = 0, CHUNK_BYTES
            self._state = self._in_events
            return []
        self._buffer = b"" if last else self._buffer[-OVERLAP_BYTES:]
        return None

    def _at_end(self, last: bool) -> list[Columns] | None:
        return None

    def _keep_outside(self, text: bytes) -> None:
        if sum(map(len, self.outside)) + len(text) > MAX_OUTSIDE_BYTES:
            self.dropped_outside = True
            return
        self.outside.append(text)
