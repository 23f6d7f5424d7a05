"""Stretches of the host's time, as changes of the graph: what the rules about the host share."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from msgspec import Struct

from stepscope.analyses.grouping import matching, median
from stepscope.analyses.host.nesting import ancestor_with
from stepscope.analyses.host.source_locations import line_of
from stepscope.analyses.intervals import Intervals, contains, intersect, lengths_in, subtract, union
from stepscope.analyses.steps.partition import host_work
from stepscope.core.diagnosis import SourceLocation
from stepscope.core.run import Stalls
from stepscope.core.trace import NONE, Bool, Float64, Int64, Kind
from stepscope.replay.changes import with_part_ns, without_tasks, without_waits
from stepscope.replay.graph import Graph, recorded_weights
from stepscope.replay.profiler_cost import event_ns, without_cost_ns
from stepscope.rules.case import Case, once_a_case
from stepscope.rules.proposal import MIN_SHARE
from stepscope.rules.task_table import TaskTable

INNER_LAUNCH = 0.23
"""Fraction of the host's time for the model's middle operator that each further kernel of one
takes: 0.21 to 0.27 in the batch norms of seven recorded runs (H200 hosts, torch 2.11)."""


def ranges_of(case: Case, events: Int64) -> Intervals:
    """When the host was in any of these events."""
    trace = case.context.trace
    start = trace.start_ns[events]
    return union(start, start + trace.dur_ns[events])


def named_events(case: Case, pattern: re.Pattern[str], *kinds: Kind) -> Int64:
    """The host events of these kinds that the pattern names, in the replayed steps, none inside
    another of them."""
    trace, parent = case.replayed, case.context.links.parent
    driving = case.context.host.driving[: len(trace)]
    named = trace.is_kind(*kinds) & matching(trace, pattern) & driving
    events = np.flatnonzero(
        named
        & (trace.end_ns > case.graph.call_start_ns[0])
        & (trace.start_ns < case.graph.call_end_ns[-1])
    )
    outer: Int64 = events[ancestor_with(parent, parent[events], named) == NONE]
    return outer


def waiting_of(case: Case, graph: Graph) -> Intervals:
    """When the host was recorded to stand still for the device: no work of its own to spare
    there."""
    trace = case.replayed
    waits = np.flatnonzero(graph.call_wait != NONE)
    began = graph.call_start_ns[waits]
    return union(began, np.maximum(trace.end_ns[graph.task_event[graph.call_wait[waits]]], began))


@once_a_case
def share_inside(case: Case, ranges: Intervals) -> Float64:
    """Share of the host's own time from each call to the next that lies inside the ranges, without
    what recording cost there and outside."""
    own, waiting, recorded = _own_time(case)
    start, end = case.graph.call_start_ns, case.graph.call_end_ns
    inside = np.minimum(lengths_in(start, end, subtract(ranges, waiting)), own)
    total = np.concatenate([[0], np.cumsum(recorded.weight * contains(ranges, recorded.times))])
    events = total[recorded.last] - total[recorded.first]
    cost_ns = 0.0 if case.facts.replayed is None else case.facts.replayed.cost_ns
    middle_ns = None if case.recorded is None else event_ns(case.recorded)
    left = without_cost_ns(inside, events, cost_ns, middle_ns)
    outside = case.graph.call_events["work"] - events
    other = without_cost_ns(own - inside, outside, cost_ns, middle_ns)
    share: Float64 = left / np.maximum(left + other, 1.0)
    return share


class _Recorded(Struct, frozen=True, kw_only=True):
    """Records of the host: when, what that cost, and from which to which for a call."""

    times: Int64
    weight: Int64
    first: Int64
    last: Int64


@once_a_case
def _own_time(case: Case) -> tuple[Int64, Intervals, _Recorded]:
    """Host's own time from each call to the next, when it waits, and what was recorded."""
    waiting = waiting_of(case, case.graph)
    start, end = case.graph.call_start_ns, case.graph.call_end_ns
    times, weight = recorded_weights(case.replayed, case.context.host)
    recorded = _Recorded(
        times=times,
        weight=weight,
        first=np.searchsorted(times, start),
        last=np.searchsorted(times, end),
    )
    return end - start - lengths_in(start, end, waiting), waiting, recorded


def calls_inside(graph: Graph, ranges: Intervals) -> Bool:
    """Mask of the calls made inside the ranges."""
    return contains(ranges, graph.call_start_ns)


def call_of_task(graph: Graph) -> Int64:
    """The call that launches each task."""
    return np.repeat(np.arange(len(graph.call_event)), np.diff(graph.call_first))


def with_operators(graph: Graph, table: TaskTable, operators: Float64) -> Graph:
    """Add so many operators beside each task's. They come from no Python of the model's: each takes
    the host what the middle one of the model's does, of those that are left."""
    work, call = graph.call_parts["work"], call_of_task(graph)
    of_model = (np.diff(call, prepend=NONE) != 0) & ~table.optimizer & (table.op != NONE)
    ops, of_op = np.unique(table.op[of_model], return_inverse=True)
    spent = np.bincount(of_op, work[call[of_model]], len(ops))
    if not spent.any():
        return graph
    extra = np.zeros(len(work))
    np.add.at(extra, call, operators * median(spent[spent > 0]))
    return with_part_ns(graph, "work", work + extra)


def tasks_of(graph: Graph, calls: Bool) -> Bool:
    """Mask of the tasks those calls launched."""
    mask: Bool = np.repeat(calls, np.diff(graph.call_first))
    return mask


def without_ranges(case: Case, graph: Graph, ranges: Intervals) -> Graph:
    """The host never enters the ranges: their work, their waits and the tasks they launched are
    gone. Without a device the tasks are the host's own operators, and what lies inside goes; of a
    rank of several they are collectives, and operators inside are a part of what the host did."""
    left = 1.0 - share_inside(case, ranges)
    parts = graph.call_parts | {"work": graph.call_parts["work"] * left}
    if graph.on_host and case.kinds is not None and case.kinds.comms.all():
        return replace(graph, call_parts=parts)
    if graph.on_host:
        outside = 1.0 - _operators_inside(case, ranges)
        return replace(graph, call_parts=parts, task_ns=graph.task_ns * outside)
    inside = calls_inside(graph, ranges)
    idle = without_waits(without_tasks(graph, tasks_of(graph, inside)), inside)
    return replace(idle, call_parts=parts)


def with_shorter_operators(case: Case, graph: Graph, ranges: Intervals, share: float) -> Graph:
    """Shorten by so much what the operators inside the ranges take, in a run without a device."""
    left = 1.0 - share * _operators_inside(case, ranges)
    return replace(graph, task_ns=graph.task_ns * left)


def without_operators(case: Case, graph: Graph, ranges: Intervals) -> Graph:
    """Drop the operators inside the ranges of a rank of several without a device, where they are a
    part of what the host did."""
    host_end = int(graph.call_end_ns[-1])
    operators = host_work(case.context.trace, case.context.host, host_end)
    start, end = graph.call_start_ns, graph.call_end_ns
    inside = lengths_in(start, end, intersect(operators, ranges))
    left = 1.0 - inside / np.maximum(lengths_in(start, end, operators), 1)
    return with_part_ns(graph, "operators", graph.call_parts["operators"] * left)


@once_a_case
def _operators_inside(case: Case, ranges: Intervals) -> Float64:
    """Share inside the ranges of each stretch of operators of a run without a device."""
    assert case.recorded is not None
    start, length = case.recorded.call_start_ns, case.recorded.task_ns
    inside = lengths_in(start, start + length.astype(np.int64), ranges)
    share: Float64 = inside / np.maximum(length, 1.0)
    return share


def marked_lines(case: Case, events: Int64, stalls: Stalls | None) -> tuple[SourceLocation, ...]:
    """Lines from the names of marks (`torch.save at train.py(41): main`); else of what some steps
    held."""
    trace = case.context.trace
    spent: Counter[str] = Counter()
    for event in events.tolist():
        _, _, line = str(trace.names[trace.name[event]]).partition(" at ")
        spent[line] += int(trace.dur_ns[event])
    total = max(spent.total(), 1)
    lines = {line: ns / total for line, ns in spent.most_common() if line}
    return located(lines or ({} if stalls is None else stalls.lines))


def located(lines: Mapping[str, float]) -> tuple[SourceLocation, ...]:
    return tuple(
        SourceLocation(line=line_of(line), module=None, share=share)
        for line, share in lines.items()
        if share >= MIN_SHARE
    )


def rounded_up(steps: float) -> int:
    """The next number with one digit that counts: 137 becomes 200."""
    whole = max(math.ceil(steps), 1)
    unit = int("1".ljust(len(str(whole)), "0"))
    return math.ceil(whole / unit) * unit
