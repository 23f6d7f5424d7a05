"""The timeline of one typical step:
what ran where, who launched it, and what the device waited for."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from msgspec import Struct

from stepscope.analyses.collectives.records import collective_records_of
from stepscope.analyses.collectives.step_parts import PHASES, Int8, step_part_of
from stepscope.analyses.grouping import distinct, stable_order
from stepscope.analyses.host.source_locations import line_of, origins
from stepscope.analyses.intervals import Intervals
from stepscope.analyses.links import host_collectives
from stepscope.analyses.rank_context import RankContext
from stepscope.analyses.steps.partition import split_waits
from stepscope.analyses.steps.projection import MODULE_FRAME
from stepscope.analyses.timeline.gaps import gaps_of
from stepscope.analyses.timeline.rows import Blocks, common, join_small, rows_of
from stepscope.core.comms import CollectiveRecords
from stepscope.core.facts import RankFacts
from stepscope.core.timeline import COLLECTIVES, HOST, STREAM, Lane, Slices, Timeline, What
from stepscope.core.trace import NONE, Bool, Int32, Int64, Kind, Trace

MAX_SLICES = 20_000
MAX_LANES = 40
"""Threads and streams that are shown, those with the most time first."""
MAX_ROWS = 24
"""Rows of one lane: deeper than that nobody looks, and it is inside what is shown."""
ON_HOST = (Kind.OP, Kind.MARK, Kind.RUNTIME, Kind.COMPILE)
KIND_WORDS = {
    Kind.OP: "op", Kind.MARK: "mark", Kind.RUNTIME: "call", Kind.COMPILE: "compile",
    Kind.KERNEL: "kernel", Kind.MEMCPY: "copy", Kind.MEMSET: "set",
}  # fmt: skip


class _Rows(Struct, frozen=True, kw_only=True):
    """The events that are drawn, by row and start."""

    lanes: tuple[Lane, ...]
    event: Int64
    row: Int64
    depth: Int64
    on_host: Bool
    num_dropped: int
    num_lanes_dropped: int


class Shared:
    """What the timelines of one rank's steps share, worked out once. `waiting` is when the rank
    waited for others in a collective (`collectives.waits.waiting`); without it all exposed
    communication is transfer."""

    def __init__(self, context: RankContext, facts: RankFacts, waiting: Intervals | None) -> None:
        self.context, self.facts, self.waiting = context, facts, waiting

    @cached_property
    def device_work(self) -> Bool:
        return self.context.trace.device_work

    @cached_property
    def comms(self) -> Bool:
        mask: Bool = self.context.collective | host_collectives(self.context.trace)
        return mask

    @cached_property
    def on_host(self) -> Bool:
        """Mask of what is drawn in the lanes of threads."""
        mask: Bool = self.context.trace.is_kind(*ON_HOST) & ~self.comms
        return mask

    @cached_property
    def sizes(self) -> Int64:
        return _sizes(self.context.trace, self.records)

    @cached_property
    def categories(self) -> tuple[tuple[str, ...], Int32]:
        return _categories(self.context, self.records)

    @cached_property
    def ops(self) -> Int32:
        """Operator that launched each event; NONE where there is none."""
        charges = self.context.origins
        ops = np.full(len(self.context.trace), NONE, np.int32)
        launching = self.context.links.op[charges.work]
        ops[charges.work] = np.where(charges.op == NONE, launching, charges.op)
        return ops

    @cached_property
    def phases(self) -> Int8:
        """Part of the step that launched each event."""
        return step_part_of(self.context)

    @cached_property
    def records(self) -> CollectiveRecords:
        return collective_records_of(self.context, self.facts.rank)

    @cached_property
    def parts(self) -> Mapping[str, Intervals]:
        return split_waits(self.context.parts, self.waiting)


def draw(shared: Shared, *, step: int | None = None, most: int = MAX_SLICES) -> Timeline:
    """The measured step of that number, or the one of median length, of a rank that has steps."""
    context, facts = shared.context, shared.facts
    trace, steps = context.trace, facts.steps
    step = steps.median_windows[0] if step is None else step
    window = steps.windows[step]
    low = _low(shared, window)
    near = _open_between(trace, low, window[1])
    rows = _rows(shared, near, most)
    start, end = trace.start_ns[rows.event], trace.end_ns[rows.event]
    blocks = join_small(rows.row, start, end, np.where(rows.on_host, 2 + rows.depth, 1), most)
    whats, what = _whats(shared, rows.event, blocks)
    slices = _slices(shared, rows, blocks, what)
    alone = int(np.count_nonzero(slices.count == 1))
    return Timeline(
        rank=facts.rank,
        step=step,
        num_steps=len(steps.windows),
        where=steps.where,
        low_ns=low,
        window=window,
        lanes=rows.lanes,
        slices=slices,
        whats=whats,
        gaps=gaps_of(shared.parts, window, waits_split=shared.waiting is not None),
        num_events=len(rows.event) + rows.num_dropped,
        num_left_out=len(rows.event) + rows.num_dropped - alone,
        num_lanes_left_out=rows.num_lanes_dropped,
        num_frames=int(np.count_nonzero(trace.kind[near] == int(Kind.PYTHON))),
    )


def _open_between(trace: Trace, low: int, high: int) -> Int64:
    """The events that run at some time of a stretch. Those that begin after it are not looked
    at."""
    until = int(np.searchsorted(trace.start_ns, high))
    return np.flatnonzero(trace.end_ns[:until] > low)


def _low(shared: Shared, window: tuple[int, int]) -> int:
    """When the host began to launch the window's work,
    but no more than a step's length before it."""
    trace, (low, high) = shared.context.trace, window
    work = _open_between(trace, low, high)
    launch = shared.context.links.launch[work[shared.device_work[work]]]
    launch = launch[launch != NONE]
    first = int(trace.start_ns[launch].min()) if len(launch) else low
    return max(min(low, first), low - (high - low))


def _rows(shared: Shared, near: Int64, most: int) -> _Rows:
    """Lanes in reading order: the host's threads, then the streams, then the collectives."""
    trace = shared.context.trace
    host, comms = near[shared.on_host[near]], near[shared.comms[near]]
    device = near[(shared.device_work & ~shared.comms)[near]]
    threads = trace.thread[host]
    groups = [(HOST, _thread_label(trace, t), host[threads == t]) for t in _busiest(trace, host)]
    streams = trace.device[device].astype(np.int64) * 2**32 + trace.stream[device]
    several = len(distinct(trace.device[device])) > 1
    for key in distinct(streams).tolist():
        mine = device[streams == key]
        groups.append((STREAM, _stream_label(trace, int(mine[0]), several), mine))
    if len(comms):
        groups.append((COLLECTIVES, "collectives", comms))
    # Each row needs at least a block of its own.
    shown = _shown(trace, groups, min(MAX_LANES, max(1, most // (2 * MAX_ROWS))))
    lanes = list[Lane]()
    events = list[Int64]()
    rows = list[Int64]()
    depths = list[Int64]()
    first = 0
    for number in shown:
        kind, label, mine = groups[number]
        depth = rows_of(trace.start_ns[mine], trace.end_ns[mine], MAX_ROWS)
        mine, depth = mine[depth != NONE], depth[depth != NONE]
        order = stable_order(depth, MAX_ROWS)
        lanes.append(Lane(label=label, kind=kind, first_row=first, num_rows=int(depth.max()) + 1))
        events.append(mine[order])
        depths.append(depth[order])
        rows.append(depth[order] + first)
        first += lanes[-1].num_rows
    event = np.concatenate([np.empty(0, np.int64), *events])
    return _Rows(
        lanes=tuple(lanes),
        event=event,
        row=np.concatenate([np.empty(0, np.int64), *rows]),
        depth=np.concatenate([np.empty(0, np.int64), *depths]),
        on_host=shared.on_host[event],
        num_dropped=sum(len(mine) for _, _, mine in groups) - len(event),
        num_lanes_dropped=len(groups) - len(shown),
    )


def _busiest(trace: Trace, host: Int64) -> list[int]:
    """The host's threads: the one that holds the step's marks on top,
    then those with the most events."""
    marks = host[trace.kind[host] == int(Kind.MARK)]
    marked = np.bincount(trace.thread[marks], trace.dur_ns[marks], len(trace.threads))
    counts = np.bincount(trace.thread[host], minlength=len(trace.threads))
    return [int(t) for t in np.lexsort((-counts, -marked)) if counts[t]]


def _shown(trace: Trace, groups: list[tuple[str, str, Int64]], most: int) -> list[int]:
    """Indices of the lanes that are kept, in their order: the collectives, then those with the most
    time."""
    spent = [int(trace.dur_ns[mine].sum()) for _, _, mine in groups]
    order = sorted(range(len(groups)), key=lambda i: (groups[i][0] != COLLECTIVES, -spent[i]))
    return sorted(order[:most])


def _thread_label(trace: Trace, code: int) -> str:
    thread = trace.threads[code]
    return thread.name or f"thread {thread.tid}"


def _stream_label(trace: Trace, event: int, several: bool) -> str:
    stream, device = int(trace.stream[event]), int(trace.device[event])
    name = "device work" if stream == NONE else f"stream {stream}"
    return f"device {device} {name}" if several and device != NONE else name


def _slices(shared: Shared, rows: _Rows, blocks: Blocks, what: Int64) -> Slices:
    context = shared.context
    trace, event = context.trace, rows.event
    start, end, first = trace.start_ns[event], trace.end_ns[event], blocks.first
    drawn = np.full(len(trace), NONE, np.int32)
    drawn[event] = blocks.of
    launch = np.where(shared.device_work[event], context.links.launch[event], NONE)
    launch = np.where(launch == NONE, NONE, drawn[launch]) if len(event) else launch
    sizes = shared.sizes[event]
    if len(event) == 0:
        nothing = np.empty(0, np.int64)
        return Slices(**dict.fromkeys(Slices.__struct_fields__, nothing))
    num_known = np.add.reduceat((sizes != NONE).astype(np.int64), first)
    count = np.diff(np.append(first, len(event)))
    total = np.add.reduceat(np.maximum(sizes, 0), first)
    return Slices(
        row=rows.row[first],
        start_ns=start[first],
        dur_ns=np.maximum.reduceat(end, first) - start[first],
        busy_ns=np.add.reduceat(end - start, first),
        count=count,
        what=what,
        launch=common(launch, blocks),
        size_bytes=np.where(num_known == count, total, NONE),
    )


def _sizes(trace: Trace, records: CollectiveRecords) -> Int64:
    """Bytes of each copy and collective; NONE where not recorded."""
    sizes = np.where(trace.is_kind(Kind.MEMCPY, Kind.MEMSET), trace.size_bytes, NONE).astype(
        np.int64
    )
    kind_bytes = np.array(
        [NONE if kind.bytes is None else kind.bytes for kind in records.kinds], np.int64
    )
    if len(records):
        sizes[records.event] = kind_bytes[records.kind]
    return sizes


def _whats(shared: Shared, event: Int64, blocks: Blocks) -> tuple[tuple[What, ...], Int64]:
    """What the blocks are, each once, and which of these each block is."""
    trace = shared.context.trace
    categories, category_of = shared.categories
    columns = np.stack(
        [
            common(column, blocks)
            for column in (
                trace.name[event].astype(np.int64),
                trace.kind[event].astype(np.int64),
                category_of[event].astype(np.int64),
                *_origin_names(shared, event),
                shared.phases[event].astype(np.int64),
            )
        ]
    )
    keys, which = _distinct_columns(columns)

    def text(table: Any, code: int) -> str | None:
        return None if code == NONE else table[code]

    whats = tuple(
        What(
            name=text(trace.names, name),
            kind=None if kind == NONE else KIND_WORDS[Kind(kind)],
            category=text(categories, category),
            op=text(trace.names, op),
            module=None if module == NONE else MODULE_FRAME.sub("", trace.names[module]),
            line=None if line == NONE else line_of(trace.names[line]),
            phase=text(PHASES, phase),
        )
        for name, kind, category, op, module, line, phase in keys.T.tolist()
    )
    return whats, which


def _distinct_columns(columns: Int64) -> tuple[Int64, Int64]:
    """The columns of a table, each once and sorted, and which of them each is."""
    order = np.lexsort(columns[::-1])
    ordered = columns[:, order]
    heads = np.append(True, (ordered[:, 1:] != ordered[:, :-1]).any(axis=0))[: len(order)]
    which = np.empty(len(order), np.int64)
    which[order] = np.cumsum(heads) - 1
    return ordered[:, heads], which


def _categories(context: RankContext, records: CollectiveRecords) -> tuple[tuple[str, ...], Int32]:
    """Kernels' categories and collectives' operations, and per event which of them it has."""
    words: dict[str, int] = {}
    codes = np.full(len(context.trace), NONE, np.int32)
    if len(context.kernels.kernels):
        table = np.array(
            [words.setdefault(word, len(words)) for word in context.kernels.categories], np.int64
        )
        codes[context.kernels.kernels] = table[context.kernels.category]
    if len(records):
        table = np.array(
            [words.setdefault(kind.op, len(words)) for kind in records.kinds], np.int64
        )
        codes[records.event] = table[records.kind]
    return tuple(words), codes


def _origin_names(shared: Shared, event: Int64) -> tuple[Int64, Int64, Int64]:
    """Names of the operator that launched each event, its module and its line; NONE where there is
    none."""
    trace, stacks = shared.context.trace, shared.context.stacks
    nowhere = np.full(len(event), NONE, np.int64)
    origin = None if stacks is None else origins(stacks, event)

    def names(events: Int32 | Int64) -> Int64:
        if not len(trace):
            return events.astype(np.int64)
        return np.where(events == NONE, NONE, trace.name[np.maximum(events, 0)]).astype(np.int64)

    module = nowhere if origin is None else names(origin.module)
    line = nowhere if origin is None else names(origin.frame)
    return names(shared.ops[event]), module, line
