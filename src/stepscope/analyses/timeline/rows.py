"""Rows of a timeline: which row of its lane an event stands in,
and which neighbours are drawn as one block."""

from __future__ import annotations

from math import isqrt

import numpy as np
from msgspec import Struct

from stepscope.analyses.host.nesting import enclosing_ranges, num_around
from stepscope.core.trace import NONE, Bool, Int64

CLOSE_GRAIN = 1.02
"""Grains that differ by less look the same."""


class Blocks(Struct, frozen=True, kw_only=True):
    """Events, sorted by row and start, put together:
    which block each is in, and where each block begins."""

    of: Int64
    first: Int64


def rows_of(start: Int64, end: Int64, most: int) -> Int64:
    """Row of each event of one lane, by start, that leaves none over another: what runs inside
    stands below.

    NONE where that is past `most` rows.

    Before                     After
        linear [0, 90)             0
        addmm [10, 80)             1
        relu [95, 99)              0
    """
    rows = num_around(enclosing_ranges(start, end))
    return np.where(rows < most, rows, NONE)


def join_small(row: Int64, start: Int64, end: Int64, weight: Int64, most: int) -> Blocks:
    """Blocks, at most `most`, with about the finest grain that gives no more. Events shorter than a
    grain, times their weight, go together where they are neighbours in one row and begin in the
    same grain of it; what is longer is never joined."""
    heads = np.ones(len(row), np.bool_)
    if len(row) > most:
        low, high = 1, int(end.max() - start.min()) + 2
        columns = (row[1:] == row[:-1], start - start.min(), end - start, weight)
        heads = _heads(*columns, high)
        while high > low * CLOSE_GRAIN:
            grain = isqrt(low * high)
            tried = _heads(*columns, grain)
            if np.count_nonzero(tried) > most:
                low = grain + 1
            else:
                high, heads = grain, tried
    return Blocks(of=np.cumsum(heads) - 1, first=np.flatnonzero(heads))


def _heads(in_row: Bool, offset: Int64, length: Int64, weight: Int64, grain: int) -> Bool:
    """Mask of the events that begin a block. `in_row`: of each but the first, whether it is in the
    row of the one before."""
    wide = grain * weight
    small, cell = length < wide, offset // wide
    heads = np.ones(len(length), np.bool_)
    heads[1:] = ~(in_row & small[1:] & small[:-1] & (cell[1:] == cell[:-1]))
    return heads


def common(values: Int64, blocks: Blocks) -> Int64:
    """Value that all events of each block have; NONE where they differ."""
    if len(blocks.first) == 0:
        return np.empty(0, np.int64)
    least = np.minimum.reduceat(values, blocks.first)
    return np.where(least == np.maximum.reduceat(values, blocks.first), least, NONE)
