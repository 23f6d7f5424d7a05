"""Assigns the slices of a track to lanes,
so that on each lane every two are one inside the other or apart.

A timeline draws a track as a stack: a slice that outlives the one it began in would be cut off.
Such slices get another lane.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from stepscope.core.trace import NONE, Int64

MAX_LANES = 64
"""Of one track. What overlaps deeper is left out:
nobody could read it, and a damaged file could ask for millions."""


class Nested(Struct, frozen=True, kw_only=True):
    """Each slice's lane, and the order in which slices open and close."""

    lane: Int64
    """NONE: no lane was left."""
    order: Int64
    """`i` where slice i opens, `~i` where it closes:
    on every lane in the order of time, the inner closing before the outer."""


def nest(start_ns: Int64, end_ns: Int64) -> Nested:
    """Assign slices to lanes. They come sorted by start and, at one start, the longest first."""
    lane = np.full(len(start_ns), NONE, np.int64)
    order: list[int] = []
    placed: list[int] = [NONE] * len(lane)
    lanes: list[list[tuple[int, int]]] = [[]]
    for i, (start, end) in enumerate(zip(start_ns.tolist(), end_ns.tolist(), strict=True)):
        for number, open_ones in enumerate(lanes):  # noqa: B007 - the lane that was found
            while open_ones and open_ones[-1][0] <= start:
                order.append(~open_ones.pop()[1])
            if not open_ones or open_ones[-1][0] >= end:
                break
        else:
            if len(lanes) == MAX_LANES:
                continue
            number, open_ones = len(lanes), []
            lanes.append(open_ones)
        open_ones.append((end, i))
        order.append(i)
        placed[i] = number
    for open_ones in lanes:
        order.extend(~i for _, i in reversed(open_ones))
    lane[:] = placed
    return Nested(lane=lane, order=np.array(order, np.int64))
