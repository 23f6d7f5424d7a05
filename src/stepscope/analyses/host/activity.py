"""What the host was doing when:
sets of time by kind of activity, on the threads that drive the device.

Host calls and copies inside the measured windows:
syncs, allocator, loader, compiler, copies by kind.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
from msgspec import Struct

from stepscope.analyses.checkpoints import checkpoint_saves
from stepscope.analyses.grouping import distinct, grouped, matching
from stepscope.analyses.intervals import Intervals, join, time_of
from stepscope.analyses.links import Links, host_collectives
from stepscope.core.facts import CallRow, CopyRow, Host
from stepscope.core.trace import HOST_RANGES, NONE, Bool, Int64, Kind, Trace

SYNC_CALL = re.compile(
    r"^(cuda|hip)(Device|Stream|Event|Ctx)Synchronize|^cu(Ctx|Stream|Event)Synchronize"
    r"|^(cuda|hip)Memcpy(2D|3D|ToSymbol|FromSymbol|Peer)?$"
    r"|^cuMemcpy(HtoD|DtoH|DtoD)(_v2)?$|^(ze|ur)\w*(Synchronize|EventWait|QueueFinish)"
)
"""Calls that hold the host until the device is done."""
ALLOCATOR_CALL = re.compile(
    r"^(cuda|hip)(Malloc|Free|HostAlloc|HostRegister|HostUnregister|HostMalloc|HostFree)"
    r"|^cuMem(Alloc|Free|Create|Map|Unmap|Release|SetAccess|AddressReserve)"
    r"|^(ze|ur)\w*(MemAlloc|USM\w*Alloc|MemFree|USMFree)"
)
COMPILE_RANGE = re.compile(
    r"dynamo_timed|^dynamo$|entire_frame_compile|compile_fx|^inductor|Inductor.*compile|compile_id="
    r"|triton.*compile|compile_attempt|^backend_compile|torch/_dynamo/convert_frame"
    r"|torch/_inductor/compile_fx|^nvfuser.*compile|XLA.*[Cc]ompile"
)
LOADER_RANGE = re.compile(
    r"^enumerate\((DataLoader|IterableDataset)\)|DataLoader\w*\.__next__"
    r"|torch/utils/data/dataloader\.py\(\d+\): __next__"
    r"|dataloader_iter|^#*\s*data_?load"
    r"|\bnext_batch\b|\bget_batch\b|\bload_batch\b"
    r"|^(?!torch/).*\.py\(\d+\): __getitem__$",
    re.IGNORECASE,
)
COLLECTOR_RANGE = re.compile(
    r"^Python GC$|^<built-in (function|method) collect\b|^(python )?gc[._ ]?collect(\(\))?( at |$)",
    re.IGNORECASE,
)
IO_RANGE = re.compile(
    r"^torch\.save( at |$)"
    r"|torch/serialization\.py\(\d+\): (save|load)\b|torch/distributed/checkpoint/"
    r"|safetensors.*\b(save|load)\w*"
    r"|\b(save|load)_checkpoint\b|^checkpoint[._ ]?save|\bsave_pretrained\b|\bnp\.(save|load)\b",
    re.IGNORECASE,
)

ON_DEVICE_COPY = re.compile(r"DtoD|Device -> Device", re.IGNORECASE)
BLOCKING_CALL_NS = 20_000
"""A call that only launches a copy takes microseconds."""
BLOCKING_SLACK_NS = 50_000

PROFILER_SPAN = re.compile(r"^PyTorch Profiler")
"""The profiler's mark over the whole recording."""

SHORT_GAP_NS = 1_000_000
"""Python between two operators up to this long belongs to launching;
longer stretches with nothing recorded do not."""


class HostActivity(Struct, frozen=True, kw_only=True):
    """Sets of host time; they may overlap (a sync inside the loader)."""

    compile: Intervals
    allocator: Intervals
    input: Intervals
    io: Intervals
    gc: Intervals
    """Time in the garbage collector."""
    sync: Intervals
    collective: Intervals
    """Time in a collective that the host itself carries out (gloo), on any thread."""
    profiler: Intervals
    """Time in the profiler's own work."""
    at_work: Intervals
    """Operators and runtime calls, short gaps closed.
    Marks say what they are named, not that anything is done."""
    sync_call: Bool
    """Mask of the calls that wait for the device by their nature."""
    driving: Bool
    """Mask of the host ranges on a thread that launches work or holds the step marks."""
    blocking_copy: Bool
    """Mask of the copies that held the host until they were done."""


def host_activity(trace: Trace, links: Links) -> HostActivity:
    """The activities of the threads that launch work or hold the step marks."""
    driving = _driving_threads(trace, links)
    blocking = blocking_copies(trace, links)
    blocking_calls = np.zeros(len(trace), np.bool_)
    blocking_calls[links.launch[blocking]] = True
    collectives = host_collectives(trace)
    runtime, ranges = trace.is_kind(Kind.RUNTIME), trace.is_kind(Kind.OP, Kind.MARK, Kind.PYTHON)

    def when(mask: Bool) -> Intervals:
        return time_of(trace, mask & driving)

    named: Callable[[re.Pattern[str]], Bool] = lambda pattern: matching(trace, pattern)  # noqa: E731
    return HostActivity(
        compile=when((ranges & named(COMPILE_RANGE)) | trace.is_kind(Kind.COMPILE)),
        allocator=when(runtime & named(ALLOCATOR_CALL)),
        input=when(ranges & named(LOADER_RANGE)),
        io=join(when(ranges & named(IO_RANGE)), checkpoint_saves(trace, links, driving)),
        gc=when(ranges & named(COLLECTOR_RANGE)),
        sync=when((runtime & named(SYNC_CALL)) | blocking_calls),
        collective=time_of(trace, collectives),
        profiler=when(trace.is_kind(Kind.OVERHEAD) & ~named(PROFILER_SPAN)),
        at_work=close_gaps(when(trace.is_kind(Kind.OP, Kind.RUNTIME) & ~collectives), SHORT_GAP_NS),
        sync_call=runtime & named(SYNC_CALL) & driving,
        driving=driving,
        blocking_copy=blocking,
    )


def _driving_threads(trace: Trace, links: Links) -> Bool:
    """Mask of the host events on threads that launch work; every host thread when none does."""
    host = trace.is_kind(*HOST_RANGES, Kind.COMPILE, Kind.OVERHEAD)
    calls = links.launch[links.launch != NONE]
    drives = np.bincount(trace.thread[calls], minlength=len(trace.threads)) > 0
    # A collective that waits for a late rank may be the longest mark of all,
    # on a thread that drives nothing.
    marks = np.flatnonzero(trace.is_kind(Kind.MARK) & ~host_collectives(trace))
    if len(marks):
        drives[trace.thread[marks[np.argmax(trace.dur_ns[marks])]]] = True
    return host & drives[trace.thread] if drives.any() else host


def blocking_copies(trace: Trace, links: Links) -> Bool:
    """Mask of the copies over the bus whose launching call took
    long and returned no sooner than they were (almost) done.

    A copy from memory that is not pinned is staged by the host:
    its call returns with the last piece still under way.
    """
    mask = np.zeros(len(trace), np.bool_)
    over_bus = trace.is_kind(Kind.MEMCPY) & ~matching(trace, ON_DEVICE_COPY)
    copies = np.flatnonzero(over_bus & (links.launch != NONE))
    call: Int64 = links.launch[copies]
    early = np.maximum(BLOCKING_SLACK_NS, trace.dur_ns[copies] // 20)
    held = (trace.kind[call] == Kind.RUNTIME) & (trace.end_ns[call] >= trace.end_ns[copies] - early)
    mask[copies[held & (trace.dur_ns[call] > BLOCKING_CALL_NS)]] = True
    return mask


def close_gaps(a: Intervals, longest_ns: int) -> Intervals:
    """The same set with gaps up to `longest_ns` filled."""
    if len(a) < 2:
        return a
    gap = a.start[1:] - a.end[:-1] <= longest_ns
    return join(a, Intervals(a.end[:-1][gap], a.start[1:][gap])) if gap.any() else a


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
