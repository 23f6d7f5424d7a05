"""A text's lines, safely: none longer than a limit, no more than a limit, whatever the file
holds."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from contextlib import closing

from stepscope.readers.container_log import opened
from stepscope.readers.source import Source

MAX_LINE_BYTES = 64 << 10
"""A stack of a thousand calls is below it."""
MAX_LINES = 20_000_000
LINE_END = re.compile(rb"\n")


class TextLines:
    """The lines of a source; afterwards `notes` says what was damaged or left out."""

    def __init__(
        self, source: Source, *, max_line_bytes: int = MAX_LINE_BYTES, max_lines: int = MAX_LINES
    ) -> None:
        self._source = source
        self._max_line_bytes = max_line_bytes
        self._max_lines = max_lines
        self.num_cut = 0
        self.notes: list[str] = []

    def __iter__(self) -> Iterator[str]:
        stream = opened(self._source)
        with closing(stream.blocks()) as blocks:
            lines = bounded_lines(blocks, self._max_line_bytes)
            for number, (line, is_whole) in enumerate(lines):
                if number >= self._max_lines:
                    self.notes.append(
                        f"{self._source.label}: what comes after {self._max_lines:,} lines was "
                        "left out"
                    )
                    break
                self.num_cut += not is_whole
                yield line
        if stream.problem:
            self.notes.append(f"{self._source.label}: {stream.problem}")
        if self.num_cut:
            self.notes.append(
                f"{self._source.label}: {self.num_cut:,} line(s) longer than "
                f"{self._max_line_bytes >> 10} KiB cut"
            )


def bounded_lines(
    blocks: Iterable[bytes], limit: int, ends: re.Pattern[bytes] = LINE_END
) -> Iterator[tuple[str, bool]]:
    """Lines as text, cut after so many bytes; and whether each is whole."""
    rest, is_whole = b"", True
    for block in blocks:
        first, *others = ends.split(block)
        is_whole = is_whole and len(rest) + len(first) <= limit
        rest = (rest + first[:limit])[:limit]
        for part in others:
            yield rest.decode("utf-8", "replace").rstrip("\r"), is_whole
            rest, is_whole = part[:limit], len(part) <= limit
    if rest:
        yield rest.decode("utf-8", "replace").rstrip("\r"), is_whole


def csv_cells(line: str) -> list[str] | None:
    """The cells of one line, so that a quote that nobody closes costs that line alone; None where
    they cannot be told apart."""
    try:
        return next(csv.reader([line]), [])
    except csv.Error:
        return None
