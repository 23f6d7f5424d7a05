"""In what order the two sides run, when the evidence is looked at, and what it then says.

A round is four runs, ABBA, and the next one turned round, BAAB (the order of Thue and Morse): what
drifts steadily over a round weighs on both sides alike, and what drifts in a curve does so over a
few of them. Each round gives two pairs of neighbours. The logarithms of their ratios are the
sample, Student's interval is theirs: runs are the unit, steps are not.

Whoever looks after every round and stops when it looks good finds gains where there are none. So
the errors that are allowed are dealt out over the looks (Bonferroni's inequality, which asks
nothing of how looks hang together), and the interval at every look is as much wider as its share is
smaller: the true ratio lies in all of them at once, 97 times in 100 (Jennison and Turnbull,
Repeated Confidence Intervals for Group Sequential Trials, 1984).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from msgspec import Struct

from stepscope.core.experiments.experiment import (
    BASELINE,
    CANDIDATE,
    NO_GAIN,
    PROVEN,
    WORSE,
    Interval,
    Side,
)
from stepscope.experiments.bootstrap import around, student
from stepscope.protocol.options import FIRST_STEPS

RUNS_A_ROUND = 4
MIN_ROUNDS = 2
"""Four pairs. With two, Student's interval is so wide that hardly a gain is seen in it."""


class VerifyPolicy(Struct, frozen=True, kw_only=True):
    """When an experiment ends, and what counts."""

    min_rounds: int = MIN_ROUNDS
    max_rounds: int = 10
    budget_s: float | None = None
    """No round is begun that would likely end after this."""
    precision: float = 0.02
    """Half the interval's width, as a share, at which it is tight enough to say that there is no
    gain."""
    threshold: float = 0.01
    """A gain below this is none in practice: a different placement of the code in memory may give
    as much."""
    level: float = 0.97
    """Level of the interval, over all looks together: one experiment in thirty-three errs, half of
    them for the better. With 0.95, a hundred experiments in which nothing was changed would now and
    then show more than five."""
    num_rehearsals: int = 1
    """Runs of each side before the first that counts: they fill caches, and tell whether the sides
    are on equal terms."""
    allowed: frozenset[str] = frozenset()
    """What may differ between the sides; names are those of comparability.TERMS."""
    per_sample: bool = False
    """Whether times are given per sample, as they must be where the batch size differs."""


WARM_S, WARM_STEPS = 2.0, 10
"""Seconds and steps after which caches are warm and clocks are what they stay."""
REHEARSED_S, MIN_REHEARSED = 10.0, 16
"""Seconds of timed steps in a first run whose step is known; what is computed is compared over so
many."""


def rehearsed_steps(step_s: float | None, most: int) -> int:
    """Timed steps of the first runs: fewer where a step is known to take long."""
    if step_s is None or step_s <= 0:
        return most
    return min(most, max(MIN_REHEARSED, round(REHEARSED_S / step_s)))


def steps_before(given: int | None, step_s: float | None) -> int:
    """Steps of a run that are not timed: as many as were given, else fewer of steps that are known
    to take long."""
    if given is None:
        given = WARM_STEPS if not step_s else min(WARM_STEPS, math.ceil(WARM_S / step_s))
    return max(given, FIRST_STEPS)


def order(round_number: int) -> tuple[Side, Side, Side, Side]:
    """The sides of one round's runs, from round 0."""
    turned = round_number.bit_count() % 2 == 1
    first, second = (CANDIDATE, BASELINE) if turned else (BASELINE, CANDIDATE)
    return (first, second, second, first)


def looks(policy: VerifyPolicy) -> tuple[int, ...]:
    """After how many rounds the evidence is looked at: 2, 3, 4, then every half as many again, and
    at the end.

    >>> looks(VerifyPolicy(max_rounds=10))
    (2, 3, 4, 6, 9, 10)
    """
    rounds = []
    num = min(max(MIN_ROUNDS, policy.min_rounds), policy.max_rounds)
    while num < policy.max_rounds:
        rounds.append(num)
        num += max(1, num // 2)
    return (*rounds, policy.max_rounds)


def share_of_errors(
    policy: VerifyPolicy, num_rounds: int, *, is_last: bool = False
) -> float | None:
    """How often the look after this round may err; None where there is no look. The last one has
    all that is left: what ends an experiment early is the clock, which knows nothing of the
    result."""
    planned = looks(policy)
    each = (1 - policy.level) / len(planned)
    if is_last:
        return each * (len(planned) - sum(look < num_rounds for look in planned))
    return each if num_rounds in planned else None


def paired_interval(
    pairs: Sequence[float], errors: float, level: float, least_variance: float = 0.0
) -> Interval:
    """Student's interval around the mean of logarithms of ratios; `level` is what it holds over all
    looks together.

    Their variance is never taken as less than what the steps of the runs alone would give."""
    middle = statistics.fmean(pairs)
    if len(pairs) < 2:
        return Interval(value=math.exp(middle), level=level)
    deviation = math.sqrt(max(statistics.variance(pairs), least_variance) / len(pairs))
    half = min(student(1 - errors, len(pairs) - 1) * deviation, 700.0)
    return around(middle, half, level)


def half_width(interval: Interval) -> float:
    """Half width as a share of the value: 0.02 is two per cent either way."""
    if interval.low is None or interval.high is None:
        return math.inf
    return math.sqrt(interval.high / interval.low) - 1


def verdict_of(interval: Interval, policy: VerifyPolicy) -> str | None:
    """What the interval settles; None where it settles nothing."""
    least = 1 + policy.threshold
    low, high = interval.lowest, interval.highest
    if low > 1 and interval.value >= least:
        return PROVEN
    if high < 1 and interval.value <= 1 / least:
        return WORSE
    if high < least and low > 1 / least:
        return NO_GAIN
    return NO_GAIN if half_width(interval) <= policy.precision else None
