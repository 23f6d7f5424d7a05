"""Interval algebra on integer nanoseconds:
sets of half-open intervals [start, end) as numpy arrays.

A *set* here is a pair of arrays, sorted, disjoint and with no empty interval; `union` makes one of
any intervals. Everything is exact and none of it loops over intervals in Python.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from stepscope.core.trace import Bool, Int64, Trace


class Intervals(Struct, frozen=True, eq=False):
    """A set of disjoint, non-touching, non-empty intervals in order. Equal to itself alone."""

    start: Int64
    end: Int64

    def __len__(self) -> int:
        return len(self.start)

    @property
    def total(self) -> int:
        """The length of the set."""
        return int((self.end - self.start).sum())

    def self_check(self) -> None:
        assert len(self.start) == len(self.end)
        assert bool((self.end > self.start).all()), "an empty interval"
        assert bool((self.start[1:] > self.end[:-1]).all()), "intervals that touch or overlap"


def empty() -> Intervals:
    """The empty set."""
    return Intervals(np.empty(0, np.int64), np.empty(0, np.int64))


def union(start: Int64, end: Int64) -> Intervals:
    """The set covered by any intervals, in any order; empty and backward ones add nothing."""
    keep = end > start
    if not keep.all():
        start, end = start[keep], end[keep]
    if len(start) == 0:
        return empty()
    if bool((start[1:] >= start[:-1]).all()):
        reach = np.maximum.accumulate(end)
    else:
        order = np.argsort(start, kind="stable")
        start, reach = start[order], end[order]
        del order
        np.maximum.accumulate(reach, out=reach)
    first = np.empty(len(start), np.bool_)
    first[0] = True
    np.greater(start[1:], reach[:-1], out=first[1:])
    opens = np.flatnonzero(first)
    closes = np.append(opens[1:] - 1, len(start) - 1)
    return Intervals(start[opens], reach[closes])


def time_of(trace: Trace, events: Bool) -> Intervals:
    """When any of the masked events ran."""
    chosen = np.flatnonzero(events)
    return union(trace.start_ns.take(chosen), trace.end_ns.take(chosen))


def join(*sets: Intervals) -> Intervals:
    """Union of the sets."""
    return union(np.concatenate([s.start for s in sets]), np.concatenate([s.end for s in sets]))


def intersect(a: Intervals, b: Intervals) -> Intervals:
    """Intersection of both sets."""
    if len(a) == 0 or len(b) == 0:
        return empty()
    # For each interval of `a`, the intervals of `b` that reach into it are b[first:last].
    first = np.searchsorted(b.end, a.start, side="right")
    last = np.searchsorted(b.start, a.end, side="left")
    counts = np.maximum(last - first, 0)
    owner = np.repeat(np.arange(len(a)), counts)
    offset = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    other = np.repeat(first, counts) + offset
    return Intervals(
        np.maximum(a.start[owner], b.start[other]), np.minimum(a.end[owner], b.end[other])
    )


def between(a: Intervals, low: int, high: int) -> Intervals:
    """Part of the set in [low, high)."""
    first = int(np.searchsorted(a.end, low, side="right"))
    last = int(np.searchsorted(a.start, high, side="left"))
    return Intervals(np.maximum(a.start[first:last], low), np.minimum(a.end[first:last], high))


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """Part of `a` that is not in `b`."""
    if len(a) == 0 or len(b) == 0:
        return a
    low = min(int(a.start[0]), int(b.start[0]))
    high = max(int(a.end[-1]), int(b.end[-1]))
    return intersect(a, complement(b, low, high))


def complement(a: Intervals, low: int, high: int) -> Intervals:
    """Part of [low, high) that is not in `a`."""
    start = np.concatenate([[low], np.clip(a.end, low, high)]).astype(np.int64)
    end = np.concatenate([np.clip(a.start, low, high), [high]]).astype(np.int64)
    keep = end > start
    return Intervals(start[keep], end[keep])


def bounds(windows: Sequence[tuple[int, int]]) -> tuple[Int64, Int64]:
    """The starts and the ends of windows."""
    start, end = np.array(windows, np.int64).reshape(-1, 2).T
    return start, end


def lengths_in(windows_start: Int64, windows_end: Int64, a: Intervals) -> Int64:
    """Length of each window that `a` covers. Windows may overlap and be in any order; a backward
    one counts 0."""
    covered: Int64 = np.maximum(
        covered_before(a, windows_end) - covered_before(a, windows_start), 0
    )
    return covered


def covered_before(a: Intervals, times: Int64) -> Int64:
    """Length of `a` that lies before each time."""
    if len(a) == 0:
        return np.zeros(len(times), np.int64)
    sums = np.concatenate([[0], np.cumsum(a.end - a.start)])
    index = np.searchsorted(a.start, times, side="right") - 1
    last = np.maximum(index, 0)
    inside = np.minimum(times, a.end.take(last)) - a.start.take(last)
    result: Int64 = np.where(index >= 0, sums.take(last) + inside, 0)
    return result


def contains(a: Intervals, times: Int64) -> Bool:
    """Mask of the times that `a` covers."""
    if len(a) == 0:
        return np.zeros(len(times), np.bool_)
    index = np.searchsorted(a.start, times, side="right") - 1
    result: Bool = (index >= 0) & (times < a.end[np.maximum(index, 0)])
    return result
