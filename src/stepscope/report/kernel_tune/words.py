"""The words that every report of a kernel's tuning has in common."""

from __future__ import annotations

from stepscope.core.experiments.kernel_tuning import (
    FAILED,
    RIGHT,
    WRONG,
    CaseResult,
    Deviation,
    KernelTuning,
    Timed,
    Trying,
)
from stepscope.core.experiments.trials import Value
from stepscope.report.units import percent, plural, short_time

MAX_ROWS = 12
"""Configurations of one case in a table, the fastest first."""


def settings_words(one: Trying) -> str:
    return (
        ", ".join(f"{name}={_value(value)}" for name, value in one.settings.items()) or "as it is"
    )


def _value(value: Value) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def head_words(found: KernelTuning) -> str:
    counts = [
        (sum(one.outcome == outcome for one in found.tryings), outcome)
        for outcome in (RIGHT, WRONG, FAILED, "not tried")
    ]
    told = ", ".join(f"{num} {outcome}" for num, outcome in counts if num)
    return f"{found.what} on {found.device}: {plural(len(found.tryings), 'configuration')}, {told}."


def how_words(found: KernelTuning) -> str:
    what = "forward and backward" if found.has_gradients else "forward"
    by = (
        "the device alone"
        if found.by == "device" and found.device_kind != "cpu"
        else "one call after another"
    )
    gradients = " and its gradients" if found.gradients_checked else ""
    return (
        f"Checked against {found.reference}{gradients} in {plural(len(found.checked), 'case')}; "
        f"timed {what}, {by}, "
        f"{found.caches} caches, in turns."
    )


def verdict_words(found: KernelTuning, result: CaseResult) -> str:
    """One case's answer in a sentence."""
    where = result.case.words
    if result.winner is None:
        return f"{where}: no configuration can be used."
    winner, told = found.tryings[result.winner], result.times[result.winner]
    assert told is not None, "a winner was timed"
    took = f"{short_time(told.ns)}{floor_words(result)}"
    if result.winner == result.baseline:
        return (
            f"{where}: nothing beats it as it is, {took}."
            if not winner.settings
            else f"{where}: the baseline stands, {took}."
        )
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
    found: KernelTuning, result: CaseResult, at: int | None
) -> tuple[str, str, str, str, str]:
    """Time, spread, against the baseline, floor, and name; `at` None is the reference."""
    told = result.reference if at is None else result.times[at]
    assert told is not None, "only what was timed has a row"
    before = None if result.baseline is None else result.times[result.baseline]
    name = "the reference" if at is None else settings_words(found.tryings[at])
    marks = "  <- winner" if at is not None and at == result.winner else ""
    marks += "  (not told from it)" if at is not None and at in result.ties else ""
    return (
        short_time(told.ns),
        _spread(told),
        "-" if before is None else f"{before.ns / told.ns:.2f}x",
        "-" if not result.floor.ns else percent(result.floor.ns / told.ns),
        name + marks,
    )


def _spread(told: Timed) -> str:
    return f"{percent((told.high_ns - told.low_ns) / told.ns)}"


def order(result: CaseResult) -> list[int | None]:
    """The rows of a case, the fastest first; the winner, the baseline and the reference are always
    among them."""
    timed: list[tuple[float, int]] = sorted(
        (one.ns, at) for at, one in enumerate(result.times) if one is not None
    )
    kept = [at for _, at in timed[:MAX_ROWS]]
    kept += [at for at in (result.winner, result.baseline) if at is not None and at not in kept]
    rows: list[int | None] = list(kept)
    if result.reference is not None:
        rows.append(None)
    return sorted(rows, key=lambda at: _ns(result, at))


def _ns(result: CaseResult, at: int | None) -> float:
    told = result.reference if at is None else result.times[at]
    return float("inf") if told is None else told.ns


def fault_words(one: Trying) -> str:
    """Why a configuration was not timed."""
    if one.outcome == WRONG and one.worst is not None:
        return deviation_words(one.worst)
    where = "" if one.failed_at is None else f" at {one.failed_at.words}"
    return f"{one.why or 'not known'}{where}"


def deviation_words(one: Deviation) -> str:
    if one.error is None or one.allowed is None:
        return f"{one.output} {one.measure}, at {one.case.words}"
    told = (
        f"{one.output} is off by {one.error:.2g} ({one.measure}; {one.allowed:.2g} allowed) at "
        f"{one.case.words}"
    )
    return f"{told}. That may be rounding: --tolerance allows more" if one.may_be_rounding else told
