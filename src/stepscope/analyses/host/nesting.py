"""Which host range encloses which: the call tree, from times alone."""

from __future__ import annotations

from ctypes import CDLL
from typing import Any

import numpy as np

from stepscope.analyses.grouping import stable_order
from stepscope.core.compiled import call, library
from stepscope.core.trace import HOST_RANGES, NONE, Bool, Int64, Trace


def enclosing(trace: Trace) -> Int64:
    """Index of the innermost host range open on each event's thread when it began; NONE at the top
    and off the host.

    Before (one thread, by start)        After
        0  aten::linear    [0, 90)           NONE
        1  aten::addmm     [10, 80)          0
        2  cudaLaunchKernel [20, 30)         1
        3  aten::relu      [95, 99)          NONE
    """
    compiled = library()
    return by_levels(trace) if compiled is None else by_stack(compiled, trace)


def by_levels(trace: Trace) -> Int64:
    """All events at once, level by level."""
    parent = np.full(len(trace), NONE, np.int64)
    host = np.flatnonzero(trace.is_kind(*HOST_RANGES))
    if len(host) == 0:
        return parent
    by_thread = host[stable_order(trace.thread[host], len(trace.threads))]
    above = _above(*_on_one_axis(trace, by_thread))
    parent[by_thread] = np.append(by_thread, NONE)[above]
    return parent


def by_stack(compiled: CDLL, trace: Trace) -> Int64:
    """The same by nesting.c, with a stack for each thread."""
    columns = (trace.start_ns, trace.dur_ns, trace.kind, trace.thread)
    return _parents(compiled, *columns, num_threads=len(trace.threads))


def enclosing_ranges(start: Int64, end: Int64) -> Int64:
    """The same for ranges of one thread, in order of start."""
    compiled = library()
    if compiled is not None:
        kind, thread = np.full(len(start), HOST_RANGES[0], np.uint8), np.zeros(len(start), np.int32)
        return _parents(compiled, start, end - start, kind, thread, num_threads=1)
    return _above(start, np.maximum(end, start + 1)) if len(start) else start


def num_around(parent: Int64) -> Int64:
    """How many ranges are around each."""
    # What is past the top stands at the end.
    top = len(parent)
    above = np.append(np.where(parent == NONE, top, parent), top)
    num = (above != top).astype(np.int32)
    # Each turn looks twice as far up.
    while above.min() != top:
        num += num.take(above)
        above = above.take(above)
    around: Int64 = num[:-1].astype(np.int64)
    return around


def _parents(
    compiled: CDLL, start: Int64, dur: Int64, kind: Any, thread: Any, *, num_threads: int
) -> Int64:
    parent, tops = np.empty(len(start), np.int64), np.empty(num_threads, np.int64)
    is_host = np.zeros(256, np.bool_)
    is_host[list(HOST_RANGES)] = True
    columns = [
        np.ascontiguousarray(column, dtype)
        for column, dtype in (
            (start, np.int64),
            (dur, np.int64),
            (kind, np.uint8),
            (thread, np.int32),
        )
    ]
    is_done = call(
        compiled, "stepscope_enclosing", len(parent), *columns, is_host, len(tops), tops, parent
    )
    assert is_done, "an event of a thread that is not in the table"
    return parent


def _above(start: Int64, end: Int64) -> Int64:
    """Range above each, by how many ranges are open when it begins."""
    depth = np.arange(len(start)) - _num_at_most(np.sort(end), start)
    above = _last_one_level_up(depth)
    _adopt_overhanging(above, depth, start, end)
    return above


def _adopt_overhanging(above: Int64, depth: Int64, start: Int64, end: Int64) -> None:
    """Go through those with a stack where a range outlives what it began in, from one moment at
    which none is open to the next.

    A mark entered inside a Python frame (`__enter__`) goes on when the frame is over;
    levels alone do not see it there.
    """
    overhanging = np.flatnonzero((above != NONE) & (end > end[above]))
    if not len(overhanging):
        return
    group = np.cumsum(depth == 0) - 1
    is_crossed = np.zeros(int(group[-1]) + 1, np.bool_)
    is_crossed[group[overhanging]] = True
    events = np.flatnonzero(is_crossed[group])
    stack: list[tuple[int, int]] = []
    parents = []
    rows = zip(events.tolist(), start[events].tolist(), end[events].tolist(), strict=True)
    for event, begin, until in rows:
        while stack and stack[-1][1] <= begin:
            stack.pop()
        parents.append(stack[-1][0] if stack else NONE)
        stack.append((event, until))
    above[events] = parents


def _on_one_axis(trace: Trace, events: Int64) -> tuple[Int64, Int64]:
    """Starts and ends, every thread moved to a stretch of its own;
    an empty event lasts 1 ns here so that it has an inside."""
    start = trace.start_ns[events]
    start -= start.min()
    end = np.maximum(trace.dur_ns[events], 1)
    end += start
    thread = trace.thread[events]
    edges = np.flatnonzero(thread[1:] != thread[:-1]) + 1
    span = int(end.max()) + 1
    if span * (len(edges) + 1) >= 2**62:
        ranks = np.unique(np.concatenate([start, end]), return_inverse=True)[1].astype(np.int64)
        start, end = ranks[: len(start)], ranks[len(start) :]
        span = int(end.max()) + 1
    if len(edges):
        lengths = np.diff(edges, prepend=0, append=len(events))
        offset = np.repeat(np.arange(len(lengths)) * span, lengths)
        start += offset
        end += offset
    return start, end


def _num_at_most(ordered: Int64, limits: Int64) -> Int64:
    """Number of `ordered` that are at most each of the limits. Both are sorted, and stable sorting
    merges such: faster than a search for each."""
    merged = np.argsort(np.concatenate([ordered, limits]), kind="stable")
    return np.flatnonzero(merged >= len(ordered)) - np.arange(len(limits))


def _last_one_level_up(depth: Int64) -> Int64:
    """Last earlier position whose depth is one less, for each position; NONE for depth 0. There is
    one: the first depth is 0, and no depth is more than one above that before it."""
    n = len(depth)
    order = stable_order(depth, int(depth.max()) + 1)
    keys = depth[order] * n + order
    num_up = _num_at_most(keys, keys - n)
    above = np.full(n, NONE, np.int64)
    above[order] = np.append(order, NONE)[num_up - 1]
    return above


def ancestor_with(parent: Int64, events: Int64, marked: Bool, *, outermost: bool = False) -> Int64:
    """Innermost (or outermost) of each of `events` and its ancestors that is marked; NONE when none
    is."""
    if not marked.any():
        return np.full(len(events), NONE, np.int64)
    compiled = library()
    if compiled is None:
        return ancestor_by_levels(parent, events, marked, outermost=outermost)
    result = np.empty(len(events), np.int64)
    is_done = call(
        compiled,
        "stepscope_ancestor_with",
        min(len(parent), len(marked)),
        np.ascontiguousarray(parent, np.int64),
        np.ascontiguousarray(marked, np.bool_),
        len(events),
        np.ascontiguousarray(events, np.int64),
        int(outermost),
        result,
    )
    assert is_done, "an event that is not there, or that does not come after what is around it"
    return result


def ancestor_by_levels(
    parent: Int64, events: Int64, marked: Bool, *, outermost: bool = False
) -> Int64:
    """The same for all events at once, from level to level."""
    result = np.full(len(events), NONE, np.int64)
    if not marked.any():
        return result
    pending = np.flatnonzero(events != NONE)
    ancestor = events[pending]
    while len(pending):
        hit = marked[ancestor]
        result[pending[hit]] = ancestor[hit]
        ancestor = parent[ancestor]
        going_on = (ancestor != NONE) if outermost else (ancestor != NONE) & ~hit
        pending, ancestor = pending[going_on], ancestor[going_on]
    return result


def is_within(trace: Trace, parent: Int64, events: Int64, marked: Bool) -> Bool:
    """Mask of the events that are marked or have a marked range around them. A thread without
    marked events has none such, and nobody looks up there."""
    threads = np.zeros(len(trace.threads), np.bool_)
    threads[trace.thread[marked]] = True
    inside: Bool = (events != NONE) & threads[trace.thread[events]]
    inside[inside] = ancestor_with(parent, events[inside], marked) != NONE
    return inside
