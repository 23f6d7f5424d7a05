"""One rank's collectives with what is known of each, small enough to send between processes."""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np

from stepscope.analyses.collectives.inputs import inputs_around
from stepscope.analyses.collectives.prefetch import gathers_ahead
from stepscope.analyses.collectives.step_parts import backward_spans, step_parts
from stepscope.analyses.host.nesting import ancestor_with
from stepscope.analyses.intervals import join, subtract
from stepscope.analyses.links import host_collectives
from stepscope.analyses.rank_context import RankContext
from stepscope.analyses.steps.partition import host_work
from stepscope.analyses.steps.windows import step_numbers
from stepscope.core.comms import Collective, CollectiveRecords, ProcessGroup
from stepscope.core.trace import NONE, CollectiveArgs, Int64, Trace
from stepscope.protocol.untrusted import parse_json
from stepscope.workload.inputs import ITEM_BYTES, SCALAR_NAMES

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
_HOST = re.compile(r"(?:^|/)([^/]+)_\d+\.\d{13,19}\.pt\.trace\.json(?:\.gz)?$")
OUTPUT_COUNTS = frozenset({"all_gather"})
"""Operations whose message is what comes out; of the others it is what goes in."""


def op_of(name: str) -> str:
    """The operation a collective's recorded name, or its kernel's, stands for."""
    return next((op for op, pattern in OPS if pattern.search(name)), "other")


def collective_records_of(context: RankContext, rank: int) -> CollectiveRecords:
    """The collectives of a rank, on the device and on the host, by their start."""
    trace, links = context.trace, context.links
    on_device = context.collective
    events = np.flatnonzero(on_device | host_collectives(trace))
    events = events[np.argsort(trace.start_ns[events], kind="stable")]
    launch = links.launch[events]
    issuer = _issuing_ops(context, events, launch)
    kinds: dict[Collective, int] = {}
    around = np.where(launch != NONE, launch, np.where(on_device[events], NONE, events))
    kind = np.array(
        [
            kinds.setdefault(_kind(context, int(e), int(a), int(r)), len(kinds))
            for e, a, r in zip(events, issuer, around, strict=True)
        ],
        np.int64,
    )
    args = [_args(context, int(e), int(a)) for e, a in zip(events, issuer, strict=True)]
    exposed_start, exposed_end, exposed_of = _exposed(context, events)
    step = np.where(on_device[events], context.cut.step_of[events], _host_step(context, events))
    windows = context.cut.steps.windows
    return CollectiveRecords(
        rank=rank,
        kinds=tuple(kinds),
        kind=kind,
        event=events,
        start_ns=trace.start_ns[events],
        end_ns=trace.end_ns[events],
        launch_ns=np.where(launch != NONE, trace.start_ns[np.maximum(launch, 0)], NONE),
        stream=trace.stream[events].astype(np.int64),
        sequence=np.array(
            [NONE if a is None or a.sequence is None else a.sequence for a in args], np.int64
        ),
        step=step,
        exposed_start_ns=exposed_start,
        exposed_end_ns=exposed_end,
        exposed_of=exposed_of,
        windows=windows,
        base_ns=trace.meta.base_ns,
        phase=step_parts(context, events),
        unevenness=np.array(
            [_unevenness("" if a is None else a.in_split or "") for a in args], np.float64
        ),
        ahead=gathers_ahead(context, around),
        backward=backward_spans(context),
        groups=_groups(trace),
        world_size=trace.meta.world_size,
        link=_link(context),
        step_number=step_numbers(trace, context.cut)[step],
        node=_node(trace.meta.path),
    )


def _groups(trace: Trace) -> tuple[ProcessGroup, ...]:
    """Groups listed at the head of the recording, then those that collectives name besides."""
    groups: dict[str, ProcessGroup] = {}
    for entry in trace.meta.process_groups:
        name, ranks, size = entry.get("pg_name"), entry.get("ranks"), entry.get("pg_size")
        if isinstance(name, str):
            listed = (
                tuple(r for r in ranks if isinstance(r, int)) if isinstance(ranks, list) else ()
            )
            groups[name] = ProcessGroup(
                name=name,
                description=_description(entry.get("pg_desc")),
                ranks=listed,
                size=size if isinstance(size, int) else len(listed) or None,
            )
    for args in trace.collectives:
        if args.group and args.group not in groups:
            ranks_of = _ranks(args.ranks or "")
            groups[args.group] = ProcessGroup(
                name=args.group,
                description=_description(args.description),
                ranks=ranks_of,
                size=args.group_size or len(ranks_of) or None,
            )
    return tuple(groups.values())


def _description(text: object) -> str:
    return text if isinstance(text, str) and text not in ("undefined", "default_pg") else ""


def _link(context: RankContext) -> tuple[str, float, str] | None:
    """The link that ranks should talk over, with its bus bandwidth:
    as it was measured here, else the device's fastest."""
    ranks = context.trace.meta.world_size
    measured = None if context.roofs is None else context.roofs.measured
    rate = None if measured is None or ranks is None else measured.bus_bytes_per_s(ranks)
    if measured is not None and rate is not None:
        return "collectives", rate, f"measured on this machine, {measured.date}"
    links = {} if context.roofs is None else context.roofs.spec.link_bytes_per_s
    name = max(links, key=lambda key: links[key].value, default=None)
    return None if name is None else (name, links[name].value, links[name].source)


@lru_cache(maxsize=4096)
def _unevenness(split: str) -> float:
    """The greatest over the mean of a recorded list of split sizes; NaN when there is none."""
    try:
        sizes = parse_json(split)
    except ValueError:
        return float("nan")
    if (
        not isinstance(sizes, list)
        or not sizes
        or not all(isinstance(n, int) and n >= 0 for n in sizes)
        or not sum(sizes)
    ):
        return float("nan")
    return float(max(sizes) * len(sizes) / sum(sizes))


def _issuing_ops(context: RankContext, events: Int64, launch: Int64) -> Int64:
    """The operator that asked for each collective and says what it is;
    NONE where none was recorded."""
    trace, parent = context.trace, context.links.parent
    says = trace.collective != NONE
    start = np.where(launch != NONE, launch, np.where(context.collective[events], NONE, events))
    return ancestor_with(parent, start, says & ~context.collective)


def _args(context: RankContext, event: int, issuer: int) -> CollectiveArgs | None:
    trace = context.trace
    for source in (event, issuer):
        if source != NONE and trace.collective[source] != NONE:
            args: CollectiveArgs = trace.collectives[trace.collective[source]]
            return args
    return None


def _kind(context: RankContext, event: int, issuer: int, around: int) -> Collective:
    trace, args = context.trace, _args(context, event, issuer)
    on_device = bool(context.collective[event])
    name: str = trace.names[trace.name[event]]
    if args is None:
        return _kind_from_ranges(context, name, around, on_device)
    op = op_of(args.name or name)
    dtype = None if args.dtype is None else SCALAR_NAMES.get(args.dtype, args.dtype)
    elements = args.out_elements if op in OUTPUT_COUNTS else args.in_elements
    size = None
    if elements is not None and dtype in ITEM_BYTES:
        size = int(elements * ITEM_BYTES[dtype])
    return Collective(
        op=op,
        group=args.group or "",
        group_ranks=_ranks(args.ranks or ""),
        dtype=dtype,
        bytes=size,
        on_device=on_device,
        group_size=args.group_size,
        peer=_peer(context, event, issuer) if op in ("send", "recv") else None,
    )


def _peer(context: RankContext, event: int, issuer: int) -> int | None:
    """The other rank of a transfer: the operator has it, its kernel may not."""
    trace = context.trace
    recorded = [
        trace.collectives[trace.collective[source]]
        for source in (event, issuer)
        if source != NONE and trace.collective[source] != NONE
    ]
    return next((args.peer for args in recorded if args.peer is not None), None)


def _kind_from_ranges(context: RankContext, name: str, around: int, on_device: bool) -> Collective:
    """Kind by the ranges around its launch, else by its kernel's name."""
    inputs = inputs_around(context, around)
    if inputs is None:
        return Collective(
            op=op_of(name), group="", group_ranks=(), dtype=None, bytes=None, on_device=on_device
        )
    op = op_of(inputs.name)
    if op == "other":
        # A range such as nccl:coalesced names no operation.
        op = op_of(name)
    elements = inputs.out_elements if op in OUTPUT_COUNTS else inputs.in_elements
    return Collective(
        op=op,
        group="",
        group_ranks=(),
        dtype=inputs.dtype,
        bytes=inputs.bytes(elements),
        on_device=on_device,
        group_size=inputs.group_size,
    )


@lru_cache(maxsize=256)
def _ranks(text: str) -> tuple[int, ...]:
    """A recorded list of ranks; none when it was cut short, as long ones are."""
    try:
        ranks = parse_json(text)
    except ValueError:
        return ()
    if not isinstance(ranks, list) or not all(isinstance(rank, int) for rank in ranks):
        return ()
    return tuple(int(rank) for rank in ranks)


def _node(path: str) -> str:
    """The machine in a name as torch's trace handler makes them:
    host_process.time.pt.trace.json."""
    match = _HOST.search(path)
    return "" if match is None else match[1]


def _host_step(context: RankContext, events: Int64) -> Int64:
    """The step in which a collective of the host was called."""
    step: Int64 = (
        np.searchsorted(context.cut.host_start, context.trace.start_ns[events], side="right") - 1
    )
    return np.where(step >= 0, step, NONE)


def _exposed(context: RankContext, events: Int64) -> tuple[Int64, Int64, Int64]:
    """When a collective ran with no compute at the same time, and which:
    the one that began first where several did. One that the host carries out beside a device is
    exposed while the device idles."""
    trace, sets = context.trace, context.sets
    if context.cut.steps.where == "host":
        begin_ns, end_ns = context.window
        work = host_work(trace, context.host, end_ns - begin_ns)
        alone = subtract(context.host.collective, work)
    else:
        on_host = subtract(context.host.collective, sets.busy)
        alone = join(subtract(sets.comms, sets.compute), on_host)
    begin, end = trace.start_ns[events], trace.end_ns[events]
    before = np.concatenate([begin[:1], np.maximum.accumulate(end)[:-1]])
    owners = np.flatnonzero(end > np.maximum(begin, before))
    start, stop = np.maximum(begin, before)[owners], end[owners]
    first = np.searchsorted(stop, alone.start, side="right")
    num = np.maximum(np.searchsorted(start, alone.end) - first, 0)
    piece = np.repeat(np.arange(len(num)), num)
    owned = np.arange(len(piece)) + np.repeat(first - np.cumsum(num) + num, num)
    return (
        np.maximum(alone.start[piece], start[owned]),
        np.minimum(alone.end[piece], stop[owned]),
        owners[owned],
    )


def in_windows(records: CollectiveRecords) -> Int64:
    """Entries that ended inside the measured windows."""
    if not records.windows:
        return np.empty(0, np.int64)
    low, high = records.windows[0][0], records.windows[-1][1]
    return np.flatnonzero((records.end_ns > low) & (records.end_ns <= high))
