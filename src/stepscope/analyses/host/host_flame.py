"""Where the host's time goes, by Python's stacks: each stack with the time that is its own.

Recorded stacks (`with_stack=True`) have a start and an end for every frame, so this is time and not
samples. The thread with most of it is the one that trains.
"""

from __future__ import annotations

from itertools import pairwise, starmap

import numpy as np

from stepscope.analyses.grouping import coded_pairs, stable_order, sums
from stepscope.analyses.host.nesting import enclosing_ranges, num_around
from stepscope.analyses.host.source_locations import line_of
from stepscope.core.trace import NONE, Int64, Kind, Trace

MAX_FRAMES = 1_000_000
MAX_STACKS = 1500
"""Stacks with most time that are kept; the picture shows no narrower ones."""

Stack = tuple[tuple[str, ...], int]
"""The frames from the outermost in, and the nanoseconds in the last of them itself."""


def host_flame(trace: Trace, window: tuple[int, int]) -> tuple[Stack, ...]:
    """The stacks of the training thread inside the window, the longest first; empty where no frames
    were recorded."""
    low, high = window
    frames = np.flatnonzero(trace.is_kind(Kind.PYTHON))
    start, end = trace.start_ns.take(frames), trace.end_ns.take(frames)
    start, end = np.maximum(start, low), np.minimum(end, high)
    thread, length = trace.thread.take(frames), np.maximum(end - start, 0)
    if not length.any():
        return ()
    busiest = int(np.argmax(np.bincount(thread, length)))
    mine = np.flatnonzero((length > 0) & (thread == busiest))[:MAX_FRAMES]
    return _stacks(trace, frames.take(mine), start.take(mine), end.take(mine))


def _stacks(trace: Trace, frames: Int64, start: Int64, end: Int64) -> tuple[Stack, ...]:
    """Stacks by the frames alone: a mark that was entered in one goes on after it, and so the
    nesting of all ranges does not say which frames are open."""
    above = enclosing_ranges(start, end)
    depth = num_around(above)
    # Level after level, so that each lies in one piece.
    order = stable_order(depth, int(depth.max()) + 1)
    ends = np.cumsum(np.bincount(depth)).tolist()
    # What is past the top stands at the end, where NONE points.
    place = np.full(len(frames) + 1, NONE)
    place[order] = np.arange(len(frames))
    above, start = place.take(above.take(order)), start.take(order)
    name = trace.name.take(frames.take(order))
    path, until = np.full(len(frames) + 1, NONE), np.append(end.take(order), np.iinfo(np.int64).max)
    callers, codes = list[int](), list[int]()
    first, num = NONE, 1
    for level in starmap(slice, pairwise([0, *ends])):
        # A frame never outlives its caller; where clocks say so, it ends with it.
        until[level] = np.clip(until[level], start[level], until.take(above[level]))
        outer = path.take(above[level]) - first
        rows, caller, code = coded_pairs(outer, num, name[level], len(trace.names))
        path[level] = rows + len(codes)
        callers += (caller + first).tolist()
        first, num = len(codes), len(code)
        codes += code.tolist()
    spent = sums(path[:-1], until[:-1] - start, len(codes))
    own, caller = spent.copy(), np.array(callers)
    np.subtract.at(own, caller[caller != NONE], spent[caller != NONE])
    words = {code: line_of(trace.names[code]) for code in set(codes)}
    longest = np.argsort(-own, kind="stable")[:MAX_STACKS]
    return tuple(
        (_names(at, callers, codes, words), int(own[at])) for at in longest.tolist() if own[at] > 0
    )


def _names(at: int, callers: list[int], codes: list[int], words: dict[int, str]) -> tuple[str, ...]:
    names: list[str] = []
    while at != NONE:
        names.append(words[codes[at]])
        at = callers[at]
    return tuple(reversed(names))
