"""A search in the terminal: the verdict, what to write, the trials with the best on top, and which knob matters."""

from __future__ import annotations

import io
import shlex

from rich.console import Console

from stepscope.core.tuning import PROVEN, REFUSED, Tuning
from stepscope.report.document.blocks import MOST_NOTES as MAX_NOTES
from stepscope.report.document.terminal import MAX_WIDTH, MIN_WIDTH, PLAIN_WIDTH
from stepscope.report.sheet import Column, Sheet
from stepscope.report.tune.words import (
    aside_words,
    budget_words,
    check_words,
    gain_words,
    ordered,
    summary_words,
    time_words,
    value_words,
)
from stepscope.report.units import NBSP, percent, plural

STYLES = {PROVEN: "bold green", REFUSED: "bold red"}
MAX_ROWS = 60


def render_tuning(tuning: Tuning, *, width: int = PLAIN_WIDTH) -> str:
    """The report as plain text."""
    console = Console(file=io.StringIO(), width=width, color_system=None, no_color=True, legacy_windows=False)
    with console.capture() as captured:
        show_tuning(tuning, console)
    return captured.get()


def show_tuning(tuning: Tuning, console: Console) -> None:
    """Print the report."""
    utf8 = "utf" in console.encoding.lower()
    fancy = utf8 and console.is_terminal and console.color_system is not None
    sheet = Sheet(max(MIN_WIDTH, min(console.width, MAX_WIDTH)), fancy=fancy, ascii_only=not utf8)
    _draw(sheet, tuning)
    for line in sheet.lines:
        console.print(line, no_wrap=True, overflow="ignore", crop=False)


def _draw(sheet: Sheet, tuning: Tuning) -> None:
    sheet.prose(sheet.clean(f"tuned: {shlex.join(tuning.command)}"), style="dim")
    sheet.blank()
    sheet.prose(sheet.clean(summary_words(tuning)), style=STYLES.get(tuning.verdict, "bold"))
    if tuning.winner is not None:
        sheet.heading("To write" if tuning.verdict == PROVEN else "What was tried for it")
        for words in tuning.winner.words:
            sheet.prose(sheet.clean(words), indent=2, lead="- ")
        sheet.prose(sheet.clean(check_words(tuning)), indent=2)
    _draw_trials(sheet, tuning)
    if tuning.importance:
        sheet.heading("What matters", "share of the differences that each knob makes")
        rows = [(name, percent(share)) for name, share in sorted(tuning.importance.items(), key=lambda pair: -pair[1])]
        sheet.table([Column(title="knob"), Column(title="share", right=True)], rows)
    notes = [*([] if tuning.spent is None else [budget_words(tuning.spent)]), *tuning.notes]
    if notes:
        sheet.heading("Notes")
        for note in notes[:MAX_NOTES]:
            sheet.prose(sheet.clean(note), indent=2, lead="- ")


def _draw_trials(sheet: Sheet, tuning: Tuning) -> None:
    trials = ordered(tuning)
    of = "" if tuning.size is None else f" of {tuning.size:,} settings".replace(",", NBSP)
    ended = f", {tuning.ended}" if tuning.ended else ""
    sheet.heading("Trials", f"{plural(len(trials), 'trial')}{of} in {tuning.wall_s:.0f} s{ended}")
    names = [knob.name for knob in tuning.knobs]
    columns = [Column(title="trial", right=True), *(Column(title=name, right=True, shrinks=True) for name in names)]
    columns += [Column(title=f"a {tuning.per}", right=True), Column(title="speed", right=True), Column(shrinks=True)]
    rows = [["0", *("" for _ in names), time_words(tuning.baseline), "1x", "as it was given"]]
    for tried in trials[:MAX_ROWS]:
        values = [value_words(tried.settings[name]) if name in tried.settings else "" for name in names]
        rows.append([str(tried.number), *values, time_words(tried), gain_words(tuning, tried), sheet.clean(aside_words(tried))])
    sheet.table(columns, rows)
    if len(trials) > MAX_ROWS:
        sheet.prose(f"and {plural(len(trials) - MAX_ROWS, 'trial')} more, in the JSON", indent=2)
