"""Bisection: the value at which a replay meets what was measured."""

from __future__ import annotations

from collections.abc import Callable


def bisect(
    is_too_low: Callable[[float], bool],
    low: float,
    high: float,
    num_rounds: int,
    *,
    is_geometric: bool = False,
) -> tuple[float, float]:
    """The bounds halved so often, around where `is_too_low` turns false;
    by ratio where they span magnitudes."""
    for _ in range(num_rounds):
        middle = (low * high) ** 0.5 if is_geometric else (low + high) / 2
        if is_too_low(middle):
            low = middle
        else:
            high = middle
    return low, high
