"""A comparison in the terminal: the answer, then where the difference lies."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from stepscope.core.comparison import Comparison
from stepscope.report.comparison.page import QUIET, ComparisonPage, Line, Table, chosen, page_of
from stepscope.report.comparison.words import letter
from stepscope.report.document.blocks import MOST_NOTES as MAX_NOTES
from stepscope.report.document.terminal import MAX_WIDTH, MIN_WIDTH, PLAIN_WIDTH
from stepscope.report.sheet import GAP, INDENT, Column, Sheet
from stepscope.report.units import percent, plural

NAMES = 44
LONG = 60
"""Cells of a name, and of work with what became of it."""


def render_comparisons(comparisons: Sequence[Comparison], *, width: int = PLAIN_WIDTH) -> str:
    """The report as plain text."""
    console = Console(file=io.StringIO(), width=width, color_system=None, no_color=True, legacy_windows=False)
    with console.capture() as captured:
        show_comparisons(comparisons, console)
    return captured.get()


def show_comparisons(comparisons: Sequence[Comparison], console: Console) -> None:
    """Print the report: each against the first."""
    utf8 = "utf" in console.encoding.lower()
    fancy = utf8 and console.is_terminal and console.color_system is not None
    for place, comparison in enumerate(comparisons, start=1):
        sheet = Sheet(max(MIN_WIDTH, min(console.width, MAX_WIDTH)), fancy=fancy, ascii_only=not utf8)
        if place > 1:
            sheet.lines.append(Text("-" * sheet.width, "dim"))
        _draw(sheet, page_of(comparison, letter(place)))
        for line in sheet.lines:
            console.print(line, no_wrap=True, overflow="ignore", crop=False)


def _draw(sheet: Sheet, page: ComparisonPage) -> None:
    for warning in page.warnings:
        sheet.prose(warning, style="bold red")
    sheet.blank()
    sheet.prose(page.headline, style="bold")
    for fact in page.facts:
        sheet.prose(fact, style="dim")
    for table in page.tables:
        if not table.is_quiet:
            sheet.heading(table.title, table.aside)
            _draw_table(sheet, table)
    quiet = [table.title.removeprefix("By ").lower() for table in page.tables if table.is_quiet]
    if quiet:
        sheet.blank()
        sheet.prose(f"By {', '.join(quiet)}: nothing changed by {percent(QUIET)} of the step.", style="dim")
    if page.notes:
        sheet.heading("Notes", "what this rests on, and what could not be judged")
        for note in page.notes[:MAX_NOTES]:
            sheet.prose(note, indent=4, lead="  -")
        if len(page.notes) > MAX_NOTES:
            sheet.prose(f"and {plural(len(page.notes) - MAX_NOTES, 'note')} more", indent=4, style="dim")


def _draw_table(sheet: Sheet, table: Table) -> None:
    shown, left_out = chosen(table)
    titles, rows = list(table.columns), [_row(line) for line in shown]
    if table.name == "changed":
        titles, rows = _folded(titles, rows, sheet.width)
    columns = [
        Column(title=title, right=place in table.right, shrinks=place in table.wide, most=NAMES if len(table.wide) == 1 else LONG)
        for place, title in enumerate(titles)
    ]
    if table.name in ("knobs", "held"):
        columns = [Column(title=column.title, shrinks=True, most=column.most) for column in columns]
    sheet.table(columns, rows)
    if left_out:
        sheet.prose(f"and {plural(left_out, 'line')} more, in --format json and html", indent=2, style="dim")


def _folded(titles: list[str], rows: list[list[Text]], width: int) -> tuple[list[str], list[list[Text]]]:
    """The last column behind the one before it, or below where both do not fit: two names on one line would both be cut.

    -2.96  3.39  0.43  20 to 1  mul, add_, tanh (backward)
                                replaced by triton_poi_fused_add_cos
    """
    widths = [max(cell_len(row[place].plain) for row in [[*map(Text, titles)], *rows]) for place in range(len(titles))]
    room = width - INDENT - sum(widths[:-2]) - GAP * (len(widths) - 2)
    if widths[-2] + GAP + widths[-1] <= room:
        return titles, rows
    folded: list[list[Text]] = []
    for row in rows:
        work, how = row[-2:]
        both = f"{work.plain}: {how.plain}" if how.plain else work.plain
        if cell_len(both) <= room:
            folded.append([*row[:-2], Text(both, work.style)])
        else:
            folded.append([*row[:-2], work])
            folded.append([*(Text("") for _ in row[:-2]), Text(how.plain, how.style)])
    return [*titles[:-2], f"{titles[-2]}, and {titles[-1]} it changed"], folded


def _row(line: Line) -> list[Text]:
    style = "bold" if line.is_total else "dim" if line.is_rest else ""
    return [Text(cell, style) for cell in line.cells]
