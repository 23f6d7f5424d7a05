"""A debugging aid is left on.

What it sees: a wait for the device after nearly every launch, made by no operator that reads
anything (CUDA_LAUNCH_BLOCKING=1), checks for NaN inside nearly every backward node that computes
a gradient (anomaly mode), or `torch.autograd.gradcheck` inside the steps.

Why it costs: with a wait after each launch the device idles between all kernels, and the host never
runs ahead; anomaly mode adds a check and its read of the device to each operator of the backward
pass; gradcheck computes the function twice for each number of its inputs, in double precision.

Evidence it needs: the runtime calls of the host, and operators; Python's calls (`--stacks`) for
gradcheck.

What to do: unset CUDA_LAUNCH_BLOCKING; remove `torch.autograd.set_detect_anomaly(True)`; gradcheck
belongs into a test.

Example: `set_detect_anomaly(True)` adds an isnan, an any and a read of the device to each node of
the backward pass.
"""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct

from stepscope.analyses.grouping import distinct, matching, median
from stepscope.analyses.host.nesting import ancestor_with
from stepscope.analyses.intervals import Intervals, empty, join, union
from stepscope.analyses.steps.projection import BACKWARD_RANGE
from stepscope.core.diagnosis import Abstention
from stepscope.core.trace import NONE, Kind
from stepscope.replay.graph import blocking_launches
from stepscope.rules.case import Case
from stepscope.rules.proposal import Proposal
from stepscope.rules.rule import Rule
from stepscope.rules.shared.host_ranges import (
    calls_inside,
    named_events,
    ranges_of,
    tasks_of,
    without_ranges,
)

CODE = "debug-mode"
BOUND = "host"

CHECK = re.compile(r"^aten::(isnan|any|is_nonzero|item|ne)$")
NAN_CHECK = re.compile(r"^aten::(isnan|ne)$")
KEEPS_GRADIENT = re.compile(r"AccumulateGrad$")
"""A node that hands nothing on: anomaly mode has nothing to check there."""
WORDS = {
    "launches": "The run is in a debugging mode that makes the host wait for the device all the "
    "time.",
    "checks": "The run is in a debugging mode: autograd checks every gradient for NaN, and notes "
    "where each forward operator was called.",
    "gradcheck": "torch.autograd.gradcheck runs inside the steps: it compares every derivative "
    "with differences.",
}
GRADCHECK = re.compile(r"torch[/\\]autograd[/\\]gradcheck\.py\(\d+\): grad(?:grad)?check$")


class Policy(Struct, frozen=True, kw_only=True):
    least_share: float = 0.5
    """Share of backward nodes that check from which it is a mode and not one line of the code."""
    least_note_ns: int = 10_000
    """Spent by an operator before its work, over the usual, from which it noted the stack (50 to
    200 us on one host)."""


POLICY = Policy()


def propose(case: Case) -> Proposal | Abstention | None:
    """Drop the waits of the launches, and the checks of the backward pass."""
    graph = case.graph
    blocking, checks = blocking_launches(case.replayed, graph), _anomaly_checks(case)
    notes_taken = _stack_notes(case) if len(checks) else empty()
    compared = ranges_of(case, named_events(case, GRADCHECK, Kind.PYTHON))
    if not (len(blocking) or len(checks) or len(compared)):
        return None
    if len(compared):
        return _left_on(case, compared)
    surely = join(blocking, checks)
    all_of_it = join(surely, notes_taken)
    steps = max(graph.num_steps, 1)
    action, evidence = "Remove torch.autograd.set_detect_anomaly(True) / detect_anomaly()", []
    if len(blocking):
        action = "Unset CUDA_LAUNCH_BLOCKING"
        evidence.append(
            f"{len(blocking) / steps:.0f} launches a step held the host until their kernel was done"
        )
    if len(checks):
        evidence.append(f"{len(checks) / steps:.0f} stretches of NaN checks a step inside backward")
        taken = float((notes_taken.end - notes_taken.start).sum()) / steps / 1e6
        evidence.append(
            f"{taken:.2f} ms a step before the work of {len(notes_taken) / steps:.0f} forward "
            "operators, noting their stack"
        )
    return Proposal(
        summary=WORDS["launches" if len(blocking) else "checks"],
        action=action,
        evidence=tuple(evidence),
        change=lambda before: without_ranges(case, before, all_of_it),
        cautious=lambda before: without_ranges(case, before, surely),
    )


def _left_on(case: Case, compared: Intervals) -> Proposal:
    """Propose to drop gradcheck's calls, and what they compute."""
    graph, steps = case.graph, max(case.graph.num_steps, 1)
    tasks = tasks_of(graph, calls_inside(graph, compared))
    taken_ms = float((compared.end - compared.start).sum()) / steps / 1e6
    return Proposal(
        summary=WORDS["gradcheck"],
        action="Move torch.autograd.gradcheck out of the loop, into a test",
        evidence=(
            f"{taken_ms:.2f} ms a step in gradcheck",
            f"{tasks.sum() / steps:.0f} kernels or operators a step inside it",
        ),
        events=graph.task_event[tasks],
        change=lambda before: without_ranges(case, before, compared),
    )


def _anomaly_checks(case: Case) -> Intervals:
    """The checks inside backward nodes, where most nodes have one."""
    trace, parent = case.context.trace, case.context.links.parent
    is_op = trace.is_kind(Kind.OP)
    checking = np.flatnonzero(is_op & matching(trace, NAN_CHECK))
    if len(checking) == 0:
        return empty()
    nodes = is_op & matching(trace, BACKWARD_RANGE) & ~matching(trace, KEEPS_GRADIENT)
    inside = ancestor_with(parent, checking, nodes, outermost=True)
    if len(distinct(inside[inside != NONE])) < POLICY.least_share * max(int(nodes.sum()), 1):
        return empty()
    checks = np.flatnonzero(is_op & matching(trace, CHECK))
    inside = ancestor_with(parent, checks, nodes, outermost=True)
    checks, inside = checks[inside != NONE], inside[inside != NONE]
    # The checks of a node's results stand together after its work: what the host does between
    # them and after the last, to the node's end, is of the checks as well.
    first = np.full(len(trace), np.iinfo(np.int64).max)
    np.minimum.at(first, inside, trace.start_ns[checks])
    checked = distinct(inside)
    return union(first[checked], trace.end_ns[checked])


def _stack_notes(case: Case) -> Intervals:
    """Where anomaly mode notes the Python stack: at the start of each operator that autograd
    records, before what it calls.

    What such an operator spends there without the mode is what operators spend that autograd does
    not record (those of the backward pass, of the optimizer): of the same name where there are
    some, of any name where not.
    """
    trace, parent = case.context.trace, case.context.links.parent
    ops = np.flatnonzero(trace.is_kind(Kind.OP) & case.context.host.driving)
    begin = trace.end_ns.copy()
    inner = np.flatnonzero(parent != NONE)
    np.minimum.at(begin, parent[inner], trace.start_ns[inner])
    lead_ns = (begin - trace.start_ns)[ops]
    recorded = (trace.sequence[ops] >= 0) & (trace.fwd_thread[ops] <= 0)
    if not recorded.any() or recorded.all():
        return empty()
    usual = np.full(len(trace.names), int(median(lead_ns[~recorded])), np.int64)
    names = trace.name[ops]
    for name in distinct(names[~recorded]).tolist():
        usual[name] = int(median(lead_ns[~recorded & (names == name)]))
    over = np.maximum(lead_ns - usual[names], 0) * recorded
    noted = over > POLICY.least_note_ns
    end = begin[ops[noted]]
    return union(end - over[noted], end)


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, propose=propose)
