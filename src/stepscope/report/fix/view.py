"""What became of a run's findings: before and after, each finding, and what is left to do."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from stepscope.core.experiments.experiment import UNSETTLED
from stepscope.core.experiments.fixed import (
    BY_HAND,
    KEPT,
    NOT_RUN,
    NOT_TRIED,
    REVERTED,
    Attempt,
    Fixed,
)
from stepscope.core.experiments.trials import Change
from stepscope.report.document.blocks import (
    Block,
    Column,
    Headline,
    Items,
    Section,
    Table,
    as_document,
    notes,
)
from stepscope.report.verify.view import LARGE, change_words, interval_words
from stepscope.report.words import plural, short_time


def head_words(fixed: Fixed) -> str:
    """Sentence with before and after."""
    findings = plural(len(fixed.attempts), "finding")
    if not fixed.attempts:
        return "Nothing was found to fix."
    if all(attempt.verified is None for attempt in fixed.attempts):
        can = sum(attempt.outcome == NOT_TRIED for attempt in fixed.attempts)
        if not can:
            return f"{findings}, none of which can be set from outside: nothing was run."
        return (
            f"{findings}, {can} of which can be tried from outside. "
            "Nothing was run: --verify tries them, one at a time."
        )
    kept = [attempt for attempt in fixed.attempts if attempt.outcome == KEPT]
    if not kept:
        ended = " before it was interrupted" if fixed.is_interrupted else ""
        return (
            f"Nothing was kept of {findings}: no fix that could be set from outside "
            f"was proven to be faster{ended}."
        )
    is_one = len(kept) == 1
    when = "proven when it was tried" if is_one else "each proven against what was kept before it"
    each = f"{len(kept)} of {findings} fixed, {when}"
    if fixed.whole is None and is_one:
        ended = "was interrupted" if fixed.is_interrupted else "the budget had no room for that"
        return (
            f"{each}; that was to be measured afresh against the command as it was given, and "
            f"{ended}."
        )
    if fixed.whole is None:
        ended = "it was interrupted" if fixed.is_interrupted else "the budget had no room for it"
        return f"{each}; that all of them together are faster was not proven: {ended}."
    if fixed.whole.speedup is None or not fixed.is_faster:
        again = "together they are"
        if is_one:
            again = "measured afresh against the command as it was given, it is"
        more = " Give longer runs (--steps), or more of them (--max-rounds)."
        if fixed.whole.verdict != UNSETTLED:
            more = ""
        return (
            f"{each}; {again} not proven to be faster: {fixed.whole.verdict}, "
            f"{fixed.whole.because}.{more}"
        )
    before, after = fixed.whole.baseline.ms, fixed.whole.candidate.ms
    times = ""
    if before is not None and after is not None:
        times = f", {short_time(before * 1e6)} a step before, {short_time(after * 1e6)} after"
    return f"{len(kept)} of {findings} fixed: {interval_words(fixed.whole.speedup)}{times}."


def predicted_words(attempt: Attempt) -> str:
    predicted = attempt.predicted
    if predicted.low is None or predicted.high is None or predicted.low == predicted.high:
        return f"{predicted.value:.2f}x"
    return f"{predicted.value:.2f}x ({predicted.low:.2f}-{predicted.high:.2f})"


def gave_words(attempt: Attempt) -> str:
    speedup = None if attempt.verified is None else attempt.verified.speedup
    if speedup is None:
        return "-"
    is_told = speedup.highest <= LARGE
    if is_told:
        return f"{speedup.value:.2f}x ({speedup.lowest:.2f}-{speedup.highest:.2f})"
    return f"{speedup.value:.2f}x"


def knob_words(attempt: Attempt) -> str:
    return change_words(Change(knobs=attempt.knobs)) or "-"


@as_document
def fixed_document(fixed: Fixed) -> Iterator[Block]:
    yield Headline(
        command="stepscope fix",
        text=head_words(fixed),
        about=(f"command: {shlex.join(fixed.command)}",),
        tone="good" if fixed.is_faster else "",
    )
    is_plan = all(attempt.verified is None for attempt in fixed.attempts)
    if fixed.attempts:
        yield _findings_section(fixed, is_plan=is_plan)
    asides = {
        KEPT: ("To make it stay", "change the code; what was set from outside ends with each run"),
        REVERTED: ("Reverted", "and why"),
        BY_HAND: ("By hand", "not tried from outside"),
        NOT_TRIED: ("Would be tried", "set from outside") if is_plan else ("Not tried", ""),
    }
    for outcome, (title, aside) in asides.items():
        chosen = [attempt for attempt in fixed.attempts if attempt.outcome == outcome]
        if chosen:
            lines = tuple(f"{attempt.code}: {_rest_words(attempt)}" for attempt in chosen)
            yield Section(title=title, aside=aside, blocks=(Items(lines),))
    kept = [f"the runs are kept in {fixed.folder}"] if fixed.folder else []
    yield from notes([*fixed.notes, *kept], aside="")


def _findings_section(fixed: Fixed, *, is_plan: bool) -> Section:
    titles = ("", "finding", "predicted", "gave", "outcome")
    rows = tuple(
        (str(at), each.code, predicted_words(each), gave_words(each), each.outcome)
        for at, each in enumerate(fixed.attempts, 1)
    )
    table = Table(columns=tuple(Column(title=title) for title in titles), rows=rows)
    against = "" if is_plan else "; each was compared with what had been kept before it"
    return Section(title="Findings", aside=f"from the top{against}", blocks=(table,))


def _rest_words(attempt: Attempt) -> str:
    """What to do about it, or what was set and why it did not stay."""
    if attempt.outcome == BY_HAND:
        return f"{attempt.action} ({attempt.why})" if attempt.knobs else attempt.action
    if attempt.outcome == KEPT:
        return f"{attempt.action} (tried as {knob_words(attempt)})"
    if attempt.verified is None and attempt.why == NOT_RUN:
        return knob_words(attempt)
    return f"{knob_words(attempt)}: {attempt.why}"
