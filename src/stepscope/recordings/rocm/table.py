"""CSV tables of AMD's tools: a header, then rows, however long the file and whatever stands in
it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from stepscope.api import Stream
from stepscope.protocol.untrusted import finite_text, whole_text
from stepscope.readers.text_lines import bounded_lines, csv_cells

MAX_LINE_BYTES = 256 << 10
"""Kernels of templates have names of a few thousand characters; a launch of rocprof-compute has
2700 columns."""
MAX_COLUMNS = 8192
LAST_NUMBER = re.compile(r"(\d{1,9})\D{0,64}\Z", re.ASCII)
LARGEST = 2**62
DAMAGED = "{n} damaged line(s) were left out"
MAX_NUMBER = 1e30


@dataclass(slots=True)
class Table:
    """One table. `header` is there once `rows` has begun: names in lower case, with _ for every
    other character."""

    stream: Stream
    header: tuple[str, ...] = ()
    titles: tuple[str, ...] = ()
    """The header as it is written."""
    num_cut: int = 0
    """Lines longer than the limit."""
    num_malformed: int = 0
    _columns: dict[str, int] = field(default_factory=dict)

    def rows(self) -> Iterator[list[str]]:
        for row in self.raw_rows():
            if not self.header:
                self.titles = tuple(cell.strip() for cell in row[:MAX_COLUMNS])
                self.header = tuple(map(plain, self.titles))
                self._columns = {
                    name: index for index, name in reversed(list(enumerate(self.header)))
                }
            elif row == list(self.titles):
                continue
            elif len(row) < min(len(self.header), 2):
                self.num_malformed += 1
            else:
                yield row

    def raw_rows(self) -> Iterator[list[str]]:
        """Every line that is not empty, headers too."""
        for line, is_whole in bounded_lines(self.stream.blocks(), MAX_LINE_BYTES):
            cells = csv_cells(line.removeprefix("\ufeff").replace("\0", "\ufffd"))
            if not is_whole:
                self.num_cut += 1
            elif cells is None:
                self.num_malformed += 1
            elif any(cells):
                yield cells

    @property
    def num_damaged(self) -> int:
        return self.num_cut + self.num_malformed

    def column(self, *names: str) -> int | None:
        """Where the first of these columns stands."""
        return next((self._columns[name] for name in names if name in self._columns), None)


def header_of(head: bytes) -> tuple[str, ...]:
    """The first line's columns, as `Table.header` has them; of text that begins like a table."""
    line = head.lstrip(b"\xef\xbb\xbf\r\n ").split(b"\n", 1)[0][:MAX_LINE_BYTES]
    if b"," not in line or b"\x00" in line or line[:1] in b"{[":
        return ()
    cells = csv_cells(line.decode("utf-8", "replace")) or []
    return tuple(map(plain, cells[:MAX_COLUMNS]))


def plain(title: str) -> str:
    return re.sub(r"[^a-z0-9%()]+", "_", title.strip().strip('"').lower()).strip("_")


def whole(row: Sequence[str], index: int | None) -> int | None:
    """A whole number of 0 or more; None where there is none."""
    return whole_text(cell(row, index), 0, LARGEST)


def number(row: Sequence[str], index: int | None) -> float | None:
    """A decimal number; None where there is none."""
    return finite_text(cell(row, index), -MAX_NUMBER, MAX_NUMBER)


def last_number(row: Sequence[str], index: int | None) -> int | None:
    """The number a cell ends with: `Agent 4`, `4`."""
    match = LAST_NUMBER.search(cell(row, index)[-80:])
    return int(match[1]) if match else None


def cell(row: Sequence[str], index: int | None) -> str:
    return row[index].strip() if index is not None and index < len(row) else ""
