"""What the host was doing when: sets of time by kind of activity, on the threads that drive the device."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from stepscope.analyses.intervals import Intervals, join, union
from stepscope.analyses.links import Links
from stepscope.analyses.naming import matching
from stepscope.core.trace import HOST_RANGES, NONE, Bool, Int64, Kind, Trace

SYNC_CALL = re.compile(
    r"^(cuda|hip)(Device|Stream|Event|Ctx)Synchronize|^cu(Ctx|Stream|Event)Synchronize|^(cuda|hip)Memcpy(2D|3D|ToSymbol|FromSymbol|Peer)?$"
    r"|^cuMemcpy(HtoD|DtoH|DtoD)(_v2)?$|^(ze|ur)\w*(Synchronize|EventWait|QueueFinish)"
)
"""Calls that hold the host until the device is done."""
ALLOCATOR_CALL = re.compile(
    r"^(cuda|hip)(Malloc|Free|HostAlloc|HostRegister|HostUnregister|HostMalloc|HostFree)"
    r"|^cuMem(Alloc|Free|Create|Map|Unmap|Release|SetAccess|AddressReserve)|^(ze|ur)\w*(MemAlloc|USM\w*Alloc|MemFree|USMFree)"
)
COMPILE_RANGE = re.compile(
    r"dynamo_timed|^dynamo$|entire_frame_compile|compile_fx|^inductor|Inductor.*compile|compile_id=|triton.*compile|compile_attempt"
    r"|^backend_compile|torch/_dynamo/convert_frame|torch/_inductor/compile_fx|^nvfuser.*compile|XLA.*[Cc]ompile"
)
LOADER_RANGE = re.compile(
    r"^enumerate\(DataLoader\)|DataLoader\w*\.__next__|torch/utils/data/dataloader\.py\(\d+\): __next__|dataloader_iter"
    r"|^#*\s*data_?load"
    r"|\bnext_batch\b|\bget_batch\b|\bload_batch\b",
    re.IGNORECASE,
)
IO_RANGE = re.compile(
    r"torch/serialization\.py\(\d+\): (save|load)\b|torch/distributed/checkpoint/|safetensors.*\b(save|load)\w*"
    r"|\b(save|load)_checkpoint\b|^checkpoint[._ ]?save|\bsave_pretrained\b|\bnp\.(save|load)\b",
    re.IGNORECASE,
)

SHORT_GAP_NS = 1_000_000
"""Python between two operators up to this long belongs to launching; longer stretches with nothing recorded do not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostActivity:
    """Sets of host time; they may overlap (a sync inside the loader)."""

    compile: Intervals
    allocator: Intervals
    input: Intervals
    io: Intervals
    sync: Intervals
    at_work: Intervals
    """Anything recorded, short gaps closed."""
    sync_call: Bool
    """Per event: a call that waits for the device by its nature."""
    driving: Bool
    """Per event: a host range on a thread that launches work or holds the step marks."""
    blocking_copy: Bool
    """Per event: a copy that held the host until it was done."""


def host_activity(trace: Trace, links: Links) -> HostActivity:
    """The activities of the threads that launch work or hold the step marks."""
    driving = _driving_threads(trace, links)
    blocking = blocking_copies(trace, links)
    blocking_calls = np.zeros(len(trace), np.bool_)
    blocking_calls[links.launch[blocking]] = True
    runtime, ranges = trace.is_kind(Kind.RUNTIME), trace.is_kind(Kind.OP, Kind.MARK, Kind.PYTHON)

    def when(mask: Bool) -> Intervals:
        chosen = mask & driving
        return union(trace.start_ns[chosen], trace.end_ns[chosen])

    named: Callable[[re.Pattern[str]], Bool] = lambda pattern: matching(trace, pattern)  # noqa: E731
    return HostActivity(
        compile=when((ranges & named(COMPILE_RANGE)) | trace.is_kind(Kind.COMPILE)),
        allocator=when(runtime & named(ALLOCATOR_CALL)),
        input=when(ranges & named(LOADER_RANGE)),
        io=when(ranges & named(IO_RANGE)),
        sync=when((runtime & named(SYNC_CALL)) | blocking_calls),
        at_work=_close_gaps(when(trace.is_kind(Kind.OP, Kind.RUNTIME) | _inner_marks(trace)), SHORT_GAP_NS),
        sync_call=runtime & named(SYNC_CALL) & driving,
        driving=driving,
        blocking_copy=blocking,
    )


def _driving_threads(trace: Trace, links: Links) -> Bool:
    """Mask of the host events on threads that launch work; every host thread when none does."""
    host = trace.is_kind(*HOST_RANGES, Kind.COMPILE)
    calls = links.launch[links.launch != NONE]
    threads = np.unique(trace.thread[calls])
    marks = np.flatnonzero(trace.is_kind(Kind.MARK))
    if len(marks):
        threads = np.union1d(threads, trace.thread[marks[np.argmax(trace.dur_ns[marks])]])
    return host & np.isin(trace.thread, threads) if len(threads) else host


def _inner_marks(trace: Trace) -> Bool:
    """Marks other than the step's own: those would cover everything."""
    step = np.array([name.startswith("ProfilerStep") for name in trace.names], np.bool_)
    return trace.is_kind(Kind.MARK) & ~step[trace.name] if len(trace) else np.zeros(0, np.bool_)


def blocking_copies(trace: Trace, links: Links) -> Bool:
    """Mask of the copies whose launching call returned only once they were done."""
    mask = np.zeros(len(trace), np.bool_)
    copies = np.flatnonzero(trace.is_kind(Kind.MEMCPY) & (links.launch != NONE))
    call: Int64 = links.launch[copies]
    held = (trace.kind[call] == Kind.RUNTIME) & (trace.end_ns[call] >= trace.end_ns[copies])
    mask[copies[held]] = True
    return mask


def _close_gaps(a: Intervals, longest_ns: int) -> Intervals:
    """The same set with gaps up to `longest_ns` filled."""
    if len(a) < 2:
        return a
    gap = a.start[1:] - a.end[:-1] <= longest_ns
    return join(a, Intervals(a.end[:-1][gap], a.start[1:][gap])) if gap.any() else a
