"""Many small copies to the device, each of which costs a start and hardly any bytes.

What it sees: many HtoD copies a step that take far longer than their bytes need at the link's rate.

Why it costs: a copy costs microseconds to start, on the host and on the device, whatever its size;
from memory that is not pinned it can also hold the host until the stream is done. One copy of all
the bytes costs that once.

Evidence it needs: the copies in the trace, with their bytes.

What to do: put the values into one host tensor and copy that; keep constants (masks, positions,
weights of the loss) on the device as buffers; make them there: `torch.tensor(x, device=...)`
copies, `torch.full` and `torch.arange` with `device=` do not.

Example: (for illustration, not measured) 300 scalars a step sent one at a time, 20 us of host time
each, took 6 of 30 ms.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
from msgspec import Struct

from stepscope.analyses.grouping import matching, median
from stepscope.analyses.host.nesting import ancestor_with
from stepscope.analyses.intervals import union
from stepscope.core.diagnosis import Abstention
from stepscope.core.trace import NONE, Bool, Int64, Kind
from stepscope.replay.changes import Change, without_host_ranges
from stepscope.replay.graph import Graph
from stepscope.rules.case import Case, once_a_case
from stepscope.rules.proposal import Proposal
from stepscope.rules.rule import Rule
from stepscope.rules.shared.host_ranges import (
    calls_inside,
    named_events,
    ranges_of,
    without_ranges,
)
from stepscope.rules.shared.pcie_copies import (
    TO_DEVICE,
    copy_tasks,
    launching,
    per_step,
    pinned_bytes_per_s,
    sizes,
    without_blocking,
)

CODE = "many-small-copies"
BOUND = "transfer"

COPYING = re.compile(r"^aten::(to|_to_copy|copy_|lift_fresh|cuda)$")
"""The operators a copy stands in; the outermost of them is gone with it."""
JOINING = re.compile(r"^aten::pad_sequence$")
"""Copies what came one by one into one tensor, one by one."""


class Policy(Struct, frozen=True, kw_only=True):
    least_per_step: int = 16
    """A batch has a handful of tensors, each with a copy of its own, and that is as it should
    be."""
    latency_bound: float = 0.5
    """Share of a copy's time that its bytes need at the link's rate; below, the start is the larger
    part."""
    short_ns: float = 10_000.0
    """Where bytes or rate are not known: a copy this short is one start."""
    making_ns: int = 50_000
    """Nanoseconds from one copy to the next at most, for what makes the next one's tensor: longer
    is work of its own, which stays."""


POLICY = Policy()


def propose(case: Case) -> Proposal | Abstention | None:
    """One copy of the sum in place of many."""
    graph = case.graph
    tasks = copy_tasks(case, TO_DEVICE) & _latency_bound(case)
    each = per_step(graph, float(tasks.sum()))
    if each < POLICY.least_per_step:
        return None
    size = sizes(case)[tasks]
    mean = "bytes not recorded"
    if not np.isnan(size).all():
        mean = f"{float(np.nanmean(size)):.0f} bytes each"
    return Proposal(
        summary=f"{each:.0f} small copies to the device a step, each of which costs its start and "
        "hardly any bytes.",
        action="make constants once, on the device (device=x.device); gather the rest into one "
        "pinned host tensor, copied once with non_blocking=True",
        evidence=(
            f"{each:.0f} copies a step, {mean}",
            f"{median(graph.task_ns[tasks]) / 1e3:.1f} us each in the middle",
        ),
        events=graph.task_event[tasks],
        change=_merged(case, tasks, graph.task_step[tasks]),
        cautious=_merged(case, tasks, _runs(case, tasks)),
        hopeful=_merged(case, tasks, graph.task_step[tasks], is_joined=True),
    )


def _latency_bound(case: Case) -> Bool:
    rate = pinned_bytes_per_s(case)
    moving = np.full(len(case.graph), np.nan) if rate is None else sizes(case) / rate * 1e9
    is_known = ~np.isnan(moving)
    bound: Bool = np.where(
        is_known,
        moving < POLICY.latency_bound * case.graph.task_ns,
        case.graph.task_ns < POLICY.short_ns,
    )
    return bound


def _runs(case: Case, tasks: Bool) -> Int64:
    """Run of copies that each masked copy belongs to: a kernel launched between two parts them."""
    kernels = case.context.trace.kind[case.graph.task_event] == Kind.KERNEL
    run: Int64 = np.cumsum(kernels)[tasks]
    return run


def _merged(case: Case, tasks: Bool, group: Int64, *, is_joined: bool = False) -> Change:
    """Merge the copies of each group: the first brings all the bytes; the others, and the operators
    that made them, are gone. What put them together on the device does so on the host, where it
    launches nothing; where they are made in one piece (`is_joined`), it goes too."""
    positions = np.flatnonzero(tasks)
    kept = np.zeros(len(tasks), np.bool_)
    kept[positions[np.unique(group, return_index=True)[1]]] = True
    gone = tasks & ~kept
    rate = pinned_bytes_per_s(case)
    bytes_of = np.bincount(
        np.unique(group, return_inverse=True)[1], np.nan_to_num(sizes(case)[positions])
    )
    extra = np.zeros(len(tasks))
    extra[kept] = 0.0 if rate is None else bytes_of / rate * 1e9

    def change(graph: Graph) -> Graph:
        freed = without_blocking(case, graph, gone)
        lasting = np.where(gone, 0.0, graph.task_ns + extra)
        fewer = replace(freed, task_ns=lasting, task_gap_ns=np.where(gone, 0.0, freed.task_gap_ns))
        alone = _without_their_operators(case, fewer, gone)
        joining = ranges_of(case, _joining(case))
        if not is_joined:
            joining = ranges_of(case, graph.call_event[calls_inside(graph, joining)])
        return without_ranges(case, alone, joining)

    return change


@once_a_case
def _joining(case: Case) -> Int64:
    """The operators that put tensors together on the device: they launch something."""
    trace, launched = case.replayed, case.graph.call_start_ns
    events = named_events(case, JOINING, Kind.OP)
    first, past = (
        np.searchsorted(launched, times[events]) for times in (trace.start_ns, trace.end_ns)
    )
    joining: Int64 = events[past > first]
    return joining


def _without_their_operators(case: Case, graph: Graph, gone: Bool) -> Graph:
    """Nor does the host make each copy's tensor right before it."""
    trace, links = case.replayed, case.context.links
    calls = graph.call_event[np.flatnonzero(launching(graph, gone))]
    copying = trace.is_kind(Kind.OP) & matching(trace, COPYING)
    outer = ancestor_with(links.parent, links.parent[calls], copying, outermost=True)
    ranges = np.where(outer == NONE, calls, outer)
    start, end = trace.start_ns[ranges], trace.end_ns[ranges]
    before = np.concatenate([start[:1], end[:-1]])
    is_made = (start >= before) & (start - before <= POLICY.making_ns)
    return without_host_ranges(graph, union(np.where(is_made, before, start), end))


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, propose=propose)
