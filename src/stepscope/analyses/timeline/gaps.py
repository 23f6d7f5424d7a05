"""The window of a step as a row of pieces,
each the part of the step that the partition counts it to."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from stepscope.analyses.intervals import Intervals, between, empty, lengths_in
from stepscope.core.facts import PARTS
from stepscope.core.timeline import Gaps
from stepscope.core.trace import Int64

MAX_PIECES = 6000
"""More than a screen has pixels to show."""
NUM_BINS = 1500
"""Bins of the window, when there are more pieces than that."""


def gaps_of(parts: Mapping[str, Intervals], window: tuple[int, int], *, waits_split: bool) -> Gaps:
    """The pieces of one window, of the parts of all steps."""
    inside = {
        part: between(parts.get(part, empty()), *window) if window[1] > window[0] else empty()
        for part in PARTS
    }
    if sum(map(len, inside.values())) > MAX_PIECES:
        return _binned(inside, window, waits_split)
    start = np.concatenate([inside[part].start for part in PARTS])
    end = np.concatenate([inside[part].end for part in PARTS])
    code = np.repeat(np.arange(len(PARTS)), [len(inside[part]) for part in PARTS])
    order = np.argsort(start, kind="stable")
    return Gaps(
        start_ns=start[order],
        dur_ns=(end - start)[order],
        part=code[order],
        moved_ns=0,
        waits_split=waits_split,
    )


def _binned(inside: dict[str, Intervals], window: tuple[int, int], waits_split: bool) -> Gaps:
    """Parts of each bin of the window, one after the other: every part keeps its length, no piece
    moves out of its bin.

    Before (bins of 10)                          After
        compute [0, 3) idle [3, 4) compute [4, 10)   compute [0, 9) idle [9, 10)
        idle [10, 30)                                idle [10, 30)
    """
    edges = np.linspace(window[0], window[1], NUM_BINS + 1).astype(np.int64)
    edges[[0, -1]] = window
    lengths = np.stack(
        [lengths_in(edges[:-1], edges[1:], inside[part]) for part in PARTS], axis=1
    ).reshape(-1)
    part: Int64 = np.tile(np.arange(len(PARTS)), NUM_BINS)
    part, lengths = part[lengths > 0], lengths[lengths > 0]
    ends = np.cumsum(lengths)
    last = np.append(part[1:] != part[:-1], True) if len(part) else np.zeros(0, np.bool_)
    ends = ends[last]
    starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)
    return Gaps(
        start_ns=starts + window[0],
        dur_ns=ends - starts,
        part=part[last],
        moved_ns=int(np.diff(edges).max()),
        waits_split=waits_split,
    )
