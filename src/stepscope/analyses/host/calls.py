"""Host calls and copies inside the measured windows:
syncs, allocator, loader, compiler, copies by kind."""

from __future__ import annotations

import numpy as np

from stepscope.analyses.grouping import distinct, grouped
from stepscope.analyses.host.activity import (
    ALLOCATOR_CALL,
    COMPILE_RANGE,
    LOADER_RANGE,
    SYNC_CALL,
    HostActivity,
)
from stepscope.analyses.links import Links
from stepscope.analyses.naming import matching
from stepscope.core.facts import CallRow, CopyRow, Host
from stepscope.core.trace import NONE, Bool, Int64, Kind, Trace


def host_facts(trace: Trace, links: Links, host: HostActivity, low: int, high: int) -> Host:
    """What the host's calls cost, by name.
    Nested compile ranges are counted once, at the outermost."""
    inside = (trace.start_ns >= low) & (trace.start_ns < high)
    runtime, ranges = trace.is_kind(Kind.RUNTIME), trace.is_kind(Kind.OP, Kind.MARK)
    blocking = np.zeros(len(trace), np.bool_)
    blocking[links.launch[host.blocking_copy]] = True
    compiling = (ranges & matching(trace, COMPILE_RANGE)) | trace.is_kind(Kind.COMPILE)
    outer = compiling & ~((links.parent != NONE) & compiling[np.maximum(links.parent, 0)])
    return Host(
        syncs=call_rows(trace, inside & ((runtime & matching(trace, SYNC_CALL)) | blocking)),
        allocator=call_rows(trace, inside & runtime & matching(trace, ALLOCATOR_CALL)),
        loader=call_rows(trace, inside & ranges & matching(trace, LOADER_RANGE)),
        compile=call_rows(trace, inside & outer),
    )


def call_rows(trace: Trace, mask: Bool) -> tuple[CallRow, ...]:
    """Count, total and longest per name, the largest total first."""
    events = np.flatnonzero(mask)
    if len(events) == 0:
        return ()
    order, begins = grouped(trace.name[events])
    codes, counts = trace.name[events[order[begins]]], np.diff(begins, append=len(events))
    dur = trace.dur_ns[events[order]]
    totals, longest = np.add.reduceat(dur, begins), np.maximum.reduceat(dur, begins)
    order = np.argsort(-totals, kind="stable")
    return tuple(
        CallRow(
            name=trace.names[codes[i]],
            count=int(counts[i]),
            total_ns=int(totals[i]),
            longest_ns=int(longest[i]),
        )
        for i in order.tolist()
    )


def copy_bytes(trace: Trace, links: Links, copies: Int64) -> Int64:
    """The size of each copy, else what its launching call has recorded; NONE where neither has."""
    size, launch = trace.size_bytes[copies], links.launch[copies]
    return np.where(
        (size == NONE) & (launch != NONE), trace.size_bytes[np.maximum(launch, 0)], size
    )


def copy_rows(trace: Trace, links: Links, host: HostActivity, work: Int64) -> tuple[CopyRow, ...]:
    """Copies by kind. Their bytes are None as soon as one copy of the kind has none recorded."""
    copies = work[trace.kind[work] == Kind.MEMCPY]
    rows = []
    for code in distinct(trace.name[copies]).tolist():
        mine = copies[trace.name[copies] == code]
        size = copy_bytes(trace, links, mine)
        rows.append(
            CopyRow(
                kind=trace.names[code],
                count=len(mine),
                total_ns=int(trace.dur_ns[mine].sum()),
                bytes=int(size.sum()) if bool((size >= 0).all()) else None,
                num_blocking=int(host.blocking_copy[mine].sum()),
            )
        )
    return tuple(sorted(rows, key=lambda row: -row.total_ns))
