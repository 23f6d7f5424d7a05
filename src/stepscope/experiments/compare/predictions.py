"""Whether what the first run's diagnosis predicted is what the second one gave."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.core.diagnosis import Finding
from stepscope.core.experiments.comparison import Held, Speedup
from stepscope.experiments.compare.side import CompareSide
from stepscope.experiments.compare.speed import is_host_slowed

AGREES = 0.15
"""A range that was predicted and comes within this share of what was measured agrees with it: how
runs differ by themselves is in no interval over steps."""


def slowed_by_profiler(before: CompareSide, after: CompareSide, *, profiled: bool) -> bool:
    """Whether the ratio is not that of the steps without a profiler: it slows the host, and the
    device waits for the host."""
    return profiled and any(
        is_host_slowed(
            None if side.parts_ns is None else side.parts_ns["idle_launch"],
            side.recorded_ns,
            side.bound,
        )
        for side in (before, after)
    )


def held_findings(
    before: CompareSide, after: CompareSide, speedup: Speedup, *, profiled: bool
) -> tuple[Held, ...]:
    """The first run's findings compared with the second's, then those that are new."""
    codes = {finding.code for finding in after.findings}
    statuses = [_status(finding, codes, before, after) for finding in before.findings]
    # A larger batch is other work, which is not compared: where it no longer pays, another fix was
    # made.
    gone = [
        finding
        for finding, status in zip(before.findings, statuses, strict=True)
        if status == "gone" and finding.samples_times == 1
    ]
    # Of fixes that exclude one another one was made: the first of them is what was promised.
    is_one = bool(gone) and all(f.code in gone[0].excludes for f in gone[1:])
    is_shown = is_one and not slowed_by_profiler(before, after, profiled=profiled)
    held = []
    for finding, status in zip(before.findings, statuses, strict=True):
        measured = speedup.value if status == "gone" else None
        agrees = None
        if measured is not None and is_shown and finding is gone[0]:
            agrees = _agrees(finding.predicted_low, finding.predicted_high, speedup)
        held.append(_held(finding, status, measured, agrees))
    old = {finding.code for finding in before.findings}
    held += [_held(finding, "new") for finding in after.findings if finding.code not in old]
    return tuple(held)


def _held(
    finding: Finding, status: str, measured: float | None = None, agrees: bool | None = None
) -> Held:
    return Held(
        code=finding.code,
        status=status,
        predicted=finding.predicted_speedup,
        predicted_low=finding.predicted_low,
        predicted_high=finding.predicted_high,
        measured=measured,
        agrees=agrees,
    )


def _status(finding: Finding, codes: set[str], before: CompareSide, after: CompareSide) -> str:
    if finding.code in codes:
        return "still there"
    # What several ranks tell together is not seen in the trace of one.
    is_blind = (
        finding.code in after.abstained
        or not after.is_judged
        or after.num_missing > before.num_missing
    )
    return "not judged" if is_blind else "gone"


def predicted_together(before: CompareSide, held: Sequence[Held]) -> float | None:
    """The ladder has the gain of the first findings at once."""
    fixed = {finding.code for finding in held if finding.status == "gone"}
    first = {finding.code for finding in before.findings[: len(fixed)]}
    if len(fixed) < 2 or fixed != first or len(before.ladder) < len(fixed):
        return None
    return before.ladder[len(fixed) - 1]


def _agrees(low: float, high: float, speedup: Speedup) -> bool:
    value = speedup.value or 0.0
    least, most = speedup.low or value, speedup.high or value
    return least <= high * (1 + AGREES) and most >= low * (1 - AGREES)
