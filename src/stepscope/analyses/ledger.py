"""A rank's ledger: its collectives with what is known of each, small enough to travel."""

from __future__ import annotations

import json
import re
from functools import lru_cache

import numpy as np

from stepscope.analyses.collectives import host_collectives
from stepscope.analyses.intervals import lengths_in, subtract
from stepscope.analyses.nesting import ancestor_with
from stepscope.analyses.survey import Survey
from stepscope.core.comms import Collective, Ledger
from stepscope.core.trace import NONE, CollectiveArgs, Int64
from stepscope.workload.dtypes import ITEM_BYTES, SCALAR_NAMES

OPS = (
    ("all_to_all", re.compile(r"all_?to_?all", re.IGNORECASE)),
    ("reduce_scatter", re.compile(r"reduce_?scatter", re.IGNORECASE)),
    ("all_gather", re.compile(r"all_?gather", re.IGNORECASE)),
    ("all_reduce", re.compile(r"all_?reduce", re.IGNORECASE)),
    ("broadcast", re.compile(r"broadcast", re.IGNORECASE)),
    ("barrier", re.compile(r"barrier", re.IGNORECASE)),
    ("send", re.compile(r"^(i?send|nccl:send|c10d::send)", re.IGNORECASE)),
    ("recv", re.compile(r"^(i?recv|nccl:recv|c10d::recv)", re.IGNORECASE)),
    ("sendrecv", re.compile(r"send_?recv", re.IGNORECASE)),
    ("gather", re.compile(r"gather", re.IGNORECASE)),
    ("scatter", re.compile(r"scatter", re.IGNORECASE)),
    ("reduce", re.compile(r"reduce", re.IGNORECASE)),
)
"""What a name says; the first that fits."""
OUTPUT_COUNTS = frozenset({"all_gather"})
"""Whose message is what comes out; of the others it is what goes in."""


def op_of(name: str) -> str:
    """The operation a collective's recorded name, or its kernel's, tells."""
    return next((op for op, pattern in OPS if pattern.search(name)), "other")


def ledger_of(found: Survey, rank: int) -> Ledger:
    """The collectives of a rank, on the device and on the host, by their start."""
    trace, links = found.trace, found.links
    on_device = found.collective
    events = np.flatnonzero(on_device | host_collectives(trace))
    events = events[np.argsort(trace.start_ns[events], kind="stable")]
    launch = links.launch[events]
    asking = _asking(found, events, launch)
    kinds: dict[Collective, int] = {}
    kind = np.array(
        [kinds.setdefault(_kind(found, int(e), int(a)), len(kinds)) for e, a in zip(events, asking, strict=True)], np.int64
    )
    sequence = [_args(found, int(e), int(a)) for e, a in zip(events, asking, strict=True)]
    exposed_start, exposed_end, exposed_of = _exposed(found, events)
    windows = found.cut.steps.windows
    low = np.array([w[0] for w in windows], np.int64)
    high = np.array([w[1] for w in windows], np.int64)
    return Ledger(
        rank=rank,
        kinds=tuple(kinds),
        kind=kind,
        event=events,
        start_ns=trace.start_ns[events],
        end_ns=trace.end_ns[events],
        launch_ns=np.where(launch != NONE, trace.start_ns[np.maximum(launch, 0)], NONE),
        stream=trace.stream[events].astype(np.int64),
        sequence=np.array([NONE if a is None or a.sequence is None else a.sequence for a in sequence], np.int64),
        step=np.where(on_device[events], found.cut.step_of[events], _host_step(found, events)),
        exposed_start_ns=exposed_start,
        exposed_end_ns=exposed_end,
        exposed_of=exposed_of,
        windows=windows,
        compute_ns=int(lengths_in(low, high, found.sets.compute).sum()) if len(windows) else 0,
        base_ns=trace.meta.base_ns,
    )


def _asking(found: Survey, events: Int64, launch: Int64) -> Int64:
    """The operator that asked for each collective and says what it is; NONE where none was recorded."""
    trace, parent = found.trace, found.links.parent
    says = trace.collective != NONE
    start = np.where(launch != NONE, launch, np.where(found.collective[events], NONE, events))
    return ancestor_with(parent, start, says & ~found.collective)


def _args(found: Survey, event: int, asking: int) -> CollectiveArgs | None:
    trace = found.trace
    for at in (event, asking):
        if at != NONE and trace.collective[at] != NONE:
            args: CollectiveArgs = trace.collectives[trace.collective[at]]
            return args
    return None


def _kind(found: Survey, event: int, asking: int) -> Collective:
    trace, args = found.trace, _args(found, event, asking)
    on_device = bool(found.collective[event])
    name: str = trace.names[trace.name[event]]
    if args is None:
        return Collective(op=op_of(name), group="", group_ranks=(), dtype=None, bytes=None, on_device=on_device)
    op = op_of(args.name or name)
    dtype = None if args.dtype is None else SCALAR_NAMES.get(args.dtype, args.dtype)
    elements = args.out_elements if op in OUTPUT_COUNTS else args.in_elements
    size = None if elements is None or dtype is None or dtype not in ITEM_BYTES else int(elements * ITEM_BYTES[dtype])
    return Collective(
        op=op,
        group=args.group or "",
        group_ranks=_ranks(args.ranks or ""),
        dtype=dtype,
        bytes=size,
        on_device=on_device,
    )


@lru_cache(maxsize=256)
def _ranks(text: str) -> tuple[int, ...]:
    """A recorded list of ranks; none when it was cut short, as long ones are."""
    try:
        found = json.loads(text)
    except ValueError:
        return ()
    return tuple(int(r) for r in found) if isinstance(found, list) and all(isinstance(r, int) for r in found) else ()


def _host_step(found: Survey, events: Int64) -> Int64:
    """The step in which a collective of the host was called."""
    step: Int64 = np.searchsorted(found.cut.host_start, found.trace.start_ns[events], side="right") - 1
    return np.where(step >= 0, step, NONE)


def _exposed(found: Survey, events: Int64) -> tuple[Int64, Int64, Int64]:
    """When a collective ran with no compute beside it, and which: the one that began first where several did."""
    alone = subtract(found.sets.comms, found.sets.compute)
    starts, ends, owners = [], [], []
    trace, device = found.trace, np.flatnonzero(found.collective[events])
    if len(device) == 0 or len(alone) == 0:
        return (np.empty(0, np.int64),) * 3
    begin, end = trace.start_ns[events[device]], trace.end_ns[events[device]]
    latest = np.maximum.accumulate(end)
    for low, high in zip(alone.start.tolist(), alone.end.tolist(), strict=True):
        at, first = low, int(np.searchsorted(latest, low, side="right"))
        while at < high and first < len(device):
            if end[first] > at and begin[first] < high:
                stop = min(int(end[first]), high)
                starts.append(max(at, int(begin[first])))
                ends.append(stop)
                owners.append(int(device[first]))
                at = stop
            first += 1
    return np.array(starts, np.int64), np.array(ends, np.int64), np.array(owners, np.int64)


def in_windows(ledger: Ledger) -> Int64:
    """Entries that ended inside the measured windows."""
    if not ledger.windows:
        return np.empty(0, np.int64)
    low, high = ledger.windows[0][0], ledger.windows[-1][1]
    return np.flatnonzero((ledger.end_ns > low) & (ledger.end_ns <= high))
