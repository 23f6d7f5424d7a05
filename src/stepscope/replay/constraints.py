"""What delayed each task, read off the recording:
its launch, its stream, or work of another stream."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from stepscope.analyses.grouping import distinct, median
from stepscope.analyses.links import Links
from stepscope.core.trace import NONE, Bool, Float64, Int64, Trace

LONGEST_LATENCY_NS = 1_000_000
"""Time from a launch to its work on an idle device, at most. Work that began later waited for
something, be it work queued before the recording began."""
USUAL_LATENCY_NS = 8_000.0
QUEUED_NS = 2_000
"""Work launched at least this long before its stream came free had been waiting there."""
USUAL_GAP_NS = 20_000
"""A longer gap between two queued tasks of a stream has
a cause on another stream, if one ended just then."""


class Constraints(Struct, frozen=True, kw_only=True):
    """Constraints of each task: it begins this long after its launch, after the one before on its
    stream, after one of another stream."""

    latency_ns: Float64
    gap_ns: Float64
    after: Int64
    """A task of another stream; NONE: none."""
    lag_ns: Float64
    """How long after that one's end."""
    backlog_ns: float
    """Time from the first launch to the first task: the device was busy with work from before the
    recording."""


def read_constraints(
    trace: Trace, links: Links, tasks: Int64, stream: Int64, compute: Bool
) -> Constraints:
    """Read off the recorded times what each task waited for last."""
    start, end, launched = (
        trace.start_ns[tasks],
        trace.end_ns[tasks],
        trace.start_ns[links.launch[tasks]],
    )
    before = _previous_end(start, end, stream)
    queued = launched + QUEUED_NS <= before
    delay = (start - launched).astype(np.float64)
    gap = np.maximum(start - before, 0).astype(np.float64)
    ready = np.where(queued, before, launched)
    after = _dependencies(start, end, stream, ready, USUAL_GAP_NS)
    waited = after != NONE
    prompt = ~queued & ~waited & (delay < LONGEST_LATENCY_NS)
    usual_latency = median(delay[prompt]) if prompt.any() else USUAL_LATENCY_NS
    short = queued & (gap < USUAL_GAP_NS)
    usual_gap = median(gap[short]) if short.any() else 1_000.0
    after = np.where(waited, after, _recorded_order(start, end, stream, compute))
    # Of ranks that share a device an event is seen late: what stood in its stream for long began
    # for it all the same.
    late = _dependencies(start, end, stream, ready, LONGEST_LATENCY_NS)
    after = np.where((after == NONE) & queued, late, after)
    ended = np.where(after != NONE, end[np.maximum(after, 0)], np.iinfo(np.int64).min // 2)
    # A stream that stood still for long while another was at work waited for it,
    # though not for the end of that task alone.
    stood = (
        queued
        & ~waited
        & (gap > USUAL_GAP_NS)
        & (ended > before)
        & (start - ended < LONGEST_LATENCY_NS)
    )
    return Constraints(
        latency_ns=np.where(prompt & (ended <= launched), delay, np.minimum(delay, usual_latency)),
        gap_ns=np.where(queued & ~waited & ~stood, gap, np.minimum(gap, usual_gap)),
        after=after,
        lag_ns=np.where(stood, np.maximum(start - ended, 0), 0).astype(np.float64),
        backlog_ns=float(start.min() - launched.min()) if len(tasks) else 0.0,
    )


def _previous_end(start: Int64, end: Int64, stream: Int64) -> Int64:
    """When the task before each one on its stream ended; long ago for the first."""
    order = np.lexsort((start, stream))
    before = np.full(len(start), np.iinfo(np.int64).min // 2, np.int64)
    same = np.concatenate([[False], stream[order][1:] == stream[order][:-1]])
    previous = np.concatenate([[0], end[order][:-1]])
    before[order] = np.where(same, previous, before[order])
    return before


def _dependencies(start: Int64, end: Int64, stream: Int64, ready: Int64, usual: int) -> Int64:
    """Dependencies of tasks that began long after they were ready: the task of another stream that
    ended last before they began, or as they did. A device that is full lets a task in as the last
    blocks of the one before it end."""
    after = np.full(len(start), NONE, np.int64)
    late = np.flatnonzero(start - ready > usual)
    if len(late) == 0 or len(distinct(stream)) < 2:
        return after
    by_end = np.argsort(end, kind="stable")
    ends = end[by_end]
    positions = np.searchsorted(ends, start[late] + USUAL_GAP_NS, side="right") - 1
    for task, position in zip(late.tolist(), positions.tolist(), strict=True):
        for back in range(position, max(position - 8, -1), -1):
            other = int(by_end[back])
            if start[other] >= start[task] - QUEUED_NS and end[other] > start[task] + QUEUED_NS:
                continue
            if stream[other] != stream[task] and other < task and end[other] > ready[task]:
                if start[task] - end[other] <= usual:
                    after[task] = other
                break
    return after


def _recorded_order(start: Int64, end: Int64, stream: Int64, compute: Bool) -> Int64:
    """Order of compute kernels on several streams: the kernel of another stream that ended last
    before each began.

    Whether it had to wait for that one is not recorded (a library that forks its streams waits by
    events). The replay keeps the order it saw, so that it never promises more kernels side by side
    than there were.
    """
    after = np.full(len(start), NONE, np.int64)
    kernels = np.flatnonzero(compute)
    if len(distinct(stream[kernels])) < 2:
        return after
    by_end = kernels[np.argsort(end[kernels], kind="stable")]
    positions = np.searchsorted(end[by_end], start[kernels], side="right") - 1
    order, streams = by_end.tolist(), stream.tolist()
    for task, position in zip(kernels.tolist(), positions.tolist(), strict=True):
        for back in range(position, max(position - 16, -1), -1):
            other = order[back]
            if other < task and streams[other] != streams[task]:
                after[task] = other
                break
    return after
