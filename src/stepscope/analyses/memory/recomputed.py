"""What activation checkpointing frees: the peak if blocks kept what they make again.

A block that is not checkpointed keeps from its forward pass what checkpointing makes again in
backward and backward then frees. At each moment that is what blocks have behind them and have not
yet made again.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from stepscope.analyses.grouping import distinct, matching
from stepscope.analyses.host.nesting import ancestor_with
from stepscope.analyses.memory.lifetimes import (
    NEVER,
    DeviceEvents,
    device_events,
    lifetimes,
    open_ranges,
)
from stepscope.analyses.memory.phases import BACKWARD, PhaseRuns, phase_runs
from stepscope.analyses.rank_context import RankContext
from stepscope.analyses.steps.projection import BACKWARD_RANGE, rerun_forward_ops
from stepscope.core.trace import NONE, Float64, Int64


class Recomputed(Struct, frozen=True, kw_only=True):
    """Bytes that would be held beside at each event of the allocator if nothing were
    checkpointed."""

    allocated: Int64
    extra: Float64
    num_blocks: int
    """A step."""

    def peak_at(self, share: float) -> int:
        """Peak with this share of the blocks no longer checkpointed."""
        return round(float((self.allocated + share * self.extra).max()))


def recomputed(context: RankContext) -> Recomputed | None:
    """None where nothing is made again, or the allocator's events were not recorded."""
    events, runs = device_events(context), phase_runs(context)
    if events is None or runs is None:
        return None
    trace, links, spans = context.trace, context.links, lifetimes(events)
    rerun = rerun_forward_ops(trace, links)
    if not rerun.any():
        return None
    made = np.full(len(spans.size), NONE, np.int64)
    made[spans.is_made] = open_ranges(trace, links, spans.start_ns[spans.is_made])
    ops = np.flatnonzero(rerun)
    node = ancestor_with(links.parent, ops, matching(trace, BACKWARD_RANGE))
    nodes, which = np.unique(node[node != NONE], return_inverse=True)
    again = ops[node != NONE]
    began, ended = _spans(trace.start_ns[again], trace.end_ns[again], which, len(nodes))
    block = np.searchsorted(began, spans.start_ns, side="right") - 1
    # Made while a block runs again, and still there when its backward begins.
    inside = (block != NONE) & (spans.start_ns < ended[np.maximum(block, 0)])
    kept = inside & (spans.end_ns > ended[np.maximum(block, 0)]) & (spans.end_ns != NEVER)
    size = np.bincount(block[kept], spans.size[kept], len(nodes)).astype(np.float64)
    return _with_extra(context, events, runs, began, size)


def _spans(start: Int64, end: Int64, which: Int64, num: int) -> tuple[Int64, Int64]:
    began = np.full(num, np.iinfo(np.int64).max, np.int64)
    ended = np.zeros(num, np.int64)
    np.minimum.at(began, which, start)
    np.maximum.at(ended, which, end)
    order = np.argsort(began)
    return began[order], ended[order]


def _with_extra(
    context: RankContext, events: DeviceEvents, runs: PhaseRuns, began: Int64, size: Float64
) -> Recomputed:
    """Add what blocks would hold: in forward, they are behind it as its time is; in backward, those
    are left that have not begun."""
    starts = np.append(runs.start_ns, NEVER)
    extra = np.zeros(len(events.time_ns))
    most, num_blocks = 0.0, 0
    for number in np.flatnonzero(runs.phase == BACKWARD).tolist():
        first, last = int(starts[number]), int(starts[number + 1])
        mine = (began >= first) & (began < last)
        if not mine.any():
            continue
        total = float(size[mine].sum())
        if total > most:
            most, num_blocks = total, int(mine.sum())
        inside = (events.time_ns >= first) & (events.time_ns < last)
        left = np.concatenate([np.cumsum(size[mine][::-1])[::-1], [0.0]])
        extra[inside] = left[np.searchsorted(began[mine], events.time_ns[inside], side="right")]
        if number:
            before = (events.time_ns >= starts[number - 1]) & (events.time_ns < first)
            until = _last_first_run(context, int(starts[number - 1]), first)
            span = max(until - int(starts[number - 1]), 1)
            done = np.clip((events.time_ns[before] - starts[number - 1]) / span, 0.0, 1.0)
            extra[before] = total * done
    return Recomputed(allocated=events.allocated, extra=extra, num_blocks=num_blocks)


def _last_first_run(context: RankContext, low: int, high: int) -> int:
    """When the last of the operators that run again ran first, between these moments."""
    trace, rerun = context.trace, rerun_forward_ops(context.trace, context.links)
    keys = trace.name.astype(np.int64) * (len(trace.details) + 1) + trace.detail
    again = distinct(keys[rerun])
    begin, end = np.searchsorted(trace.start_ns, (low, high))
    ops = np.arange(begin, end)
    ops = ops[(trace.sequence[ops] >= 0) & ~rerun[ops]]
    ops = ops[np.isin(keys[ops], again)]
    return int(trace.end_ns[ops].max()) if len(ops) else high
