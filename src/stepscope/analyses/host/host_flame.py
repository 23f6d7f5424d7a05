"""Where the host's time goes, by Python's stacks: each stack with the time that is its own.

Recorded stacks (`with_stack=True`) have a start and an end for every frame, so this is time and not
samples. The thread with most of it is the one that trains.
"""

from __future__ import annotations

import numpy as np

from stepscope.analyses.grouping import grouped, stable_order, sums
from stepscope.analyses.host.frames import line_of
from stepscope.analyses.host.nesting import enclosing_ranges, num_around
from stepscope.core.trace import NONE, Int64, Kind, Trace

MOST_FRAMES = 1_000_000
MOST_STACKS = 1500
"""Those with most time; the picture shows no narrower ones."""

Stack = tuple[tuple[str, ...], int]
"""The frames from the outermost in, and the nanoseconds in the last of them itself."""


def host_flame(trace: Trace, window: tuple[int, int]) -> tuple[Stack, ...]:
    """The stacks of the training thread inside the window, the longest first; empty where no frames
    were recorded."""
    low, high = window
    start, end = np.maximum(trace.start_ns, low), np.minimum(trace.end_ns, high)
    frames = np.flatnonzero(trace.is_kind(Kind.PYTHON) & (start < end))
    if not len(frames):
        return ()
    by_thread = np.bincount(trace.thread[frames], (end - start)[frames])
    frames = frames[trace.thread[frames] == int(np.argmax(by_thread))]
    frames = frames[:MOST_FRAMES]
    return _stacks(trace, frames, start[frames], end[frames])


def _stacks(trace: Trace, frames: Int64, start: Int64, end: Int64) -> tuple[Stack, ...]:
    """By the frames alone: a mark that was entered in one goes on after it, and so the nesting of
    all ranges does not say which frames are open."""
    above = enclosing_ranges(start, end)
    depth = num_around(above)
    by_depth = stable_order(depth, int(depth.max()) + 1)
    levels = np.split(by_depth, np.flatnonzero(np.diff(depth[by_depth])) + 1)
    name, num_names = trace.name[frames].astype(np.int64), len(trace.names)
    # What is past the top stands at the end, where NONE points.
    path, until = np.full(len(frames) + 1, NONE), np.append(end, np.iinfo(np.int64).max)
    paths = np.empty(0, np.int64)
    for level in levels:
        # A frame never outlives its caller; where clocks say so, it ends with it.
        until[level] = np.clip(until[level], start[level], until[above[level]])
        keys = path[above[level]] * num_names + name[level]
        order, begins = grouped(keys)
        sizes = np.diff(begins, append=len(keys))
        path[level[order]] = np.repeat(np.arange(len(begins)), sizes) + len(paths)
        paths = np.append(paths, keys[order[begins]])
    spent, called = until[:-1] - start, above != NONE
    own = sums(path[:-1], spent, len(paths))
    own -= sums(path[above[called]], spent[called], len(paths))
    callers, codes = (part.tolist() for part in np.divmod(paths, num_names))
    words = {code: line_of(trace.names[code]) for code in set(codes)}
    longest = np.argsort(-own, kind="stable")[:MOST_STACKS]
    return tuple(
        (_names(at, callers, codes, words), int(own[at])) for at in longest.tolist() if own[at] > 0
    )


def _names(at: int, callers: list[int], codes: list[int], words: dict[int, str]) -> tuple[str, ...]:
    names: list[str] = []
    while at != NONE:
        names.append(words[codes[at]])
        at = callers[at]
    return tuple(reversed(names))
