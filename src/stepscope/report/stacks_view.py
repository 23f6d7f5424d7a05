"""Where the ranks stand, in the terminal: the answer, then each rank's state and place."""

from __future__ import annotations

import io
import os

from rich.console import Console
from rich.text import Text

from stepscope.core.numbers import number_ranges
from stepscope.core.stacks import Comparison, Frame, Standing
from stepscope.report.document.terminal import MAX_WIDTH, MIN_WIDTH, PLAIN_WIDTH
from stepscope.report.sheet import Column, Sheet

MAX_PLACES = 12


def render_stacks(comparison: Comparison, *, width: int = PLAIN_WIDTH) -> str:
    """The report as plain text."""
    console = Console(file=io.StringIO(), width=width, color_system=None, no_color=True, legacy_windows=False)
    with console.capture() as captured:
        show_stacks(comparison, console)
    return captured.get()


def show_stacks(comparison: Comparison, console: Console) -> None:
    utf8 = "utf" in console.encoding.lower()
    sheet = Sheet(max(MIN_WIDTH, min(console.width, MAX_WIDTH)), fancy=False, ascii_only=not utf8)
    _draw(sheet, comparison)
    for line in sheet.lines:
        console.print(line, no_wrap=True, overflow="ignore", crop=False)


def _draw(sheet: Sheet, comparison: Comparison) -> None:
    sheet.prose(comparison.summary, style="bold")
    sheet.heading("Where they stand")
    groups: dict[tuple[object, ...], list[Standing]] = {}
    for one in sorted(comparison.ranks, key=lambda one: not one.is_elsewhere):
        groups.setdefault((one.is_elsewhere, one.state, one.where, one.inside, one.problem), []).append(one)
    columns = (Column(title="rank", shrinks=True), Column(title="pid", shrinks=True), Column(title="state"), Column(title="in"))
    shown = list(groups.values())[:MAX_PLACES]
    sheet.table(columns, [_row(group) for group in shown])
    if len(groups) > len(shown):
        sheet.prose(f"and {len(groups) - len(shown)} more places", indent=2, style="dim")
    for group in shown:
        _draw_place(sheet, group)


def _row(group: list[Standing]) -> tuple[str | Text, ...]:
    one = group[0]
    ranks = [rank.rank for rank in group if rank.rank is not None]
    many = f" alike ({len(group)})" if len(group) > 1 else ""
    where = one.collective or one.inside or (one.where[0].name if one.where else "no Python code")
    name = (number_ranges(ranks) if ranks else "-") + many
    return (Text(name, "bold" if one.is_elsewhere else ""), str(one.pid), one.state, where if one.problem is None else "not seen")


def _draw_place(sheet: Sheet, group: list[Standing]) -> None:
    one = group[0]
    ranks = [rank.rank for rank in group if rank.rank is not None]
    who = f"rank {number_ranges(ranks)}" if ranks else f"process {one.pid}"
    if one.problem is not None:
        sheet.entry(who, one.problem)
        return
    places = [*([one.inside] if one.inside else []), *map(_frame_words, one.where)]
    for number, place in enumerate(places or ["no Python code"]):
        sheet.entry(who if number == 0 else "", place if number == 0 else f"from {place}")


def _frame_words(frame: Frame) -> str:
    return f"{frame.name} ({os.path.basename(frame.file)}:{frame.line})"
