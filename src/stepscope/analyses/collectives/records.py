"""A rank's records: its collectives with what is known of each, small enough to travel."""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np

from stepscope.analyses.collectives.events import host_collectives
from stepscope.analyses.collectives.inputs import inputs_around
from stepscope.analyses.collectives.prefetch import gathers_ahead
from stepscope.analyses.collectives.step_parts import backward_spans, step_parts
from stepscope.analyses.host.nesting import ancestor_with
from stepscope.analyses.intervals import lengths_in, subtract
from stepscope.analyses.naming import matching
from stepscope.analyses.rank_context import RankContext
from stepscope.analyses.steps.windows import PROFILER_STEP
from stepscope.core.comms import Collective, CollectiveRecords, ProcessGroup
from stepscope.core.trace import NONE, CollectiveArgs, Int64, Kind, Trace
from stepscope.protocol.untrusted import parse_json
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
_DIGITS = re.compile(r"\d{1,18}")
_HOST = re.compile(r"(?:^|/)([^/]+)_\d+\.\d{13,19}\.pt\.trace\.json(?:\.gz)?$")
OUTPUT_COUNTS = frozenset({"all_gather"})
"""Whose message is what comes out; of the others it is what goes in."""


def op_of(name: str) -> str:
    """The operation a collective's recorded name, or its kernel's, tells."""
    return next((op for op, pattern in OPS if pattern.search(name)), "other")


def collective_records_of(found: RankContext, rank: int) -> CollectiveRecords:
    """The collectives of a rank, on the device and on the host, by their start."""
    trace, links = found.trace, found.links
    on_device = found.collective
    events = np.flatnonzero(on_device | host_collectives(trace))
    events = events[np.argsort(trace.start_ns[events], kind="stable")]
    launch = links.launch[events]
    asking = _asking(found, events, launch)
    kinds: dict[Collective, int] = {}
    around = np.where(launch != NONE, launch, np.where(on_device[events], NONE, events))
    kind = np.array(
        [
            kinds.setdefault(_kind(found, int(e), int(a), int(r)), len(kinds))
            for e, a, r in zip(events, asking, around, strict=True)
        ],
        np.int64,
    )
    args = [_args(found, int(e), int(a)) for e, a in zip(events, asking, strict=True)]
    exposed_start, exposed_end, exposed_of = _exposed(found, events)
    step = np.where(on_device[events], found.cut.step_of[events], _host_step(found, events))
    windows = found.cut.steps.windows
    low = np.array([w[0] for w in windows], np.int64)
    high = np.array([w[1] for w in windows], np.int64)
    return CollectiveRecords(
        rank=rank,
        kinds=tuple(kinds),
        kind=kind,
        event=events,
        start_ns=trace.start_ns[events],
        end_ns=trace.end_ns[events],
        launch_ns=np.where(launch != NONE, trace.start_ns[np.maximum(launch, 0)], NONE),
        stream=trace.stream[events].astype(np.int64),
        sequence=np.array([NONE if a is None or a.sequence is None else a.sequence for a in args], np.int64),
        step=step,
        exposed_start_ns=exposed_start,
        exposed_end_ns=exposed_end,
        exposed_of=exposed_of,
        windows=windows,
        compute_ns=int(lengths_in(low, high, found.sets.compute).sum()) if len(windows) else 0,
        base_ns=trace.meta.base_ns,
        phase=step_parts(found, events),
        unevenness=np.array([_unevenness("" if a is None else a.in_split or "") for a in args], np.float64),
        ahead=gathers_ahead(found, around),
        backward=backward_spans(found),
        groups=_groups(trace),
        world_size=trace.meta.world_size,
        link=_link(found),
        step_number=_step_numbers(found)[step],
        node=_node(trace.meta.path),
    )


def _groups(trace: Trace) -> tuple[ProcessGroup, ...]:
    """Those listed at the head of the recording, then those that collectives name besides."""
    found: dict[str, ProcessGroup] = {}
    for one in trace.meta.process_groups:
        name, ranks, size = one.get("pg_name"), one.get("ranks"), one.get("pg_size")
        if isinstance(name, str):
            listed = tuple(r for r in ranks if isinstance(r, int)) if isinstance(ranks, list) else ()
            found[name] = ProcessGroup(
                name=name,
                description=_said(one.get("pg_desc")),
                ranks=listed,
                size=size if isinstance(size, int) else len(listed) or None,
            )
    for args in trace.collectives:
        if args.group and args.group not in found:
            ranks_of = _ranks(args.ranks or "")
            found[args.group] = ProcessGroup(
                name=args.group,
                description=_said(args.description),
                ranks=ranks_of,
                size=args.group_size or len(ranks_of) or None,
            )
    return tuple(found.values())


def _said(description: object) -> str:
    return description if isinstance(description, str) and description not in ("undefined", "default_pg") else ""


def _link(found: RankContext) -> tuple[str, float, str] | None:
    """The link that ranks should talk over, with its bus bandwidth: as it was measured here, else the device's fastest."""
    ranks = found.trace.meta.world_size
    measured = None if found.roofs is None or found.roofs.measured is None else found.roofs.measured
    rate = None if measured is None or ranks is None else measured.bus_bytes_per_s(ranks)
    if measured is not None and rate is not None:
        return "collectives", rate, f"measured on this machine, {measured.date}"
    links = {} if found.roofs is None else found.roofs.spec.link_bytes_per_s
    name = max(links, key=lambda key: links[key].value, default=None)
    return None if name is None else (name, links[name].value, links[name].source)


@lru_cache(maxsize=4096)
def _unevenness(split: str) -> float:
    """The greatest over the mean of a recorded list of split sizes; NaN when there is none."""
    try:
        sizes = parse_json(split)
    except ValueError:
        return float("nan")
    if not isinstance(sizes, list) or not sizes or not all(isinstance(n, int) and n >= 0 for n in sizes) or not sum(sizes):
        return float("nan")
    return float(max(sizes) * len(sizes) / sum(sizes))


def _asking(found: RankContext, events: Int64, launch: Int64) -> Int64:
    """The operator that asked for each collective and says what it is; NONE where none was recorded."""
    trace, parent = found.trace, found.links.parent
    says = trace.collective != NONE
    start = np.where(launch != NONE, launch, np.where(found.collective[events], NONE, events))
    return ancestor_with(parent, start, says & ~found.collective)


def _args(found: RankContext, event: int, asking: int) -> CollectiveArgs | None:
    trace = found.trace
    for at in (event, asking):
        if at != NONE and trace.collective[at] != NONE:
            args: CollectiveArgs = trace.collectives[trace.collective[at]]
            return args
    return None


def _kind(found: RankContext, event: int, asking: int, around: int) -> Collective:
    trace, args = found.trace, _args(found, event, asking)
    on_device = bool(found.collective[event])
    name: str = trace.names[trace.name[event]]
    if args is None:
        return _told(found, name, around, on_device)
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
        group_size=args.group_size,
        peer=_peer(found, event, asking) if op in ("send", "recv") else None,
    )


def _peer(found: RankContext, event: int, asking: int) -> int | None:
    """The other rank of a transfer: the operator has it, its kernel may not."""
    trace = found.trace
    told = [trace.collectives[trace.collective[at]] for at in (event, asking) if at != NONE and trace.collective[at] != NONE]
    return next((args.peer for args in told if args.peer is not None), None)


def _told(found: RankContext, name: str, around: int, on_device: bool) -> Collective:
    """By the ranges around its launch, else by its kernel's name."""
    told = inputs_around(found, around)
    # A range such as nccl:coalesced names no operation.
    op = next((op for op in (op_of(told.name), op_of(name)) if op != "other"), "other") if told is not None else op_of(name)
    if told is None:
        return Collective(op=op, group="", group_ranks=(), dtype=None, bytes=None, on_device=on_device)
    elements = told.out_elements if op in OUTPUT_COUNTS else told.in_elements
    return Collective(
        op=op,
        group="",
        group_ranks=(),
        dtype=told.dtype,
        bytes=told.bytes(elements),
        on_device=on_device,
        group_size=told.group_size,
    )


@lru_cache(maxsize=256)
def _ranks(text: str) -> tuple[int, ...]:
    """A recorded list of ranks; none when it was cut short, as long ones are."""
    try:
        found = parse_json(text)
    except ValueError:
        return ()
    return tuple(int(r) for r in found) if isinstance(found, list) and all(isinstance(r, int) for r in found) else ()


def _step_numbers(found: RankContext) -> Int64:
    """Per step, the number its mark has; NONE for those without one, and at the end for what lies outside the steps."""
    trace, cut = found.trace, found.cut
    numbers = np.full(len(cut.host_start) + 1, NONE, np.int64)
    if cut.steps.source == "ProfilerStep":
        marks = np.flatnonzero(trace.is_kind(Kind.MARK) & matching(trace, PROFILER_STEP))
        told = [_DIGITS.search(trace.names[name]) for name in trace.name[marks].tolist()]
        numbers[:-1] = [NONE if one is None else int(one[0]) for one in told]
    return numbers


def _node(path: str) -> str:
    """The machine in a name as torch's trace handler makes them: host_process.time.pt.trace.json."""
    found = _HOST.search(path)
    return "" if found is None else found[1]


def _host_step(found: RankContext, events: Int64) -> Int64:
    """The step in which a collective of the host was called."""
    step: Int64 = np.searchsorted(found.cut.host_start, found.trace.start_ns[events], side="right") - 1
    return np.where(step >= 0, step, NONE)


def _exposed(found: RankContext, events: Int64) -> tuple[Int64, Int64, Int64]:
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


def in_windows(collective_records: CollectiveRecords) -> Int64:
    """Entries that ended inside the measured windows."""
    if not collective_records.windows:
        return np.empty(0, np.int64)
    low, high = collective_records.windows[0][0], collective_records.windows[-1][1]
    return np.flatnonzero((collective_records.end_ns > low) & (collective_records.end_ns <= high))
