"""A document in the terminal: no line wider than asked, tables by rich.

Colour and block characters on a terminal; plain text anywhere else, ASCII where the encoding is not
UTF-8. Names and notes come out of strangers' files: none is read as markup, and none reaches the
terminal with a control character in it.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence

from msgspec import Struct
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group
from rich.measure import Measurement
from rich.table import Table as Grid
from rich.text import Text

from stepscope.report.document.blocks import (
    Action,
    Bar,
    Block,
    Card,
    Cell,
    Code,
    Column,
    Details,
    Document,
    Facts,
    Headline,
    Items,
    Line,
    Part,
    Prose,
    Section,
    Stack,
    Table,
    Tone,
    Warn,
    cell,
)
from stepscope.report.words import NBSP, clean, first_clauses, percent, shorten

PLAIN_WIDTH = 80
MIN_WIDTH = 40
MAX_WIDTH = 100
"""Wider than this and the eye loses the row."""
INDENT = 2
GAP = 2
MIN_COLUMN = 8
"""A column that gives way keeps at least this many cells."""
LABEL_WIDTH = 17
MAX_LABEL = 30
BAR_WIDTH = 30
STACK_WIDTH = 72
STACK_FILLS = "█▓▒░"
CHANGE_STYLES = {"- ": "red", "+ ": "green"}
STACK_LETTERS = "#~=+.:*o%-"
"""Where there is no colour, a letter for each part."""
HELD = "\ue000"
"""Stands for a no-break space while lines are made, as rich breaks at those. No text of a stranger
has it."""

STYLES: dict[Tone, str] = {
    "": "", "strong": "bold", "quiet": "dim", "good": "green", "warn": "yellow", "bad": "red",
}  # fmt: skip
BAR_STYLES: dict[Part, str] = {
    "compute": "green", "comms": "magenta", "copies": "cyan",
    "input": "yellow", "idle": "red", "change": "", "": "",
}  # fmt: skip


def to_text(document: Document, *, width: int = PLAIN_WIDTH, color: bool = False) -> str:
    """The document as text, plain if not asked for otherwise."""
    console = _console(width, color=color)
    with console.capture() as captured:
        show(document, console)
    return captured.get()


def num_lines(document: Document, *, width: int = PLAIN_WIDTH) -> int:
    """Lines of the document as plain text, which is not made for it."""
    return len(frame(document, _console(width, color=False)).renderables)


def _console(width: int, *, color: bool) -> Console:
    return Console(
        file=io.StringIO(),
        width=width,
        force_terminal=color,
        color_system="standard" if color else None,
        no_color=not color,
        legacy_windows=False,
    )


def show(document: Document, console: Console) -> None:
    """Print the document."""
    for line in frame(document, console).renderables:
        console.print(line, crop=False)


def frame(document: Document, console: Console) -> Group:
    """The document's lines, for a console to print or to keep in their place."""
    lines = _Lines(console)
    lines.draw(document, 0)
    for line in lines.made:
        line.plain = line.plain.replace(HELD, " ")
        line.rstrip()
        line.no_wrap, line.overflow = True, "ignore"
    return Group(*lines.made)


class _Lines:
    """The lines of a document, one after the other."""

    def __init__(self, console: Console) -> None:
        self.made: list[Text] = []
        self._console = console
        self._width = max(MIN_WIDTH, min(console.width, MAX_WIDTH))
        is_utf8 = "utf" in console.encoding.lower()
        self._is_ascii = not is_utf8
        self._is_fancy = is_utf8 and console.is_terminal and console.color_system is not None

    def draw(self, blocks: Sequence[Block], indent: int) -> None:
        for at, block in enumerate(blocks):
            if at and isinstance(blocks[at - 1], Section):
                self._blank()
            self._draw(block, indent)

    def _draw(self, block: Block, indent: int) -> None:
        match block:
            case Headline():
                self._headline(block)
            case Prose():
                self._paragraph(self._text(block.text, STYLES[block.tone]), indent)
            case Warn():
                self._paragraph(self._text(block.text, "bold red"), indent)
            case Action():
                lead = self._text(" " * indent + "->")
                self._paragraph(self._text(block.text, "green"), indent + 3, lead)
            case Line():
                self._short(block, indent)
            case Items():
                for line in block.lines:
                    lead = self._text(" " * (indent or INDENT) + "-")
                    self._paragraph(self._text(line), (indent or INDENT) + 2, lead)
            case Facts():
                self._facts(block, indent)
            case Code():
                for line in block.lines:
                    self._code(line, indent, is_change=block.is_change)
            case Table():
                self._table(block, indent)
            case Stack():
                self._stack(block, indent)
            case Card():
                lead = self._text(f"{' ' * indent}{block.number}.")
                title = self._text(f"{block.code}  {block.title}".rstrip(), "bold")
                self._paragraph(title, indent + 3, lead)
                self.draw(block.blocks, indent + 3)
            case Section():
                self._section(block)
            case Details():
                pass

    def _headline(self, block: Headline) -> None:
        for line in block.about:
            self._paragraph(self._text(line, "dim"), 0)
        if not block.is_tight:
            self._blank()
        self._paragraph(self._text(block.text, f"bold {STYLES[block.tone]}".rstrip()), 0)

    def _short(self, line: Line, indent: int) -> None:
        """Print as much of its text as leaves room for the tail."""
        lead = self._text(" " * indent + ("->" if line.is_action else ""))
        margin = indent + (3 if line.is_action else 0)
        style = "green" if line.is_action else STYLES[line.tone]
        tail = self._text(f" {line.tail}" if line.tail else "")
        text, width = self._clean(line.text), self._width - margin
        room = line.most * width - tail.cell_len
        while True:
            made = self._text(first_clauses(text, room), style) + tail
            if room <= width // 2 or len(made.wrap(self._console, width)) <= line.most:
                break
            room -= 1
        self._paragraph(made, margin, lead)

    def _section(self, section: Section) -> None:
        """The aside goes below the title where there is no room beside it."""
        self._blank()
        title, aside = self._text(section.title, "bold"), self._text(section.aside, "dim")
        has_room = title.cell_len + aside.cell_len + 4 <= self._width
        bracketed = Text.assemble(("  (", "dim"), aside, (")", "dim")) if section.aside else Text()
        self._line(title, bracketed if has_room else Text())
        if not has_room:
            self._paragraph(aside, INDENT)
        self.draw(section.blocks, INDENT)

    def _facts(self, facts: Facts, indent: int) -> None:
        indent = indent or INDENT
        labels = [
            self._text(shorten(self._clean(label), MAX_LABEL), "dim") for label, _ in facts.rows
        ]
        width = max([LABEL_WIDTH, *(label.cell_len + GAP for label in labels)])
        for label, (_, text) in zip(labels, facts.rows, strict=True):
            lead = Text.assemble(" " * indent, label)
            self._paragraph(self._text(text), indent + width, lead)

    def _table(self, table: Table, indent: int) -> None:
        if table.caption:
            self._blank()
            self._paragraph(self._text(table.caption, "bold"), indent)
        indent = indent or INDENT
        grid = Grid(
            box=None, padding=(0, GAP, 0, 0), pad_edge=False, show_header=table.has_titles,
            header_style="", collapse_padding=True,
        )  # fmt: skip
        rows = [
            [_fitted(self, value, column) for value, column in zip(row, table.columns, strict=True)]
            for row in table.rows
        ]
        titles = [_fitted(self, Cell(column.title, "quiet"), column) for column in table.columns]
        for at, column in enumerate(table.columns):
            # Rich takes from these alone, so that no number is cut.
            gives_way = column.fit != "whole" or any(_gives_way(row[at]) for row in table.rows)
            grid.add_column(
                titles[at], justify="right" if column.right else "left", no_wrap=not gives_way
            )
        for row in rows:
            grid.add_row(*row)
        options = self._console.options
        # Where even that is not enough, what does not fit ends at the right edge.
        drawn = [titles, *rows] if table.has_titles else rows
        leasts = [
            max(cell.extent.minimum for cell in column) for column in zip(*drawn, strict=True)
        ]
        width = max(self._width - indent, sum(leasts) + GAP * (len(leasts) - 1))
        for segments in self._console.render_lines(
            grid, options.update(width=width, height=None), pad=False
        ):
            styled = ((segment.text, segment.style or "") for segment in segments)
            self._line(Text(" " * indent), Text.assemble(*styled))

    def _code(self, line: str, indent: int, *, is_change: bool) -> None:
        style = CHANGE_STYLES.get(line[:2])
        if not is_change or style is None:
            self._line(Text(" " * indent), self.fitted(line, self._width - indent, "dim"))
            return
        # It is to be pasted: broken at blanks, as it may be inside a call, and never shortened.
        code = line[2:].lstrip()
        margin = indent + len(line) - len(code)
        self._paragraph(self._text(code, style), margin, Text(f"{' ' * indent}{line[:2]}", style))

    def _stack(self, stack: Stack, indent: int) -> None:
        """The bar on one line, and what its parts are. Parts of a kind share a colour, and differ
        in their fill."""
        indent = indent or INDENT
        counts: dict[Part, int] = {}
        fills, styles = [], []
        for at, segment in enumerate(stack.segments):
            same = counts.get(segment.part, 0)
            counts[segment.part] = same + 1
            fancy = STACK_FILLS[same % len(STACK_FILLS)]
            fills.append(fancy if self._is_fancy else STACK_LETTERS[at % len(STACK_LETTERS)])
            styles.append(BAR_STYLES[segment.part])
        cells = _shared_out([segment.share for segment in stack.segments], STACK_WIDTH)
        bar = zip(fills, cells, styles, strict=True)
        self._line(Text(" " * indent), *(Text(fill * num, style) for fill, num, style in bar))
        legend = Text()
        for segment, fill, style in zip(stack.segments, fills, styles, strict=True):
            words = f"{segment.word} {percent(segment.share)}".replace(" ", NBSP)
            legend.append("  " if legend.plain else "")
            legend.append_text(Text(f"{fill}{HELD}", style)).append_text(self._text(words))
        self._paragraph(legend, indent)

    def bar(self, share: float, width: int) -> str:
        """A horizontal bar; eighths of a cell where the terminal can draw them."""
        eighths = round(max(0.0, min(1.0, share)) * width * 8)
        if not self._is_fancy:
            return "#" * round(eighths / 8)
        return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()

    def fitted(self, text: str, width: int, style: str) -> Text:
        """The text on one line, less its middle where it has to be."""
        dots = "…" if self._is_fancy else "..."
        return self._text(shorten(self._clean(text), width, dots), style)

    def _clean(self, text: str) -> str:
        return clean(text, ascii_only=self._is_ascii)

    def _text(self, text: str, style: str = "") -> Text:
        """The one way in: nothing that a terminal obeys, and nothing that is read as markup."""
        return Text(self._clean(text).replace(NBSP, HELD), style)

    def _blank(self) -> None:
        if self.made and self.made[-1].plain:
            self.made.append(Text())

    def _paragraph(self, text: Text, margin: int, lead: Text | None = None) -> None:
        """Wrapped; `lead` stands in the margin of the first line."""
        if not text.plain.strip():
            return
        before = lead or Text(" " * margin)
        before.pad_right(margin - before.cell_len)
        for row in text.wrap(self._console, self._width - margin, overflow="fold"):
            self._line(before, row)
            before = Text(" " * margin)

    def _line(self, *parts: Text) -> None:
        line = Text.assemble(*parts)
        line.rstrip()
        line.truncate(self._width)
        self.made.append(line)


def _shared_out(shares: Sequence[float], width: int) -> list[int]:
    """Cells for each share: all of the width, and at least one for each."""
    cells = [max(1, int(share * width)) for share in shares]
    rest = sorted(range(len(shares)), key=lambda at: cells[at] - shares[at] * width)
    for at in rest * 2:
        if sum(cells) >= width:
            break
        cells[at] += 1
    while sum(cells) > width and max(cells) > 1:
        cells[cells.index(max(cells))] -= 1
    return cells


class _Fitted(Struct, frozen=True):
    """A cell that knows how to give way; rich says how wide it may be."""

    lines: _Lines
    value: str | Cell | Bar
    column: Column
    extent: Measurement
    """The fewest cells that it can do with, and the most that it can use."""

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return self.extent.clamp(0, options.max_width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        width = options.max_width
        if isinstance(self.value, Bar):
            yield Text(self.lines.bar(self.value.share, width), BAR_STYLES[self.value.part])
            return
        shown = cell(self.value)
        style = STYLES[shown.tone or self.column.tone]
        if self.column.fit == "wrap" or (shown.note and cell_len(clean(_both(shown))) <= width):
            yield from self._wrapped(_both(shown), style, console, width)
            return
        yield self.lines.fitted(shown.text, width, style)
        if shown.note and self.column.fit == "shorten":
            yield self.lines.fitted(shown.note, width, "dim")
        elif shown.note:
            yield from self._wrapped(shown.note, "dim", console, width)

    def _wrapped(self, text: str, style: str, console: Console, width: int) -> Iterator[Text]:
        made = self.lines.fitted(text, 10 * MAX_WIDTH, style)
        yield from made.wrap(console, width, overflow="fold") or [made]


def _fitted(lines: _Lines, value: str | Cell | Bar, column: Column) -> _Fitted:
    if isinstance(value, Bar):
        extent = Measurement(MIN_COLUMN, min(BAR_WIDTH, column.most)).normalize()
        return _Fitted(lines, value, column, extent)
    shown = cell(value)
    text = min(cell_len(clean(shown.text)), column.most)
    least = text if column.fit == "whole" else min(text, MIN_COLUMN)
    both = min(cell_len(clean(_both(shown))), column.most)
    return _Fitted(lines, value, column, Measurement(least, max(text, both)))


def _gives_way(value: str | Cell | Bar) -> bool:
    """Whether it can be drawn in less room with nothing lost."""
    return isinstance(value, Bar) or bool(cell(value).note)


def _both(shown: Cell) -> str:
    """A cell on one line; its note stands below where there is no room for that."""
    return f"{shown.text}: {shown.note}" if shown.note else shown.text
