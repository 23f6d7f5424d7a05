"""A kernel's tuning: the answer for each case, the times, and what was wrong or failed."""

from __future__ import annotations

from collections.abc import Iterator

from stepscope.core.experiments.trials import Value
from stepscope.report.document.blocks import (
    Block,
    Column,
    Headline,
    Items,
    Prose,
    Section,
    Table,
    as_document,
    notes,
    numbers,
)
from stepscope.report.words import percent, plural, short_time
from stepscope.tune.shapes.kernel_tuning import (
    FAILED,
    RIGHT,
    WRONG,
    CaseResult,
    Deviation,
    KernelTuning,
    Trying,
)

MAX_ROWS = 12
"""Configurations of one case in a table, the fastest first."""


def settings_words(trying: Trying) -> str:
    return (
        ", ".join(f"{name}={_value(value)}" for name, value in trying.settings.items())
        or "as it is"
    )


def _value(value: Value) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def head_words(tuning: KernelTuning) -> str:
    counts = [
        (sum(trying.outcome == outcome for trying in tuning.tryings), outcome)
        for outcome in (RIGHT, WRONG, FAILED, "not tried")
    ]
    outcomes = ", ".join(f"{num} {outcome}" for num, outcome in counts if num)
    configurations = plural(len(tuning.tryings), "configuration")
    return f"{tuning.what} on {tuning.device.name}: {configurations}, {outcomes}."


def how_words(tuning: KernelTuning) -> str:
    what = "forward and backward" if tuning.measured.gradients else "forward"
    by = "one call after another"
    if tuning.measured.by == "device" and tuning.device.kind != "cpu":
        by = "the device alone"
    gradients = " and its gradients" if tuning.check.gradients else ""
    cases = plural(len(tuning.check.cases), "case")
    return (
        f"Checked against {tuning.reference}{gradients} in {cases}; "
        f"timed {what}, {by}, {tuning.measured.caches} caches, in turns."
    )


def verdict_words(tuning: KernelTuning, result: CaseResult) -> str:
    """One case's answer in a sentence."""
    where = result.case.words
    if result.winner is None:
        return f"{where}: no configuration can be used."
    winner, timed = tuning.tryings[result.winner], result.times[result.winner]
    assert timed is not None, "a winner was timed"
    took = f"{short_time(timed.ns)}{floor_words(result)}"
    if result.winner == result.baseline:
        if not winner.settings:
            return f"{where}: nothing beats it as it is, {took}."
        return f"{where}: the baseline stands, {took}."
    name = settings_words(winner)
    if result.gain is None:
        return f"{where}: {name}, {took}."
    gain = result.gain
    return f"{where}: {name}, {gain.value:.2f}x faster ({gain.low:.2f}-{gain.high:.2f}), {took}."


def floor_words(result: CaseResult) -> str:
    share = result.share_of_floor
    if share is None:
        return ""
    if result.floor.fits_cache and share > 1:
        return ", below the floor of memory, as its data stays in the cache"
    return f", {percent(share)} of the {result.floor.bound} floor's speed"


def row_words(
    tuning: KernelTuning, result: CaseResult, index: int | None
) -> tuple[str, str, str, str, str]:
    """Time, spread, against the baseline, floor, and name; `at` None is the reference."""
    timed = result.reference if index is None else result.times[index]
    assert timed is not None, "only what was timed has a row"
    before = None if result.baseline is None else result.times[result.baseline]
    name = "the reference" if index is None else settings_words(tuning.tryings[index])
    marks = "  <- winner" if index is not None and index == result.winner else ""
    marks += "  (no clear difference)" if index is not None and index in result.ties else ""
    return (
        short_time(timed.ns),
        f"{percent((timed.high_ns - timed.low_ns) / timed.ns)}",
        "-" if before is None else f"{before.ns / timed.ns:.2f}x",
        "-" if not result.floor.ns else percent(result.floor.ns / timed.ns),
        name + marks,
    )


def order(result: CaseResult) -> list[int | None]:
    """The rows of a case, the fastest first; the winner, the baseline and the reference are always
    among them."""
    timed: list[tuple[float, int]] = sorted(
        (time.ns, index) for index, time in enumerate(result.times) if time is not None
    )
    kept = [index for _, index in timed[:MAX_ROWS]]
    kept += [
        index
        for index in (result.winner, result.baseline)
        if index is not None and index not in kept
    ]
    rows: list[int | None] = list(kept)
    if result.reference is not None:
        rows.append(None)
    return sorted(rows, key=lambda index: _ns(result, index))


def _ns(result: CaseResult, index: int | None) -> float:
    timed = result.reference if index is None else result.times[index]
    return float("inf") if timed is None else timed.ns


def fault_words(trying: Trying) -> str:
    """Why a configuration was not timed."""
    if trying.outcome == WRONG and trying.worst is not None:
        return deviation_words(trying.worst)
    where = "" if trying.failed_at is None else f" at {trying.failed_at.words}"
    return f"{trying.why or 'not known'}{where}"


def deviation_words(deviation: Deviation) -> str:
    if deviation.error is None or deviation.allowed is None:
        return f"{deviation.output} {deviation.measure}, at {deviation.case.words}"
    words = (
        f"{deviation.output} is off by {deviation.error:.2g} ({deviation.measure}; "
        f"{deviation.allowed:.2g} allowed) at {deviation.case.words}"
    )
    if deviation.may_be_rounding:
        return f"{words}. That may be rounding: --tolerance allows more"
    return words


MAX_FAULTS = 16


@as_document
def kernel_tuning_document(tuning: KernelTuning) -> Iterator[Block]:
    yield Headline(command="stepscope tune kernel", text=head_words(tuning))
    yield Prose(how_words(tuning), "quiet")
    for result in tuning.cases:
        yield Prose(verdict_words(tuning, result), "strong")
    if len(tuning.cases) > 1 and tuning.overall is not None:
        setting = settings_words(tuning.tryings[tuning.overall])
        yield Prose(f"One setting for all of them: {setting}.", "strong")
    for result in tuning.cases:
        yield from _case_sections(tuning, result)
    aside = "never timed: the comparison that is farthest off"
    yield from _fault_sections(tuning, WRONG, "Wrong", aside)
    yield from _fault_sections(tuning, FAILED, "Failed", "raised, died or took too long")
    yield from notes(tuning.notes)


def _case_sections(tuning: KernelTuning, result: CaseResult) -> Iterator[Section]:
    rows = tuple(row_words(tuning, result, at) for at in order(result))
    if rows:
        columns = (
            *numbers("time", "spread", "speedup", "of floor"),
            Column(title="settings", fit="shorten"),
        )
        num = sum(timed is not None for timed in result.times)
        aside = f"{plural(num, 'configuration')} timed"
        yield Section(
            title=result.case.words, aside=aside, blocks=(Table(columns=columns, rows=rows),)
        )


def _fault_sections(
    tuning: KernelTuning, outcome: str, title: str, aside: str
) -> Iterator[Section]:
    faults = [
        f"{settings_words(each)}: {fault_words(each)}"
        for each in tuning.tryings
        if each.outcome == outcome
    ]
    if faults:
        num = len(faults) - MAX_FAULTS
        rest = (Prose(f"and {num} more", "quiet"),) if num > 0 else ()
        yield Section(title=title, aside=aside, blocks=(Items(tuple(faults[:MAX_FAULTS])), *rest))
