"""Which host range encloses which: the call tree, from times alone."""

from __future__ import annotations

import numpy as np

from stepscope.core.trace import HOST_RANGES, NONE, Bool, Int64, Trace

MAX_OVERHANGING = 20_000
"""Real traces have a few per step;
each costs a pass over its own length, so a hostile file must not bring millions."""


def enclosing(trace: Trace) -> Int64:
    """For each event, the index of the innermost host range open on its thread when it began;
    NONE at the top and off the host.

    Before (one thread, by start)        After
        0  aten::linear    [0, 90)           NONE
        1  aten::addmm     [10, 80)          0
        2  cudaLaunchKernel [20, 30)         1
        3  aten::relu      [95, 99)          NONE
    """
    parent = np.full(len(trace), NONE, np.int64)
    host = np.flatnonzero(trace.is_kind(*HOST_RANGES))
    if len(host) == 0:
        return parent
    by_thread = host[np.argsort(trace.thread[host], kind="stable")]
    start, end = _on_one_axis(trace, by_thread)
    depth = np.arange(len(start)) - np.searchsorted(np.sort(end), start, side="right")
    above = _last_one_level_up(depth)
    # An event that outlives what it began in can make the level above one that is over by now:
    # climb until it is open.
    while True:
        stale = (above != NONE) & (end[np.maximum(above, 0)] <= start)
        if not stale.any():
            break
        above[stale] = above[above[stale]]
    _adopt_overhanging(above, start, end)
    parent[by_thread] = np.where(above == NONE, NONE, by_thread[np.maximum(above, 0)])
    return parent


def _adopt_overhanging(above: Int64, start: Int64, end: Int64) -> None:
    """Give ranges that outlive what they began in the events that begin after that ended.

    A mark entered inside a Python frame (`__enter__`) goes on when the frame is over;
    levels alone do not see it there.
    """
    overhanging = np.flatnonzero((above != NONE) & (end > end[np.maximum(above, 0)]))
    for mark in overhanging[:MAX_OVERHANGING].tolist():
        later = slice(
            int(np.searchsorted(start, end[above[mark]])), int(np.searchsorted(start, end[mark]))
        )
        inside = above[later]
        outside = (inside == NONE) | (start[np.maximum(inside, 0)] < start[mark])
        inside[outside] = mark


def _on_one_axis(trace: Trace, events: Int64) -> tuple[Int64, Int64]:
    """Starts and ends, every thread moved to a stretch of its own;
    an empty event lasts 1 ns here so that it has an inside."""
    start = trace.start_ns[events] - int(trace.start_ns[events].min())
    end = np.maximum(start + trace.dur_ns[events], start + 1)
    thread = trace.thread[events]
    number = np.cumsum(np.concatenate([[0], thread[1:] != thread[:-1]]))
    span = int(end.max()) + 1
    if span * (int(number[-1]) + 1) >= 2**62:
        ranks = np.unique(np.concatenate([start, end]), return_inverse=True)[1].astype(np.int64)
        start, end = ranks[: len(start)], ranks[len(start) :]
        span = int(end.max()) + 1
    return start + number * span, end + number * span


def _last_one_level_up(depth: Int64) -> Int64:
    """For each position, the last earlier position whose depth is one less; NONE for depth 0."""
    n = len(depth)
    keys = np.sort(depth * n + np.arange(n))
    index = np.searchsorted(keys, (depth - 1) * n + np.arange(n)) - 1
    above = keys[np.maximum(index, 0)]
    exists = (depth > 0) & (index >= 0) & (above // n == depth - 1)
    return np.where(exists, above % n, NONE)


def ancestor_with(parent: Int64, events: Int64, marked: Bool, *, outermost: bool = False) -> Int64:
    """For each of `events`, the innermost (or outermost) of
    itself and its ancestors that is marked; NONE when none is."""
    result = np.full(len(events), NONE, np.int64)
    pending = np.flatnonzero(events != NONE)
    ancestor = events[pending]
    while len(pending):
        hit = marked[ancestor]
        result[pending[hit]] = ancestor[hit]
        ancestor = parent[ancestor]
        going_on = (ancestor != NONE) if outermost else (ancestor != NONE) & ~hit
        pending, ancestor = pending[going_on], ancestor[going_on]
    return result
