"""From which length on a step is slow, among the steps of a run or of a stretch of it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

SLOW_TIMES, SLOW_SPREADS = 1.5, 8
"""The median step, and median deviations above it: a longer one is slow."""
MAX_SLOW = 0.25
"""Share of the steps: where as many are slow, that is how the job steps (four workers that deliver
together, a machine that others use), and slow is what is so beside those."""


def longest_usual(lengths: Sequence[int]) -> float:
    """A step that takes longer is slow."""
    group: Sequence[int] = lengths
    while True:
        median = statistics.median(group)
        spread = statistics.median(abs(ns - median) for ns in group)
        limit = max(SLOW_TIMES * median, median + SLOW_SPREADS * spread)
        slow = [ns for ns in lengths if ns > limit]
        if len(slow) < MAX_SLOW * len(lengths):
            return limit
        group = slow


def slow_ns(lengths: Sequence[int]) -> int:
    """What the slow ones take longer than the mean of the others."""
    limit = longest_usual(lengths)
    usual = round(statistics.fmean(ns for ns in lengths if ns <= limit))
    return sum(ns - usual for ns in lengths if ns > limit)
