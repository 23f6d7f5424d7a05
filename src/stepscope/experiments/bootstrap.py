"""How sure a ratio of step times is: before / after, so that more than 1 is faster.

Steps follow one another and are alike, so blocks of steps are drawn, not steps. Runs of one command
differ by more than their steps say (placement, clocks, page cache): where there are several runs a
side, `verify` takes the run as the unit, and Student's interval.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from stepscope.core.experiments.experiment import Interval
from stepscope.errors import InputError

Floats = NDArray[np.float64]

LEVEL = 0.95
DRAWS = 2000
POWER = 0.8
"""How often the smallest change that a sample could have shown would have been shown."""
TRIMMED = 0.05
"""Share left out at each end of the sorted steps, as in a run's pace: one hiccup in twenty is not
its pace, every fourth wait is."""
MIN_STEPS = 3
MIN_BLOCKS = 4
MAX_CELLS = 4_000_000
"""Drawn steps held at once."""


def ratio_of_medians(
    before: Sequence[float], after: Sequence[float], *, draws: int = DRAWS
) -> Interval:
    """The medians' ratio of two samples of steps. It knows nothing of how runs differ."""
    return _ratio(before, after, lambda rows: np.median(rows, axis=1), draws)


def ratio_of_trimmed_means(before: Sequence[float], after: Sequence[float]) -> Interval:
    """The same for trimmed means, which see a wait that comes with every fourth step; a median does
    not."""
    return _ratio(before, after, _trimmed_means, DRAWS)


def around(middle: float, half: float, level: float) -> Interval:
    """Interval of a ratio whose logarithm lies so far around the middle."""
    low, high = math.exp(middle - half), math.exp(middle + half)
    return Interval(value=math.exp(middle), low=low, high=high, level=level)


def smallest_shown(interval: Interval) -> float:
    """The smallest true ratio above 1 that an interval this wide would have separated from 1, with
    a probability of POWER."""
    if interval.low is None or interval.high is None:
        return math.inf
    half = (math.log(interval.high) - math.log(interval.low)) / 2
    normal = statistics.NormalDist()
    return math.exp(half * (1 + normal.inv_cdf(POWER) / normal.inv_cdf(0.5 + interval.level / 2)))


def trimmed_mean(steps: Sequence[float]) -> float:
    """One number for a run: the mean of its steps without the longest and shortest twentieth."""
    return float(_trimmed_means(_clean(steps)[np.newaxis, :])[0])


def log_mean_variance(steps: Sequence[float], *, seed: int = 0, draws: int = 200) -> float:
    """The variance of the logarithm of a run's pace that its steps alone give."""
    array = _clean(steps)
    if len(array) < MIN_STEPS:
        return 0.0
    return float(np.var(np.log(_drawn(array, _trimmed_means, np.random.default_rng(seed), draws))))


@lru_cache(maxsize=4096)
def student(level: float, freedom: float) -> float:
    """Student's t that a two-sided interval of this level takes."""
    if not 0 < level < 1 or freedom <= 0:
        raise ValueError(f"no interval of level {level} with {freedom} degrees of freedom")
    low, high = 0.0, 2.0
    while student_level(high, freedom) < level and high < 1e12:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if student_level(middle, freedom) < level else (low, middle)
    return (low + high) / 2


def student_level(t: float, freedom: float) -> float:
    """The probability that Student's t lies within -t and t."""
    return 1 - _beta(freedom / (freedom + t * t), freedom / 2, 0.5)


def _ratio(
    before: Sequence[float],
    after: Sequence[float],
    middle: Callable[[Floats], Floats],
    draws: int,
) -> Interval:
    first, second = _clean(before), _clean(after)
    value = float(middle(first[None, :])[0] / middle(second[None, :])[0])
    if min(len(first), len(second)) < MIN_STEPS:
        return Interval(value=value, level=LEVEL)
    drawn = _drawn_logs(first, second, middle, np.random.default_rng(0), draws)
    tails = (1 - LEVEL) / 2
    low, high = (float(edge) for edge in np.quantile(drawn, (tails, 1 - tails)))
    wider = _widening(min(_num_blocks(first), _num_blocks(second)))
    log_value = math.log(value)
    return Interval(
        value=value,
        low=math.exp(log_value - wider * max(log_value - low, 0.0)),
        high=math.exp(log_value + wider * max(high - log_value, 0.0)),
        level=LEVEL,
    )


def _drawn_logs(
    first: Floats,
    second: Floats,
    middle: Callable[[Floats], Floats],
    generator: np.random.Generator,
    draws: int,
) -> Floats:
    """Logarithms of drawn ratios. Which side is drawn first is the samples' own matter, not their
    order: swapped, they give the inverse to the last digit, and a verdict at the edge does not turn
    with them."""
    sign = 1 if first.tolist() <= second.tolist() else -1
    first_side, other = (first, second)[::sign]
    logs: Floats = np.log(_drawn(first_side, middle, generator, draws)) - np.log(
        _drawn(other, middle, generator, draws)
    )
    return sign * logs


def _widening(num: float) -> float:
    """Percentiles of few draws are too narrow: by the factor of n / (n - 1), and Student's t over
    the normal's.

    Hesterberg, What Teachers Should Know About the Bootstrap (2015), section 5.3."""
    normal = statistics.NormalDist().inv_cdf(0.5 + LEVEL / 2)
    return student(LEVEL, num - 1) / normal * math.sqrt(num / (num - 1))


def _clean(steps: Sequence[float]) -> Floats:
    array = np.asarray(steps, dtype=np.float64)
    array = array[np.isfinite(array) & (array > 0)]
    if not len(array):
        raise InputError("no step was timed on one side: there is nothing to take a ratio of")
    return array


def _trimmed_means(rows: Floats) -> Floats:
    num = rows.shape[1]
    cut = int(num * TRIMMED)
    ordered = np.sort(rows, axis=1)
    means: Floats = ordered[:, cut : num - cut].mean(axis=1)
    return means


def _drawn(
    steps: Floats, middle: Callable[[Floats], Floats], generator: np.random.Generator, draws: int
) -> Floats:
    """The middle of each of many resamples, made of blocks of the circle of steps (Politis and
    Romano, 1992)."""
    num, length = len(steps), _block_length(steps)
    blocks = math.ceil(num / length)
    offsets = np.arange(length)
    out, at_once = [], max(1, MAX_CELLS // (blocks * length))
    for start in range(0, draws, at_once):
        starts = generator.integers(0, num, size=(min(at_once, draws - start), blocks, 1))
        chosen = ((starts + offsets) % num).reshape(len(starts), -1)[:, :num]
        out.append(middle(steps[chosen]))
    return np.concatenate(out)


def _num_blocks(steps: Floats) -> float:
    return max(2.0, len(steps) / _block_length(steps))


def _block_length(steps: Floats) -> int:
    """Longer the more a step is like the one before it, or unlike it, as where two workers bring
    their batches together: Carlstein (1986), for a first-order autoregression.

    Ranks are correlated, so that one hiccup does not decide."""
    num = len(steps)
    if num < 2 * MIN_BLOCKS or np.ptp(steps) == 0:
        return 1
    ranks = np.argsort(np.argsort(steps, kind="stable"), kind="stable") - (num - 1) / 2
    likeness = min(abs(float((ranks[1:] * ranks[:-1]).sum() / (ranks * ranks).sum())), 0.99)
    length = (math.sqrt(6) * likeness / (1 - likeness**2)) ** (2 / 3) * num ** (1 / 3)
    return int(min(max(1, round(length)), num // MIN_BLOCKS))


def _beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function, by its continued fraction (Numerical Recipes,
    6.4)."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta(1 - x, b, a)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    return front * _fraction(x, a, b) / a


def _fraction(x: float, a: float, b: float) -> float:
    tiny = 1e-300
    c, d = 1.0, 1 / max(abs(1 - (a + b) * x / (a + 1)), tiny)
    out = d
    for m in range(1, 300):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d, c = 1 + term * d, 1 + term / c
            d, c = 1 / (d if abs(d) > tiny else tiny), c if abs(c) > tiny else tiny
            factor = d * c
            out *= factor
        if abs(factor - 1) < 1e-15:
            break
    return out
