"""Device time charged to the host ranges that launched it:
operators, marks, modules, and the parts of a training step."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from stepscope.analyses.host.nesting import ancestor_with
from stepscope.analyses.links import Links
from stepscope.analyses.naming import matching
from stepscope.core.facts import Phases, RangeRow
from stepscope.core.trace import NONE, Bool, Int32, Int64, Kind, Trace

BACKWARD_RANGE = re.compile(
    r"^autograd::engine::evaluate_function|^CompiledFunctionBackward|^## backward|^backward$"
)
OPTIMIZER_RANGE = re.compile(r"^Optimizer\.(step|zero_grad)#|^## optimizer")
MODULE_FRAME = re.compile(r"^nn\.Module: ")
STEP_MARK = re.compile(r"^ProfilerStep")


@dataclass(frozen=True, slots=True, kw_only=True)
class Charges:
    """For each piece of device work in the measured windows (`work`,
    indices into the trace), whom it is charged to."""

    work: Int64
    op: Int64
    """The innermost operator it was launched in; NONE when there is none."""
    home: Int64
    """That operator, or for backward work the forward
    operator it belongs to, by sequence numbers."""
    backward: Bool
    optimizer: Bool
    recomputed: Bool
    """A forward operator run again inside backward."""

    def only(self, chosen: Bool) -> Charges:
        """Those of the chosen pieces of work."""
        return Charges(**{name: getattr(self, name)[chosen] for name in self.__slots__})


def charge(trace: Trace, links: Links, work: Int64) -> Charges:
    """Follow every launch up the host's ranges."""
    launch = links.launch[work]
    is_op = trace.is_kind(Kind.OP)
    op = ancestor_with(links.parent, launch, is_op)
    in_backward = matching(trace, BACKWARD_RANGE)
    backward = ancestor_with(links.parent, launch, in_backward) != NONE
    optimizer = ancestor_with(links.parent, launch, matching(trace, OPTIMIZER_RANGE)) != NONE
    rerun = rerun_forward_ops(trace, links)
    recomputed = ancestor_with(links.parent, launch, rerun) != NONE
    return Charges(
        work=work,
        op=op,
        home=_forward_home(trace, links, launch, op, backward & ~recomputed),
        backward=backward & ~optimizer,
        optimizer=optimizer,
        recomputed=recomputed & backward,
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
    backward_of = ancestor_with(links.parent, recorded, matching(trace, BACKWARD_RANGE))
    inside = backward_of != NONE
    key = (
        trace.name[recorded].astype(np.int64) * (len(trace.details) + 1)
        + trace.detail[recorded]
        + 1
    )
    ran_outside = np.isin(key, np.unique(key[~inside]))
    mask[recorded[inside & ran_outside]] = True
    return mask


def _forward_home(trace: Trace, links: Links, launch: Int64, op: Int64, backward: Bool) -> Int64:
    """For backward work, the forward operator with the
    sequence number of the node being evaluated."""
    if not backward.any():
        return op
    nodes = trace.is_kind(Kind.OP) & (trace.sequence >= 0) & (trace.fwd_thread > 0)
    forward = forward_of(
        trace, ancestor_with(links.parent, np.where(backward, launch, NONE), nodes)
    )
    home: Int64 = np.where(forward == NONE, op, forward)
    return home


def forward_of(trace: Trace, nodes: Int64) -> Int64:
    """For each of autograd's nodes, the last forward operator with its sequence number;
    NONE when there is none."""
    result = np.full(len(nodes), NONE, np.int64)
    forward = np.flatnonzero(
        trace.is_kind(Kind.OP) & (trace.sequence >= 0) & (trace.fwd_thread <= 0)
    )
    if len(forward) == 0:
        return result
    wanted = np.where(nodes == NONE, NONE, trace.sequence[np.maximum(nodes, 0)])
    order = np.argsort(trace.sequence[forward], kind="stable")
    ids = trace.sequence[forward][order]
    index = np.searchsorted(ids, wanted, side="right") - 1
    hit = (wanted != NONE) & (index >= 0) & (ids[np.maximum(index, 0)] == wanted)
    result[hit] = forward[order[index[hit]]]
    return result


def phases(trace: Trace, charges: Charges) -> Phases | None:
    """Device time of forward, backward and optimizer; None when they cannot be distinguished."""
    if not (charges.backward.any() or charges.optimizer.any()):
        return None
    dur = trace.dur_ns[charges.work]
    linked = charges.op != NONE
    forward = linked & ~charges.backward & ~charges.optimizer

    def total(mask: Bool) -> int:
        return int(dur[mask].sum())

    return Phases(
        forward_ns=total(forward),
        backward_ns=total(charges.backward),
        optimizer_ns=total(charges.optimizer),
        unknown_ns=total(~forward & ~charges.backward & ~charges.optimizer),
        recomputed_ns=total(charges.recomputed),
        num_recomputed_ops=len(np.unique(charges.op[charges.recomputed])),
    )


def op_rows(trace: Trace, charges: Charges) -> tuple[RangeRow, ...]:
    """Device time per operator name, backward charged to its forward operator."""
    has_home = charges.home != NONE
    names = trace.name[charges.home[has_home]]
    return _rows(trace, names, trace.dur_ns[charges.work[has_home]])


def inclusive_rows(
    trace: Trace, links: Links, charges: Charges, ranges: Bool
) -> tuple[RangeRow, ...]:
    """Device time launched inside each of the given ranges, directly or further down, per name."""
    dur, ancestor = trace.dur_ns[charges.work], charges.home
    ancestor = np.where(ancestor == NONE, links.launch[charges.work], ancestor)
    names: list[Int64] = []
    owners: list[Int64] = []
    pending = np.flatnonzero(ancestor != NONE)
    ancestor = ancestor[pending]
    while len(pending):
        hit = ranges[ancestor]
        names.append(trace.name[ancestor[hit]].astype(np.int64))
        owners.append(pending[hit])
        ancestor = links.parent[ancestor]
        pending, ancestor = pending[ancestor != NONE], ancestor[ancestor != NONE]
    if not names:
        return ()
    # A range can stand inside another of its name: the work is its once.
    pairs = np.unique(np.stack([np.concatenate(names), np.concatenate(owners)]), axis=1)
    return _rows(trace, pairs[0], dur[pairs[1]])


def module_ranges(trace: Trace) -> Bool:
    return trace.is_kind(Kind.PYTHON) & matching(trace, MODULE_FRAME)


def mark_ranges(trace: Trace) -> Bool:
    return trace.is_kind(Kind.MARK) & ~matching(trace, STEP_MARK)


def _rows(trace: Trace, names: Int64, dur: Int64) -> tuple[RangeRow, ...]:
    totals = _totals(trace, names, dur)
    return tuple(RangeRow(name=name, count=count, device_ns=ns) for name, count, ns in totals)


def _totals(trace: Trace, names: Int32 | Int64, dur: Int64) -> list[tuple[str, int, int]]:
    """Per name how often it occurs and its time, the largest first."""
    codes, inverse, counts = np.unique(names, return_inverse=True, return_counts=True)
    totals = np.zeros(len(codes), np.int64)
    np.add.at(totals, inverse, dur)
    order = np.argsort(-totals, kind="stable")
    return [(trace.names[codes[i]], int(counts[i]), int(totals[i])) for i in order.tolist()]


def host_op_rows(trace: Trace, links: Links, low: int, high: int) -> tuple[RangeRow, ...]:
    """Host time per operator without what it called, for traces with no device."""
    ops = np.flatnonzero(trace.is_kind(Kind.OP) & (trace.start_ns >= low) & (trace.start_ns < high))
    own = trace.dur_ns.copy()
    parent = links.parent[ops]
    nested = parent != NONE
    np.subtract.at(own, parent[nested], trace.dur_ns[ops[nested]])
    totals = _totals(trace, trace.name[ops].astype(np.int64), np.maximum(own[ops], 0))
    return tuple(
        RangeRow(name=name, count=count, device_ns=0, host_ns=ns) for name, count, ns in totals
    )
