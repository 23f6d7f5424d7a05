"""A kernel's tuning in the terminal: the answer for each case, the times, and what was wrong or failed."""

from __future__ import annotations

import io

from rich.console import Console

from stepscope.core.kernel_tuning import FAILED, WRONG, CaseResult, KernelTuning
from stepscope.report.document.blocks import MOST_NOTES as MAX_NOTES
from stepscope.report.document.terminal import MAX_WIDTH, MIN_WIDTH, PLAIN_WIDTH
from stepscope.report.kernel_tune.words import fault_words, head_words, how_words, order, row_words, settings_words, verdict_words
from stepscope.report.sheet import Column, Sheet
from stepscope.report.units import plural

MAX_FAULTS = 16


def render_kernel_tuning(found: KernelTuning, *, width: int = PLAIN_WIDTH) -> str:
    """The report as plain text."""
    console = Console(file=io.StringIO(), width=width, color_system=None, no_color=True, legacy_windows=False)
    with console.capture() as captured:
        show_kernel_tuning(found, console)
    return captured.get()


def show_kernel_tuning(found: KernelTuning, console: Console) -> None:
    """Print the report."""
    utf8 = "utf" in console.encoding.lower()
    fancy = utf8 and console.is_terminal and console.color_system is not None
    sheet = Sheet(max(MIN_WIDTH, min(console.width, MAX_WIDTH)), fancy=fancy, ascii_only=not utf8)
    _draw(sheet, found)
    for line in sheet.lines:
        console.print(line, no_wrap=True, overflow="ignore", crop=False)


def _draw(sheet: Sheet, found: KernelTuning) -> None:
    sheet.prose(head_words(found))
    sheet.prose(how_words(found), style="dim")
    sheet.blank()
    for result in found.cases:
        sheet.prose(verdict_words(found, result), style="bold")
    if len(found.cases) > 1 and found.overall is not None:
        sheet.prose(f"One setting for all of them: {settings_words(found.tryings[found.overall])}.", style="bold")
    for result in found.cases:
        _draw_case(sheet, found, result)
    _draw_faults(sheet, found, WRONG, "Wrong", "never timed: the comparison that is farthest off")
    _draw_faults(sheet, found, FAILED, "Failed", "raised, died or took too long")
    _draw_notes(sheet, found)


def _draw_case(sheet: Sheet, found: KernelTuning, result: CaseResult) -> None:
    rows = order(result)
    if not rows:
        return
    num = sum(one is not None for one in result.times)
    sheet.heading(result.case.words, f"{plural(num, 'configuration')} timed")
    columns = (
        Column(title="time", right=True),
        Column(title="spread", right=True),
        Column(title="speedup", right=True),
        Column(title="of floor", right=True),
        Column(title="settings", shrinks=True),
    )
    sheet.table(columns, [row_words(found, result, at) for at in rows])


def _draw_faults(sheet: Sheet, found: KernelTuning, outcome: str, title: str, aside: str) -> None:
    faults = [one for one in found.tryings if one.outcome == outcome]
    if not faults:
        return
    sheet.heading(title, aside)
    for one in faults[:MAX_FAULTS]:
        sheet.prose(f"{settings_words(one)}: {fault_words(one)}", indent=4, lead="  -")
    if len(faults) > MAX_FAULTS:
        sheet.prose(f"and {len(faults) - MAX_FAULTS} more", indent=4, style="dim")


def _draw_notes(sheet: Sheet, found: KernelTuning) -> None:
    if not found.notes:
        return
    sheet.heading("Notes", "what could not be judged, and why")
    for note in found.notes[:MAX_NOTES]:
        sheet.prose(note, indent=4, lead="  -")
