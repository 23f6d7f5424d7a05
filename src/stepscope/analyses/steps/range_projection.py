"""Host ranges projected onto the device, as Nsight Systems' own `nvtx_gpu_proj_sum` does it.

A piece of device work is contained in a range when the call that launched it lies in the range, on
the range's own thread. The projection runs from the start of the first work contained to the end of
the last; what lies between is counted too, and a range inside another is not taken off the outer
one (Nsight Systems' manual, nvtx_gpu_proj_sum).
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from stepscope.analyses.grouping import distinct, grouped, median
from stepscope.analyses.links import Links
from stepscope.core.trace import NONE, Bool, Int64, Kind, Trace

PAIRS_AT_ONCE = 4_000_000
"""Of a range and a call inside it: memory stays bounded however deep ranges nest."""
NOTHING = np.iinfo(np.int64).max


class Projections(Struct, frozen=True, kw_only=True):
    """One entry per range that contains device work (`ranges`, indices into the trace)."""

    ranges: Int64
    start_ns: Int64
    end_ns: Int64
    num_ops: Int64
    """Launching calls contained; a CUDA graph's launch is one."""


class ProjectionRow(Struct, frozen=True, kw_only=True):
    """All ranges of a name: nvtx_gpu_proj_sum's columns."""

    name: str
    instances: int
    total_proj_ns: int
    total_range_ns: int
    min_ns: int
    median_ns: float
    max_ns: int
    num_ops: int


def project(trace: Trace, links: Links, ranges: Bool | None = None) -> Projections:
    """Each range's extent on the device; by default of all marks and operators.
    Ranges without device work have none."""
    chosen = np.flatnonzero(trace.is_kind(Kind.MARK, Kind.OP) if ranges is None else ranges)
    calls, first, last = _extents(trace, links)
    low = np.empty(len(chosen), np.int64)
    high = np.empty(len(chosen), np.int64)
    begin, end, count = np.full_like(low, NOTHING), np.full_like(low, NONE), np.zeros_like(low)
    for thread in distinct(trace.thread[calls]).tolist():
        mine = np.flatnonzero(trace.thread[chosen] == thread)
        own = np.flatnonzero(trace.thread[calls] == thread)
        starts = trace.start_ns[calls[own]]
        low[mine] = np.searchsorted(starts, trace.start_ns[chosen[mine]], side="left")
        high[mine] = np.searchsorted(starts, trace.end_ns[chosen[mine]], side="right")
        for block in _blocks(mine, high[mine] - low[mine]):
            lengths = high[block] - low[block]
            owner = np.repeat(block, lengths)
            offset = np.arange(len(owner)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
            call = own[np.repeat(low[block], lengths) + offset]
            inside = trace.end_ns[calls[call]] <= trace.end_ns[chosen[owner]]
            owner, call = owner[inside], call[inside]
            np.minimum.at(begin, owner, first[call])
            np.maximum.at(end, owner, last[call])
            np.add.at(count, owner, 1)
    has = count > 0
    return Projections(ranges=chosen[has], start_ns=begin[has], end_ns=end[has], num_ops=count[has])


def projection_rows(trace: Trace, projections: Projections) -> tuple[ProjectionRow, ...]:
    """The summary by name, the longest total first."""
    length, name = projections.end_ns - projections.start_ns, trace.name[projections.ranges]
    rows = []
    for code in distinct(name).tolist():
        mine = name == code
        lengths = length[mine]
        rows.append(
            ProjectionRow(
                name=trace.names[code],
                instances=len(lengths),
                total_proj_ns=int(lengths.sum()),
                total_range_ns=int(trace.dur_ns[projections.ranges[mine]].sum()),
                min_ns=int(lengths.min()),
                median_ns=median(lengths),
                max_ns=int(lengths.max()),
                num_ops=int(projections.num_ops[mine].sum()),
            )
        )
    return tuple(sorted(rows, key=lambda row: -row.total_proj_ns))


def _extents(trace: Trace, links: Links) -> tuple[Int64, Int64, Int64]:
    """The calls that launched work, by their start,
    with the first start and the last end of what each launched."""
    work = np.flatnonzero(trace.device_work & (links.launch != NONE))
    work = work[trace.kind[links.launch[work]] == Kind.RUNTIME]
    if len(work) == 0:
        return (np.empty(0, np.int64),) * 3
    order, begins = grouped(links.launch[work])
    work = work[order]
    first = np.minimum.reduceat(trace.start_ns[work], begins)
    last = np.maximum.reduceat(trace.end_ns[work], begins)
    return links.launch[work[begins]], first, last


def _blocks(items: Int64, weights: Int64) -> list[Int64]:
    """The items in blocks of about PAIRS_AT_ONCE weight."""
    if len(items) == 0:
        return []
    block = np.cumsum(weights) // PAIRS_AT_ONCE
    return np.split(items, np.flatnonzero(np.diff(block)) + 1)
