"""How much slower or faster the host was in the run than in its recording, by the run's step time.

A host is at times half as fast as at others: a fixed piece of its work, timed before and after 54
recordings, differed by a third. Where the host limits the step, the step tells how long it took;
where the device does, it says only that the host kept up; and between the two it says something. So
the likely pace is the mean of all that are possible, each weighted by how usual it is and by how
near its replay comes to the step: a step a little longer or shorter changes it a little.

A step that is longer than that of a usual host may also be as long as its loader's workers take for
a batch. Which of the two it is, one step time cannot tell; how likely each is, it can.
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
LOADER_RANGE = 16.0
"""Times as fast as the recorded step, with which it kept up, that a loader is taken to bring its
batches at most: the difference of one worker and as many as a GPU has cores. Between them nothing
is known of it, and each factor is as likely as any other."""
NUM_REPLAYS, NUM_PACES = 20, 1000
ROUNDS = 12
_STEP_AREA = math.sqrt(2 * math.pi) * math.erf(
    USUAL_STEP / math.sqrt(2)
) + 2 / USUAL_STEP * math.exp(-(USUAL_STEP**2) / 2)
"""Under the likelihood of a replay's deviation from the step."""


class Pace(Struct, frozen=True, kw_only=True):
    factor: float
    """Times the host's time, without what recording cost."""
    open_share: float
    """Of what was not known of it before, what the step leaves unknown: 0 where the host limits the
    step, 1 where that would be the same with any likely host."""


def likely_pace(interval_ns: Callable[[float], float], step_ns: float) -> Pace:
    """`interval_ns` replays the step with so many times the host's time."""
    deviations, off = _replayed(interval_ns, step_ns)
    surprise = _surprise(deviations, USUAL_PACE) + _surprise(off, USUAL_STEP)
    weights = np.exp(surprise.min() - surprise)
    mean = float(np.average(deviations, weights=weights))
    variance = float(np.average((deviations - mean) ** 2, weights=weights))
    return Pace(factor=_factor(mean), open_share=min(variance, 1.0))


def wait_probability(
    interval_ns: Callable[[float], float], step_ns: float, recorded_ns: float
) -> float:
    """That the run's step is as long as its loader takes for a batch, and not as its host takes;
    of a loader that kept up with the recorded step, which was longer.

    By Bayes: a loader so slow, with a host that is done before it, or a host so slow, with a loader
    that is. Both are densities of the step's logarithm.
    """
    log_range = math.log(LOADER_RANGE * step_ns / recorded_ns)
    if log_range <= 0:
        return 0.0
    deviations, off = _replayed(interval_ns, step_ns)
    usual = np.exp(-_surprise(deviations, USUAL_PACE))
    usual /= usual.sum()
    slow_loader = float(usual[off <= 0].sum())
    slow_host = float((usual * np.exp(-_surprise(off, USUAL_STEP))).sum()) / (STEP_SD * _STEP_AREA)
    return slow_loader / (slow_loader + log_range * slow_host)


def _replayed(interval_ns: Callable[[float], float], step_ns: float) -> tuple[Float64, Float64]:
    """Paces, as deviations from the usual one, and how far off the step the replay of each is, in
    standard deviations."""

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
    return deviations, (intervals - log_step) / STEP_SD


def _surprise(deviations: Float64, usual: float) -> Float64:
    """Minus the logarithm of how likely each is: as of a normal distribution up to the usual, and
    straight on from there (Huber 1964)."""
    inside = np.minimum(np.abs(deviations), usual)
    surprise: Float64 = inside * (np.abs(deviations) - inside / 2)
    return surprise


def _factor(deviation: float) -> float:
    return min(max(math.exp(PACE_SD * deviation), PACE_RANGE[0]), PACE_RANGE[1])
