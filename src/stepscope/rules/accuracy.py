"""How far promised gains were from real ones, and the range that a promise is printed with.

The replay leaves open what it knows it does not know: a host's pace, a fix that may give less. What
it does not know of is measured: `benchmarks/board.py` compares promises with what each change gave
on real jobs. A range is what the replay leaves open, widened by that error: it holds 21 of the 29
changes of `lab/board` and 89 of the 93 of the labs. Both were seen when the figures below were
chosen, and two of the changes made the step slower, which no range says.
"""

from __future__ import annotations

import math

from msgspec import Struct


class Policy(Struct, frozen=True, kw_only=True):
    """The error of a promise, as the logarithm of what was got over what was promised."""

    least: float = 0.14
    """Of a fix that gives next to nothing."""
    per_gain: float = 0.14
    """More with the logarithm of the gain: more of the step is as the replay thinks."""
    largest_gain: float = 1.5
    """The logarithm from which on it grows no more: 4.5 times as fast."""


POLICY = Policy()


def widened(low: float, high: float, gain: float) -> tuple[float, float]:
    """The range of a gain, from what the replay leaves open. No fix need be kept that gives
    nothing, so it begins at 1."""
    size = min(math.log(gain), POLICY.largest_gain)
    error = math.exp(POLICY.least + POLICY.per_gain * size)
    return max(1.0, low / error), high * error
