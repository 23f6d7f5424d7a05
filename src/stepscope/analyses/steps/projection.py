"""Device time charged to the host ranges that launched it:
operators, marks, modules, and the parts of a training step.

Host ranges projected onto the device, as Nsight Systems' own `nvtx_gpu_proj_sum` does it.

A piece of device work is contained in a range when the call that launched it lies in the range, on
the range's own thread. The projection runs from the start of the first work contained to the end of
the last; what lies between is counted too, and a range inside another is not taken off the outer
one (Nsight Systems' manual, nvtx_gpu_proj_sum).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from stepscope.analyses.grouping import distinct, grouped, is_among, matching, median, sums
from stepscope.analyses.host.activity import call_rows
from stepscope.analyses.host.nesting import ancestor_with, is_within
from stepscope.analyses.intervals import Intervals, contains
from stepscope.analyses.links import Links
from stepscope.core.facts import Phases, RangeRow
from stepscope.core.trace import NONE, Bool, Int32, Int64, Kind, Trace

BACKWARD_RANGE = re.compile(
    r"^autograd::engine::evaluate_function|^CompiledFunctionBackward|^## backward|^backward$"
)
OPTIMIZER_RANGE = re.compile(
    r"^Optimizer\.(step|zero_grad)#|^## optimizer|^(opt|optim|optimizer)[_ .]?step$|^optimizer$"
)
FORWARD_MARK = re.compile(r"^## forward|^forward([_ ]pass)?$|^fwd$")
"""A user's own range, where no operators were recorded."""
MODULE_FRAME = re.compile(r"^nn\.Module: ")
STEP_MARK = re.compile(r"^ProfilerStep")
NUMBERED = re.compile(r"(?P<stem>.*?[^\s#_:/-])?[\s#_:/-]{0,8}\d{1,12}")
WHOLE = 0.8
"""Share of what was measured from which ranges that differ by a number are the steps themselves:
those of layers hold the forward pass, a third of it (a judgement)."""


class Charges(Struct, frozen=True, kw_only=True):
    """Owners that each piece of device work in the measured windows (`work`, indices into the
    trace) is charged to."""

    work: Int64
    launch: Int64
    """The host event that launched it; NONE when it was not recorded."""
    op: Int64
    """The innermost operator it was launched in; NONE when there is none."""
    home: Int64
    """Operator that it is charged to, or for backward work the forward operator it belongs to, by
    sequence numbers."""
    backward: Bool
    optimizer: Bool
    recomputed: Bool
    """A forward operator run again inside backward."""
    forward: Bool
    """Launched in a user's range of that name."""

    def only(self, chosen: slice) -> Charges:
        """Charges of the chosen pieces of work, as views."""
        return Charges(**{name: getattr(self, name)[chosen] for name in self.__struct_fields__})


def charge(trace: Trace, links: Links, work: Int64, *, captured: bool = False) -> Charges:
    """Follow every launch up the host's ranges; with `captured`, that of a CUDA graph's kernel in
    the run that was captured."""
    launch = links.origin(work) if captured else links.launch[work]
    is_op = trace.is_kind(Kind.OP)
    op = ancestor_with(links.parent, launch, is_op)
    backward, optimizer, recomputed, forward = (
        is_within(trace, links.parent, launch, ranges)
        for ranges in (
            matching(trace, BACKWARD_RANGE),
            matching(trace, OPTIMIZER_RANGE),
            rerun_forward_ops(trace, links),
            trace.is_kind(Kind.MARK) & matching(trace, FORWARD_MARK),
        )
    )
    return Charges(
        work=work,
        launch=launch,
        op=op,
        home=_forward_home(trace, links, launch, op, backward & ~recomputed),
        backward=backward & ~optimizer,
        optimizer=optimizer,
        recomputed=recomputed & backward,
        forward=forward & ~backward & ~optimizer,
    )


def rerun_forward_ops(trace: Trace, links: Links) -> Bool:
    """Mask of the operators that autograd recorded as forward (a sequence number, no forward
    thread) while inside backward, and that ran with the same inputs outside it: activation
    checkpointing, not a second derivative."""
    recorded = np.flatnonzero(
        trace.is_kind(Kind.OP) & (trace.sequence >= 0) & (trace.fwd_thread <= 0)
    )
    mask = np.zeros(len(trace), np.bool_)
    if len(recorded) == 0:
        return mask
    inside = is_within(trace, links.parent, recorded, matching(trace, BACKWARD_RANGE))
    key = (
        trace.name[recorded].astype(np.int64) * (len(trace.details) + 1)
        + trace.detail[recorded]
        + 1
    )
    mask[recorded[inside]] = is_among(key[inside], key[~inside])
    return mask


def _forward_home(trace: Trace, links: Links, launch: Int64, op: Int64, backward: Bool) -> Int64:
    """Forward operator with the sequence number of the node being evaluated, for backward work."""
    if not backward.any():
        return op
    nodes = trace.is_kind(Kind.OP) & (trace.sequence >= 0) & (trace.fwd_thread > 0)
    evaluated = ancestor_with(links.parent, np.where(backward, launch, NONE), nodes)
    forward = forward_of(trace, evaluated, forward_ops(trace))
    home: Int64 = np.where(forward == NONE, op, forward)
    return home


class ForwardOps(Struct, frozen=True, kw_only=True):
    """The forward operators that autograd numbered, by number and time."""

    event: Int64
    sequence: Int64


def forward_ops(trace: Trace) -> ForwardOps:
    is_forward = trace.is_kind(Kind.OP) & (trace.sequence >= 0) & (trace.fwd_thread <= 0)
    forward = np.flatnonzero(is_forward)
    sequence = trace.sequence.take(forward)
    order = np.argsort(sequence, kind="stable")
    return ForwardOps(event=forward.take(order), sequence=sequence.take(order))


def forward_of(trace: Trace, nodes: Int64, forward: ForwardOps) -> Int64:
    """Last forward operator with the sequence number of each of autograd's nodes; NONE when there
    is none."""
    result = np.full(len(nodes), NONE, np.int64)
    if len(forward.event) == 0:
        return result
    wanted = np.where(nodes == NONE, NONE, trace.sequence[np.maximum(nodes, 0)])
    index = np.searchsorted(forward.sequence, wanted, side="right") - 1
    hit = (wanted != NONE) & (index >= 0)
    hit &= forward.sequence[np.maximum(index, 0)] == wanted
    result[hit] = forward.event[index[hit]]
    return result


def phases(trace: Trace, charges: Charges) -> Phases | None:
    """Device time of forward, backward and optimizer; None when they cannot be distinguished."""
    if not (charges.backward.any() or charges.optimizer.any()):
        return None
    dur = trace.dur_ns[charges.work]
    linked = charges.op != NONE
    forward = (linked | charges.forward) & ~charges.backward & ~charges.optimizer

    def total(mask: Bool) -> int:
        return int(dur[mask].sum())

    return Phases(
        forward_ns=total(forward),
        backward_ns=total(charges.backward),
        optimizer_ns=total(charges.optimizer),
        unknown_ns=total(~forward & ~charges.backward & ~charges.optimizer),
        recomputed_ns=total(charges.recomputed),
        num_recomputed_ops=len(distinct(charges.op[charges.recomputed])),
    )


def op_rows(trace: Trace, charges: Charges) -> tuple[RangeRow, ...]:
    """Device time per operator name, backward charged to its forward operator."""
    has_home = charges.home != NONE
    names = trace.name[charges.home[has_home]]
    dur = trace.dur_ns[charges.work[has_home]]
    rows = _sums_by_name(trace, names, np.ones_like(dur), dur)
    return tuple(RangeRow(name=name, count=count, device_ns=ns) for name, count, ns in rows)


Inclusive = tuple[Int64, Int64, Int64]
"""Host events, and the number and the time of the work launched inside each. An event may be there
several times."""


def inclusive(trace: Trace, links: Links, charges: Charges) -> Inclusive:
    """Device time launched inside each host event, directly or further down."""
    start = np.where(charges.home == NONE, charges.launch, charges.home)
    linked = start != NONE
    inside = _sums_inside(links.parent, start[linked], trace.dur_ns[charges.work[linked]])
    none = np.empty(0, np.int64)
    events, counts, totals = (
        np.concatenate(column) for column in zip((none, none, none), *inside, strict=True)
    )
    return events, counts, totals


def inclusive_rows(
    trace: Trace, links: Links, inside: Inclusive, ranges: Bool
) -> tuple[RangeRow, ...]:
    """The time inside each of the given ranges, per name."""
    events, counts, totals = inside
    chosen = ranges[events]
    # A range can stand inside another of its name: the work is its once.
    chosen[chosen] = ~is_inside_namesake(trace, links.parent, events[chosen], ranges)
    rows = _sums_by_name(trace, trace.name[events[chosen]], counts[chosen], totals[chosen])
    return tuple(RangeRow(name=name, count=count, device_ns=ns) for name, count, ns in rows)


def _sums_inside(parent: Int64, start: Int64, dur: Int64) -> list[tuple[Int64, Int64, Int64]]:
    """Events from `start` upwards, level by level, each with the number and the time of the work
    that comes to it there. An event may be on several levels."""
    levels = []
    events, counts, totals = start, np.ones(len(start), np.int64), dur
    while len(events):
        order, begins = grouped(events)
        events = events[order[begins]]
        counts = np.add.reduceat(counts[order], begins)
        totals = np.add.reduceat(totals[order], begins)
        levels.append((events, counts, totals))
        above = parent[events]
        going_on = above != NONE
        events, counts, totals = above[going_on], counts[going_on], totals[going_on]
    return levels


def is_inside_namesake(trace: Trace, parent: Int64, events: Int64, ranges: Bool) -> Bool:
    """Mask of the events around which one of `ranges` has the same name."""
    is_inside = np.zeros(len(events), np.bool_)
    pending, ancestor = np.arange(len(events)), parent[events]
    while len(pending):
        open_ones = ancestor != NONE
        pending, ancestor = pending[open_ones], ancestor[open_ones]
        hit = ranges[ancestor] & (trace.name[ancestor] == trace.name[events[pending]])
        is_inside[pending[hit]] = True
        pending, ancestor = pending[~hit], parent[ancestor[~hit]]
    return is_inside


def module_ranges(trace: Trace) -> Bool:
    return trace.is_kind(Kind.PYTHON, Kind.MARK) & matching(trace, MODULE_FRAME)


def mark_ranges(trace: Trace) -> Bool:
    named = matching(trace, STEP_MARK) | matching(trace, MODULE_FRAME)
    return trace.is_kind(Kind.MARK) & ~named


def _sums_by_name(
    trace: Trace, names: Int32, counts: Int64, dur: Int64
) -> list[tuple[str, int, int]]:
    """Counts and times of each name, the largest first."""
    num, totals = (sums(names, values, len(trace.names)) for values in (counts, dur))
    codes = np.flatnonzero(num)
    codes = codes[np.argsort(-totals[codes], kind="stable")]
    return [(trace.names[code], int(num[code]), int(totals[code])) for code in codes.tolist()]


def host_op_rows(
    trace: Trace, links: Links, loading: Intervals, low: int, high: int
) -> tuple[RangeRow, ...]:
    """Host time per operator without what it called, for traces with no device; those that make a
    batch are input, and left out."""
    ops = np.flatnonzero(trace.is_kind(Kind.OP) & (trace.start_ns >= low) & (trace.start_ns < high))
    ops = ops[~contains(loading, trace.start_ns[ops])]
    parent = links.parent[ops]
    nested = parent != NONE
    own = trace.dur_ns - sums(parent[nested], trace.dur_ns[ops[nested]], len(trace))
    rows = _sums_by_name(
        trace, trace.name[ops], np.ones(len(ops), np.int64), np.maximum(own[ops], 0)
    )
    return tuple(
        RangeRow(name=name, count=count, device_ns=0, host_ns=ns) for name, count, ns in rows
    )


PAIRS_AT_ONCE = 4_000_000
"""Pairs of a range and a call inside it: memory stays bounded however deep ranges nest."""
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
    """Median length of all ranges of a name that contain device work, in nanoseconds."""
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


def host_mark_rows(trace: Trace, inside: Bool) -> tuple[RangeRow, ...]:
    """Rows of marks by the host's time, where no device has any."""
    rows = call_rows(trace, inside & mark_ranges(trace))
    return tuple(
        RangeRow(name=row.name, count=row.count, device_ns=0, host_ns=row.total_ns) for row in rows
    )


def with_steps_joined(rows: Sequence[RangeRow], whole_ns: int) -> tuple[RangeRow, ...]:
    """`step 1`, `step 2`, ... as `step *`: they say nothing that the steps do not.

    Before  step 1: 50 ms, step 2: 50 ms, forward: 60 ms    After  step *: 100 ms, forward: 60 ms
    """
    by_stem: dict[str, list[RangeRow]] = defaultdict(list)
    for row in rows:
        match = NUMBERED.fullmatch(row.name)
        if match is not None:
            by_stem[match["stem"] or ""].append(row)
    joined: dict[str, RangeRow] = {}
    for stem, several in by_stem.items():
        if len(several) > 1 and sum(map(_row_ns, several)) >= WHOLE * whole_ns > 0:
            one = _as_one(f"{stem} *".strip(), several)
            joined |= dict.fromkeys((row.name for row in several), one)
    kept = dict.fromkeys(joined.get(row.name, row).name for row in rows)
    by_name = {joined.get(row.name, row).name: joined.get(row.name, row) for row in rows}
    return tuple(sorted((by_name[name] for name in kept), key=lambda row: -_row_ns(row)))


def _row_ns(row: RangeRow) -> int:
    return row.device_ns or row.host_ns or 0


def _as_one(name: str, rows: Sequence[RangeRow]) -> RangeRow:
    host = [row.host_ns for row in rows if row.host_ns is not None]
    return replace(
        rows[0],
        name=name,
        count=sum(row.count for row in rows),
        device_ns=sum(row.device_ns for row in rows),
        host_ns=sum(host) if host else None,
        projected_ns=max((row.projected_ns for row in rows if row.projected_ns), default=None),
    )
