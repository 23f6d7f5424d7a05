"""What became of a run's findings, in the terminal: before and after, each finding, and what is left to do."""

from __future__ import annotations

import io
import shlex

from rich.console import Console

from stepscope.core.experiment import UNSETTLED
from stepscope.core.fixed import BY_HAND, KEPT, NOT_RUN, NOT_TRIED, REVERTED, Attempt, Fixed
from stepscope.core.trials import Change
from stepscope.report.document.blocks import MOST_NOTES as MAX_NOTES
from stepscope.report.document.terminal import MAX_WIDTH, MIN_WIDTH, PLAIN_WIDTH
from stepscope.report.sheet import Column, Sheet
from stepscope.report.units import plural, short_time
from stepscope.report.verify.view import LARGE, change_words, interval_words

STYLES = {KEPT: "green", REVERTED: "red"}


def render_fixed(fixed: Fixed, *, width: int = PLAIN_WIDTH) -> str:
    """The report as plain text."""
    console = Console(file=io.StringIO(), width=width, color_system=None, no_color=True, legacy_windows=False)
    with console.capture() as captured:
        show_fixed(fixed, console)
    return captured.get()


def show_fixed(fixed: Fixed, console: Console) -> None:
    """Print the report."""
    utf8 = "utf" in console.encoding.lower()
    fancy = utf8 and console.is_terminal and console.color_system is not None
    sheet = Sheet(max(MIN_WIDTH, min(console.width, MAX_WIDTH)), fancy=fancy, ascii_only=not utf8)
    _draw(sheet, fixed)
    for line in sheet.lines:
        console.print(line, no_wrap=True, overflow="ignore", crop=False)


def head_words(fixed: Fixed) -> str:
    """Before and after in a sentence."""
    found = plural(len(fixed.attempts), "finding")
    if not fixed.attempts:
        return "Nothing was found to fix."
    if all(one.verified is None for one in fixed.attempts):
        can = sum(one.outcome == NOT_TRIED for one in fixed.attempts)
        return f"{found}, {can} of which can be tried from outside. Nothing was run: --verify tries them, one at a time."
    kept = [one for one in fixed.attempts if one.outcome == KEPT]
    if not kept:
        ended = " before it was interrupted" if fixed.is_interrupted else ""
        return f"Nothing was kept of {found}: no fix that could be set from outside was proven to be faster{ended}."
    is_one = len(kept) == 1
    when = "proven when it was tried" if is_one else "each proven against what was kept before it"
    each = f"{len(kept)} of {found} fixed, {when}"
    if fixed.whole is None and is_one:
        ended = "was interrupted" if fixed.is_interrupted else "the budget had no room for that"
        return f"{each}; that was to be measured afresh against the command as it was given, and {ended}."
    if fixed.whole is None:
        ended = "it was interrupted" if fixed.is_interrupted else "the budget had no room for it"
        return f"{each}; that all of them together are faster was not proven: {ended}."
    if fixed.whole.speedup is None or not fixed.is_faster:
        again = "measured afresh against the command as it was given, it is" if is_one else "together they are"
        more = " Give longer runs (--steps), or more of them (--max-rounds)." if fixed.whole.verdict == UNSETTLED else ""
        return f"{each}; {again} not proven to be faster: {fixed.whole.verdict}, {fixed.whole.because}.{more}"
    before, after = fixed.whole.baseline.step_ns, fixed.whole.candidate.step_ns
    times = "" if before is None or after is None else f", {short_time(before)} a step before, {short_time(after)} after"
    return f"{len(kept)} of {found} fixed: {interval_words(fixed.whole.speedup)}{times}."


def predicted_words(attempt: Attempt) -> str:
    told = attempt.predicted
    if told.low is None or told.high is None or told.low == told.high:
        return f"{told.value:.2f}x"
    return f"{told.value:.2f}x ({told.low:.2f}-{told.high:.2f})"


def gave_words(attempt: Attempt) -> str:
    speedup = None if attempt.verified is None else attempt.verified.speedup
    if speedup is None:
        return "-"
    is_told = speedup.is_bounded and speedup.high <= LARGE
    return f"{speedup.value:.2f}x ({speedup.low:.2f}-{speedup.high:.2f})" if is_told else f"{speedup.value:.2f}x"


def knob_words(attempt: Attempt) -> str:
    return change_words(Change(knobs=attempt.knobs)) or "-"


def _draw(sheet: Sheet, fixed: Fixed) -> None:
    sheet.prose(sheet.clean(f"command: {shlex.join(fixed.command)}"), style="dim")
    sheet.blank()
    sheet.prose(sheet.clean(head_words(fixed)), style="bold green" if fixed.is_faster else "bold")
    is_plan = all(one.verified is None for one in fixed.attempts)
    if fixed.attempts:
        sheet.heading(
            "Findings", "from the top" if is_plan else "from the top; each was compared with what had been kept before it"
        )
        columns = (
            Column(title=""),
            Column(title="finding"),
            Column(title="predicted"),
            Column(title="gave"),
            Column(title="outcome"),
        )
        sheet.table(
            columns,
            [(str(at), one.code, predicted_words(one), gave_words(one), one.outcome) for at, one in enumerate(fixed.attempts, 1)],
        )
    _draw_rest(sheet, fixed, KEPT, "To make it stay", "change the code; what was set from outside ends with each run")
    _draw_rest(sheet, fixed, REVERTED, "Reverted", "and why")
    _draw_rest(sheet, fixed, BY_HAND, "By hand", "not tried from outside")
    _draw_rest(sheet, fixed, NOT_TRIED, "Would be tried" if is_plan else "Not tried", "set from outside" if is_plan else "")
    _draw_notes(sheet, fixed)


def _draw_rest(sheet: Sheet, fixed: Fixed, outcome: str, title: str, beside: str) -> None:
    chosen = [one for one in fixed.attempts if one.outcome == outcome]
    if not chosen:
        return
    sheet.heading(title, beside)
    for one in chosen:
        sheet.prose(sheet.clean(f"{one.code}: {_rest_words(one)}"), indent=4, lead="  -")


def _rest_words(one: Attempt) -> str:
    """What to do about it, or what was set and why it did not stay."""
    if one.outcome == BY_HAND:
        return f"{one.action} ({one.why})" if one.knobs else one.action
    if one.outcome == KEPT:
        return f"{one.action} (tried as {knob_words(one)})"
    return knob_words(one) if one.verified is None and one.why == NOT_RUN else f"{knob_words(one)}: {one.why}"


def _draw_notes(sheet: Sheet, fixed: Fixed) -> None:
    notes = [*fixed.notes, *([f"the runs are kept in {fixed.folder}"] if fixed.folder else [])]
    if not notes:
        return
    sheet.heading("Notes")
    for note in notes[:MAX_NOTES]:
        sheet.prose(sheet.clean(note), indent=4, lead="  -")
