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


def project(trace: Trace, links: Links, ranges: Bool) -> Projections:
    """Each range's extent on the device. Ranges without device work have none."""
    chosen = np.flatnonzero(ranges)
    calls, first, last = _extents(trace, links)
    low = np.empty(len(chosen), np.int64)
    high = np.empty(len(chosen), np.int64)
    begin, end = np.full_like(low, NOTHING), np.full_like(low, NONE)
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
    has = begin != NOTHING
    return Projections(ranges=chosen[has], start_ns=begin[has], end_ns=end[has])


def median_lengths(trace: Trace, projections: Projections) -> dict[str, float]:
    """Of all ranges of a name that contain device work, in nanoseconds."""
    length, name = projections.end_ns - projections.start_ns, trace.name[projections.ranges]
    return {trace.names[code]: median(length[name == code]) for code in distinct(name).tolist()}


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
