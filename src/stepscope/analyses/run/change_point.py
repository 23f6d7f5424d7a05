"""Whether a series of numbers has moved to another level:
a rank test on blocks, with bounded memory.

The first values are the reference. After them every full block of recent values is compared with it
by the Mann-Whitney U test (Mann and Whitney 1947), which asks how often a recent value exceeds one
of the reference and so minds neither the shape of the noise nor single slow steps. Blocks do not
overlap, so each is a test of its own, and two in a row must say the same. A block of 20 against a
reference of 100 exceeds Z by chance about once in thirty thousand, two in a row about once in 10^9.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

Z = 4.0
"""Standard deviations that U must lie from its mean: with more, steps that every fourth time wait
for the loader could double unseen, for the long ones before are longer than the short ones
after."""
NUM_CONFIRM = 2
"""Blocks in a row that must agree: what lasts for one is a hiccup."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePoint:
    """The series left its level for another."""

    before: float
    after: float
    """Medians."""


class ChangePointDetector:
    """Takes one value after the other; reports a lasting move for the worse once.

    `worse` says whether a median is so much worse than another that somebody should know; a move
    that is statistically plain and tiny is of no interest. A move to the better, or one that was
    reported, makes the new level the reference.
    """

    def __init__(
        self,
        worse: Callable[[float, float], bool],
        *,
        num_reference: int = 100,
        num_recent: int = 20,
    ) -> None:
        # Otherwise no block could ever be as far from the reference as Z asks.
        assert num_reference >= 3 * num_recent >= 30
        self._worse = worse
        self._num_reference, self._num_recent = num_reference, num_recent
        self._reference: list[float] = []
        """Sorted."""
        self._recent: list[float] = []
        self._agreeing: list[float] = []
        """Values of the last blocks that all lay to the same side."""
        self._side = 0

    def add(self, value: float) -> ChangePoint | None:
        if len(self._reference) < self._num_reference:
            insort(self._reference, value)
            return None
        self._recent.append(value)
        if len(self._recent) < self._num_recent:
            return None
        block, self._recent = self._recent, []
        return self._judge(block)

    def _judge(self, block: list[float]) -> ChangePoint | None:
        before, after = median(self._reference), median(block)
        z = rank_z(self._reference, block)
        is_moved = abs(z) >= Z and (self._worse(before, after) or self._worse(after, before))
        side = int(math.copysign(1, z)) if is_moved else 0
        if side == 0:
            self._agreeing = []
        elif side == self._side:
            self._agreeing = self._agreeing + block
        else:
            self._agreeing = block
        self._side = side
        if len(self._agreeing) < NUM_CONFIRM * self._num_recent:
            return None
        after = median(self._agreeing)
        self._reference, self._agreeing, self._side = sorted(self._agreeing), [], 0
        return ChangePoint(before=before, after=after) if self._worse(before, after) else None


def rank_z(reference: list[float], block: list[float]) -> float:
    """U of the block against the sorted reference,
    in standard deviations from its mean where nothing changed.

    Ties count half; the deviation is the one without ties, which is the larger.
    """
    u = sum((bisect_left(reference, value) + bisect_right(reference, value)) / 2 for value in block)
    m, n = len(reference), len(block)
    return (u - m * n / 2) / math.sqrt(m * n * (m + n + 1) / 12)
