"""A sheet of lines no wider than asked: headings, prose and tables, each string made harmless on its way in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

from stepscope.report.names import clean, shorten
from stepscope.report.units import NBSP

INDENT = 2
GAP = 2
MIN_COLUMN = 8
"""A column that gives way keeps at least this many cells."""
MAX_COLUMN = 60
LABEL_WIDTH = 17

Cell = str | Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """How one column of a table is set."""

    title: str = ""
    right: bool = False
    shrinks: bool = False
    """Gives way, in the middle of its names, when the row would be too wide."""
    most: int = MAX_COLUMN
    """Cells it may take however much room there is."""
    style: str = ""


class Sheet:
    """Collects lines. Nothing is read as markup: text comes in as plain strings and leaves as rich Text."""

    def __init__(self, width: int, *, fancy: bool, ascii_only: bool) -> None:
        self.width = width
        self.lines: list[Text] = []
        self._fancy = fancy
        self._ascii_only = ascii_only

    def clean(self, text: str) -> str:
        return clean(text, ascii_only=self._ascii_only)

    def shorten(self, text: str, width: int) -> str:
        return shorten(text, width, "…" if self._fancy else "...")

    def blank(self) -> None:
        if self.lines and self.lines[-1].plain:
            self.lines.append(Text())

    def heading(self, title: str, aside: str = "") -> None:
        """A title after a blank line; the aside goes below where there is no room beside it."""
        self.blank()
        beside = f"  ({aside})" if aside and len(title) + len(aside) + 4 <= self.width else ""
        self.lines.append(self._line([(title, "bold"), (beside, "dim")]))
        if aside and not beside:
            self.prose(aside, indent=INDENT, style="dim")

    def prose(self, text: str, *, style: str = "", indent: int = 0, lead: str = "", lead_style: str = "") -> None:
        """A paragraph, wrapped; `lead` stands in the indent of its first line."""
        lead = self.clean(lead)
        margin = lead.ljust(indent)
        for row in _wrap(self.clean(text), self.width - indent):
            self.lines.append(self._line([(margin, lead_style), (row, style)]))
            margin = " " * indent

    def entry(self, label: str, text: str) -> None:
        """A labelled fact."""
        self.prose(text, indent=INDENT + LABEL_WIDTH, lead=" " * INDENT + label, lead_style="dim")

    def bar(self, share: float, width: int) -> str:
        """A horizontal bar; eighths of a cell where the terminal can draw them."""
        eighths = round(max(0.0, min(1.0, share)) * width * 8)
        if not self._fancy:
            return "#" * round(eighths / 8)
        return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()

    def table(self, columns: Sequence[Column], rows: Sequence[Sequence[Cell]], *, room: int = 0) -> None:
        """Rows under their titles, one line each; `room` cells are left free on the right."""
        body = [[self._cell(cell, column) for cell, column in zip(row, columns, strict=True)] for row in rows]
        titles = [Text(column.title, "dim") for column in columns]
        shown = [titles, *body] if any(column.title for column in columns) else body
        widths = [min(column.most, max(cell_len(row[i].plain) for row in shown)) for i, column in enumerate(columns)]
        self._squeeze(columns, widths, self.width - room)
        for row in shown:
            parts: list[tuple[str, str]] = [(" " * INDENT, "")]
            for cell, column, width in zip(row, columns, widths, strict=True):
                text = self.shorten(cell.plain, width)
                pad = " " * (width - cell_len(text))
                parts.append((pad + text if column.right else text + pad, str(cell.style)))
                parts.append((" " * GAP, ""))
            self.lines.append(self._line(parts))

    def _cell(self, cell: Cell, column: Column) -> Text:
        text, style = (cell, column.style) if isinstance(cell, str) else (cell.plain, cell.style)
        return Text(self.clean(text), style)

    def _squeeze(self, columns: Sequence[Column], widths: list[int], width: int) -> None:
        """Take the excess from the columns that may give way, the widest first."""
        excess = INDENT + sum(widths) + GAP * (len(widths) - 1) - width
        for _ in range(max(0, excess)):
            giving = [i for i, column in enumerate(columns) if column.shrinks and widths[i] > MIN_COLUMN]
            if not giving:
                return
            widths[max(giving, key=lambda i: widths[i])] -= 1

    def _line(self, parts: Sequence[tuple[str, str]]) -> Text:
        line = Text()
        for text, style in parts:
            line.append(self.clean(text).replace(NBSP, " "), style or None)
        line.rstrip()
        if line.cell_len > self.width:
            line.truncate(self.width)
        return line


def _wrap(text: str, width: int) -> list[str]:
    """Lines of whole words; a word wider than the line is folded. No-break spaces hold."""
    rows: list[str] = []
    row = ""
    for word in text.split(" "):
        joined = f"{row} {word}" if row else word
        if cell_len(joined) <= width:
            row = joined
            continue
        if row:
            rows.append(row)
        row = word
        while cell_len(row) > width:
            head = _fold(row, width)
            rows.append(head)
            row = row[len(head) :]
    return [*rows, row] if row else rows


def _fold(text: str, width: int) -> str:
    """The longest beginning of the text in `width` cells, one character at least."""
    used = 0
    for i, char in enumerate(text):
        used += cell_len(char)
        if used > width and i > 0:
            return text[:i]
    return text
