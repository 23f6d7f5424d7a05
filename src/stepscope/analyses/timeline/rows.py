"""Rows of a timeline: which row of its lane an event stands in,
and which neighbours are drawn as one block."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from stepscope.core.trace import NONE, Bool, Int64


class Blocks(Struct, frozen=True, kw_only=True):
    """Events, sorted by row and start, put together:
    which block each is in, and where each block begins."""

    of: Int64
    first: Int64


def rows_of(start: Int64, end: Int64, most: int) -> Int64:
    """For events of one lane, by start, the row that leaves none over another:
    what runs inside stands below.

    NONE where that is past `most` rows.

    Before                     After
        linear [0, 90)             0
        addmm [10, 80)             1
        relu [95, 99)              0
    """
    rows = np.full(len(start), NONE, np.int64)
    open_until: list[int] = []
    for i, (begin, stop) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        while open_until and open_until[-1] <= begin:
            open_until.pop()
        if len(open_until) < most:
            rows[i] = len(open_until)
            open_until.append(max(stop, begin + 1))
    return rows


def join_small(row: Int64, start: Int64, end: Int64, weight: Int64, most: int) -> Blocks:
    """The finest blocks that are at most `most`. Events shorter than a grain, times their weight,
    go together where they are neighbours in one row and begin in the same grain of it; what is
    longer is never joined."""
    low, high = 1, int(end.max() - start.min()) + 2 if len(start) else 2
    heads = _heads(row, start, end, weight, 0)
    if np.count_nonzero(heads) > most:
        while low < high:
            grain = (low + high) // 2
            if np.count_nonzero(_heads(row, start, end, weight, grain)) > most:
                low = grain + 1
            else:
                high = grain
        heads = _heads(row, start, end, weight, high)
    return Blocks(of=np.cumsum(heads) - 1, first=np.flatnonzero(heads))


def _heads(row: Int64, start: Int64, end: Int64, weight: Int64, grain: int) -> Bool:
    """Which events begin a block."""
    heads = np.ones(len(row), np.bool_)
    if grain and len(row):
        wide = grain * weight
        small = end - start < wide
        cell = (start - start.min()) // wide
        heads[1:] = ~((row[1:] == row[:-1]) & small[1:] & small[:-1] & (cell[1:] == cell[:-1]))
    return heads


def common(values: Int64, blocks: Blocks) -> Int64:
    """Per block, the value all its events have; NONE where they differ."""
    if len(blocks.first) == 0:
        return np.empty(0, np.int64)
    least = np.minimum.reduceat(values, blocks.first)
    return np.where(least == np.maximum.reduceat(values, blocks.first), least, NONE)
