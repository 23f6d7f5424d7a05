"""Where the host's time goes, by Python's stacks: each stack with the time that is its own.

Recorded stacks (`with_stack=True`) have a start and an end for every frame, so this is time and not
samples. The thread with most of it is the one that trains.
"""

from __future__ import annotations

import numpy as np

from stepscope.analyses.host.frames import line_of
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
    # Of frames that begin at once the outer one is the longer.
    frames = frames[np.lexsort((-end[frames], start[frames]))][:MOST_FRAMES]
    return _stacks(trace, frames, start[frames], end[frames])


def _stacks(trace: Trace, frames: Int64, start: Int64, end: Int64) -> tuple[Stack, ...]:
    """By a stack of the frames that are open: a mark that was entered in one goes on after it, and
    so the ranges' own nesting does not say which frames are."""
    ids: dict[tuple[int, int], int] = {}
    own: list[int] = []
    opened: list[tuple[int, int]] = []
    columns = (trace.name[frames].tolist(), start.tolist(), end.tolist())
    for name, begins, ends in zip(*columns, strict=True):
        while opened and opened[-1][0] <= begins:
            opened.pop()
        above = opened[-1][1] if opened else NONE
        # A frame never outlives its caller; where clocks say so, it ends with it.
        ends = min(ends, opened[-1][0]) if opened else ends
        path = ids.setdefault((above, name), len(ids))
        if path == len(own):
            own.append(0)
        own[path] += ends - begins
        if above != NONE:
            own[above] -= ends - begins
        opened.append((ends, path))
    paths = list(ids)
    longest = sorted(range(len(paths)), key=lambda at: -own[at])[:MOST_STACKS]
    words = {code: line_of(trace.names[code]) for _, code in paths}
    return tuple((_names(at, paths, words), own[at]) for at in longest if own[at] > 0)


def _names(at: int, paths: list[tuple[int, int]], words: dict[int, str]) -> tuple[str, ...]:
    names: list[str] = []
    while at != NONE:
        at, code = paths[at]
        names.append(words[code])
    return tuple(reversed(names))
