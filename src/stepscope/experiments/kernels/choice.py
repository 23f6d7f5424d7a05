"""Which of several timed configurations is the fastest, and how sure that is,
from samples taken in turns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from stepscope.core.experiments.kernel_tuning import Gain, Timed

LEVEL = 0.95


def timed(samples: Sequence[float]) -> Timed | None:
    if not samples:
        return None
    ordered = sorted(samples)
    last = len(ordered) - 1
    return Timed(
        ns=median(ordered),
        low_ns=ordered[round(0.1 * last)],
        high_ns=ordered[round(0.9 * last)],
        num_samples=len(ordered),
    )


def gain(before: Sequence[float], after: Sequence[float]) -> Gain:
    """before / after of samples that were taken next to each other: the median of their ratios,
    with an interval of it.

    The interval is two order statistics of the ratios; it needs six pairs to be one, and nothing
    about how times are spread.
    """
    ratios = sorted(first / second for first, second in zip(before, after, strict=True))
    num = len(ratios)
    rank = _rank(num)
    low, high = (0.0, math.inf) if rank is None else (ratios[rank], ratios[num - 1 - rank])
    return Gain(value=median(ratios), low=low, high=high, num_pairs=num)


def is_different(gain_found: Gain) -> bool:
    return gain_found.low > 1 or gain_found.high < 1


def _rank(num: int) -> int | None:
    """The largest rank that keeps the level.

    The median lies between the ratio of that rank and its mirror image.
    """
    tail, best = 0.0, None
    for rank in range((num + 1) // 2):
        tail += math.comb(num, rank) / 2**num
        if 2 * tail > 1 - LEVEL:
            break
        best = rank
    return best
