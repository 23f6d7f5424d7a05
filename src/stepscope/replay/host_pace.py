"""How much slower or faster the host was in the run than in its recording, by the run's step time.

A host is at times half as fast as at others: a fixed piece of its work, timed before and after 54
recordings, differed by a third. Where the host limits the step, the step tells how long it took;
where the device does, it says only that the host kept up; and between the two it says something. So
the likely pace is the mean of all that are possible, each weighted by how usual it is and by how
near its replay comes to the step: a step a little longer or shorter changes it a little.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from msgspec import Struct

from stepscope.core.trace import Float64
from stepscope.replay.bisection import bisect

PACE_SD = 0.12
"""Of the logarithm of the host's time in the run over its recorded time without what recording
cost: 43 host-bound recordings, H200 hosts, torch 2.11."""
STEP_SD = 0.01
"""Of the logarithm of a replay over the run's step, where the host does not matter: 31 device-bound
recordings."""
USUAL_STEP, USUAL_PACE = 1.0, 3.0
"""Standard deviations beyond which the unlikely becomes less likely by the same factor with each
more: some replays are off by three, and some runs have quite another host."""
PACE_RANGE = (0.5, 1000.0)
"""Of the host's time: one that seems to be faster than that is not the reason."""
REACH = 3.0
"""Standard deviations beyond the usual pace and the one that meets the step, that are looked at."""
NUM_REPLAYS, NUM_PACES = 20, 1000
ROUNDS = 12


class Pace(Struct, frozen=True, kw_only=True):
    factor: float
    """Times the host's time, without what recording cost."""
    open_share: float
    """Of what was not known of it before, what the step leaves unknown: 0 where the host limits the
    step, 1 where that would be the same with any likely host."""


def likely_pace(interval_ns: Callable[[float], float], step_ns: float) -> Pace:
    """`interval_ns` replays the step with so many times the host's time."""

    def log_interval(deviation: float) -> float:
        return math.log(max(interval_ns(_factor(deviation)), 1.0))

    # Kernels that took longer in the recording than in the run say nothing of the host.
    log_step = max(math.log(step_ns), log_interval(math.log(PACE_RANGE[0]) / PACE_SD))
    low, high = (math.log(factor) / PACE_SD for factor in PACE_RANGE)
    low, high = (low, 0.0) if log_interval(0.0) > log_step else (0.0, high)
    _, met = bisect(lambda deviation: log_interval(deviation) < log_step, low, high, ROUNDS)
    replayed = np.linspace(min(met, 0.0) - REACH, max(met, 0.0) + REACH, NUM_REPLAYS)
    deviations = np.linspace(replayed[0], replayed[-1], NUM_PACES)
    intervals = np.interp(deviations, replayed, [log_interval(one) for one in replayed.tolist()])
    off = (intervals - log_step) / STEP_SD
    surprise = _surprise(deviations, USUAL_PACE) + _surprise(off, USUAL_STEP)
    weights = np.exp(surprise.min() - surprise)
    mean = float(np.average(deviations, weights=weights))
    variance = float(np.average((deviations - mean) ** 2, weights=weights))
    return Pace(factor=_factor(mean), open_share=min(variance, 1.0))


def _surprise(deviations: Float64, usual: float) -> Float64:
    """Minus the logarithm of how likely each is: as of a normal distribution up to the usual, and
    straight on from there (Huber 1964)."""
    inside = np.minimum(np.abs(deviations), usual)
    surprise: Float64 = inside * (np.abs(deviations) - inside / 2)
    return surprise


def _factor(deviation: float) -> float:
    return min(max(math.exp(PACE_SD * deviation), PACE_RANGE[0]), PACE_RANGE[1])
