"""How much faster the second run is, and how sure that is.

Steps with no profiler attached are compared where both runs have them, recorded ones otherwise;
never one kind with the other. The figure of each is the one that a diagnosis gives: of steps with
no profiler the mean without the longest and shortest twentieth, of recorded ones the median.
"""

from __future__ import annotations

import math
import statistics

from msgspec import Struct
from msgspec.structs import asdict

from stepscope.core.experiments.comparison import Speedup, Throughput
from stepscope.core.experiments.experiment import Interval
from stepscope.core.numbers import ms_words
from stepscope.experiments.bootstrap import (
    log_mean_variance,
    ratio_of_medians,
    ratio_of_trimmed_means,
    smallest_shown,
    trimmed_mean,
)
from stepscope.experiments.compare.side import CompareSide

ENOUGH_STEPS = 8
"""Steps a side from which an interval is given: the median of fewer lies outside of all of them too
often."""
Z_KEPT = 1.645
"""A diagnosis keeps nine times in ten of the mean."""
Z = 1.96
ODD = 0.05
"""A ratio of means that steps which save or evaluate move by more than this is reported."""
LAUNCHING = 0.1
"""Share of a recorded step: the device waiting for launches longer than this, the step without a
profiler is another one. The host runs at half to nine tenths of its speed under one."""
NO_SPREAD = (
    "a step time that was given has no spread: record the runs with `stepscope run` to have one"
)
NO_OWN_STEPS = (
    "the interval was not measured: a kept diagnosis has no steps of its own, nor has a log"
)
UNEVEN = 1.2
"""A mean this much longer than the median, or shorter: the steps are of two kinds."""


class Timed(Struct, frozen=True, kw_only=True):
    """The steps of one side that are compared."""

    source: str
    """unprofiled, given, kept or recorded."""
    ns: float | None
    steps: tuple[int, ...] = ()
    error: float | None = None
    """The relative standard error of a mean."""

    @property
    def is_mean(self) -> bool:
        """Whether `ns` is the mean of `steps`, without the longest and shortest twentieth, and not
        their median."""
        return self.source == "unprofiled"


def timed(side: CompareSide, *, profiled: bool) -> Timed | None:
    """The side's steps of one kind; None where it has none."""
    if profiled:
        if side.recorded:
            return Timed(
                source="recorded", ns=statistics.median(side.recorded), steps=side.recorded
            )
        ns = side.recorded_ns
        return None if ns is None else Timed(source="recorded", ns=ns)
    if side.step_source == "given":
        return Timed(source="given", ns=side.step_ns)
    if side.step_source == "log":
        return Timed(source="kept", ns=side.step_ns)
    if side.unprofiled:
        return Timed(source="unprofiled", ns=trimmed_mean(side.unprofiled), steps=side.unprofiled)
    if side.kept is not None:
        error = (side.kept.high_ns - side.kept.low_ns) / (2 * Z_KEPT * side.kept.step_ns)
        return Timed(
            source="kept",
            ns=side.kept.step_ns,
            error=error if side.kept.num >= ENOUGH_STEPS else None,
        )
    return None


def is_host_slowed(launch_ns: float | None, step_ns: float | None, bound: str) -> bool:
    """Whether the profiler's cost is in a recorded step: the device waits there for launches, which
    the profiler slows."""
    return bound == "host" or (
        launch_ns is not None and step_ns is not None and launch_ns > LAUNCHING * step_ns
    )


def alone(side: CompareSide) -> Timed | None:
    """A side's own steps where they are compared with nothing: those without a profiler, where it
    has them."""
    return timed(side, profiled=False) or timed(side, profiled=True)


def both_timed(before: CompareSide, after: CompareSide) -> tuple[Timed | None, Timed | None, bool]:
    """The steps to compare, of one kind on both sides, and whether they were profiled."""
    for profiled in (False, True):
        first, second = timed(before, profiled=profiled), timed(after, profiled=profiled)
        if first is not None and second is not None:
            return first, second, profiled
    return None, None, False


def speedup_of(first: Timed | None, second: Timed | None, *, why: str = "") -> Speedup:
    """The ratio with its interval, where the samples give one."""
    value, interval = None, None
    if first is not None and second is not None and first.ns and second.ns:
        value = first.ns / second.ns
        interval, why = _interval(first, second)
    if interval is None or not interval.is_bounded:
        return Speedup(value=value, verdict="not told", why=why or None)
    smallest = smallest_shown(interval)
    verdict = _verdict(interval.lowest, interval.highest)
    return Speedup(
        value=value,
        low=interval.low,
        high=interval.high,
        level=interval.level,
        smallest=smallest if math.isfinite(smallest) else None,
        verdict=verdict,
    )


def _interval(first: Timed, second: Timed) -> tuple[Interval | None, str]:
    if "given" in (first.source, second.source):
        return None, NO_SPREAD
    if first.steps and second.steps:
        few = min(len(first.steps), len(second.steps))
        if few < ENOUGH_STEPS:
            steps = "1 step" if few == 1 else f"{few} steps"
            needed = f"{steps} on one side, and {ENOUGH_STEPS} are needed on both"
            return None, f"the interval was not measured: {needed}"
        ratio = ratio_of_trimmed_means if first.is_mean else ratio_of_medians
        return ratio(first.steps, second.steps), ""
    errors = [_error(side) for side in (first, second)]
    if first.ns is None or second.ns is None or errors[0] is None or errors[1] is None:
        return None, NO_OWN_STEPS
    half, value = Z * math.hypot(errors[0], errors[1]), first.ns / second.ns
    return Interval(value=value, low=value * math.exp(-half), high=value * math.exp(half)), ""


def _error(side: Timed) -> float | None:
    """Error of the logarithm of a side's figure: as kept, else as its steps give it; that of a
    median as of so many steps, were they normal."""
    if side.error is not None or len(side.steps) < ENOUGH_STEPS or not side.ns:
        return side.error
    if side.is_mean:
        return math.sqrt(log_mean_variance(side.steps))
    return 1.2533 * statistics.stdev(side.steps) / math.sqrt(len(side.steps)) / side.ns


def _verdict(low: float, high: float) -> str:
    if low > 1:
        return "faster"
    return "slower" if high < 1 else "no difference seen"


def scaled(speedup: Speedup, growth: float, unit: str) -> Throughput:
    """Throughput of work done in a second, where a step of the second run does `growth` times the
    work."""

    def times(value: float | None) -> float | None:
        return None if value is None else value * growth

    low, high = times(speedup.low), times(speedup.high)
    verdict = "not told" if low is None or high is None else _verdict(low, high)
    rates = {"value": times(speedup.value), "low": low, "high": high, "verdict": verdict}
    return Throughput(**{**asdict(speedup), **rates}, unit=unit)


def bursts(first: Timed, second: Timed, speedup: Speedup) -> str | None:
    """Says when the mean tells another ratio than the median: some steps are far longer than
    others."""
    if speedup.low is None or speedup.high is None or not first.steps or not second.steps:
        return None
    if first.is_mean:
        return None
    mean = ratio_of_trimmed_means(first.steps, second.steps)
    if mean.lowest <= speedup.high and mean.highest >= speedup.low:
        return None
    return (
        f"the mean step, without the longest and shortest twentieth, gives {mean.value:.3g}x "
        f"({mean.lowest:.3g} to {mean.highest:.3g}),"
        " which the median does not see: some steps are far longer than others, as with a loader "
        "that delivers in bursts"
    )


def uneven(first: Timed, second: Timed) -> list[str]:
    """Says of which side the median step is far from the mean one, whatever the ratio is."""
    notes = []
    for word, side in (("first", first), ("second", second)):
        if not side.steps or not side.ns:
            continue
        mean, median = trimmed_mean(side.steps), statistics.median(side.steps)
        if not 1 / UNEVEN <= mean / median <= UNEVEN:
            compared = "means compare both" if side.is_mean else "medians compare one kind alone"
            notes.append(
                f"the {word} run's mean step, without the longest and shortest twentieth, is "
                f"{ms_words(mean)} where its median is {ms_words(median)}: its steps are of two "
                f"kinds, as with a loader that delivers in bursts, and {compared}"
            )
    return notes


def with_odd(before: CompareSide, after: CompareSide) -> str | None:
    """Says when steps that save or evaluate, which are not among those compared, make the mean step
    another story."""
    usual = [statistics.fmean(side.unprofiled) for side in (before, after)]
    whole = [
        mean + side.irregular_step_ns for mean, side in zip(usual, (before, after), strict=True)
    ]
    ratio = whole[0] / whole[1]
    if abs(ratio / (usual[0] / usual[1]) - 1) <= ODD:
        return None
    return (
        "steps that save or evaluate are not among those compared; with them the mean step takes "
        f"{ms_words(whole[1])} instead of {ms_words(whole[0])}: {ratio:.3g}x"
    )
