"""Gradients are exchanged after every micro-batch, though only the last one's sum is used.

What it sees: a step with several rounds of forward and backward for one optimizer step, and the
same gradient collectives (all-reduce, reduce-scatter) in each round.

Why it costs: with accumulation over k micro-batches all but the last exchange are thrown away: the
bytes cross the wire k times, and each time the host copies every gradient into its bucket and back,
and broadcasts the buffers.

Evidence it needs: the collectives' sizes, which c10d records by itself, and the optimizer's marks;
without a device (gloo) the operators that autograd notes.

What to do: wrap forward and backward of all but the last micro-batch in `with model.no_sync():`
(DDP); for FSDP2 `model.set_requires_gradient_sync(False)` until the last one. FSDP then keeps
unsharded gradients: it needs the memory.

Example: 4 micro-batches over a slow link took 490 ms a step, 158 ms with no_sync around the first
three.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from stepscope.analyses.grouping import is_among, matching
from stepscope.analyses.intervals import Intervals, contains, union
from stepscope.core.trace import Bool, Int64, Kind, Trace
from stepscope.replay.changes import without_host_ranges
from stepscope.replay.job import with_graphs
from stepscope.replay.simulate_job import JobGraph
from stepscope.rules.job_case import JobCase, JobProposal, without_collectives
from stepscope.rules.rule import Rule
from stepscope.rules.shared.host_ranges import (
    call_of_task,
    calls_inside,
    tasks_of,
    without_operators,
)
from stepscope.rules.shared.micro_batches import beginnings, num_micro_batches

CODE = "sync-every-microbatch"
BOUND = "comms"
BROADCAST = re.compile(r"^c10d::broadcast")
EXCHANGING = re.compile(
    r"^torch(::distributed|\.distributed\.ddp)[.:]+reducer::|^c10d::(allreduce|reduce_scatter|broadcast)"
)
"""What DDP records of its own work around an exchange: gradients copied into buckets and back, and
the calls themselves."""
FORWARD = re.compile(r"^DistributedDataParallel\.forward")
"""Begins with the buffers' broadcast, where there is one."""
MIN_SHARE = 0.8
"""Share of a micro-batch's exchanged bytes that the others must exchange too."""


def propose_job(job: JobCase) -> JobProposal | None:
    """Only the last micro-batch's exchange is kept."""
    unneeded = [unneeded_exchanges(job, index) for index in range(len(job.cases))]
    if any(mask is None for mask in unneeded):
        return None
    masks = [mask for mask in unneeded if mask is not None]
    around = [_host_ranges(job, index) for index in range(len(job.cases))]
    graph, records = job.job_graph.parts[0].graph, job.rank_records[0]
    steps = max(graph.num_steps, 1)
    gone = int(masks[0].sum()) / steps
    num = num_micro_batches(job, 0)
    unused = is_among(records.event, graph.task_event[masks[0]])
    size = sum(records.kinds[kind].bytes or 0 for kind in records.kind[unused])
    return JobProposal(
        summary=f"Gradients are exchanged after each of {num} micro-batches; the last exchange "
        "alone is used.",
        action="with model.no_sync(): around forward and backward of all micro-batches but the "
        "last (FSDP2: model.set_requires_gradient_sync(False))",
        evidence=(
            f"{num} rounds of forward and backward for one optimizer step",
            f"{gone:.0f} exchanges a step are thrown away, {size / steps / 1e6:.0f} MB",
        ),
        change=lambda job_graph: _only_last(job, job_graph, masks, around),
    )


def _only_last(
    job: JobCase, job_graph: JobGraph, masks: Sequence[Bool], around: Sequence[Intervals]
) -> JobGraph:
    """No exchange but the last, nor what the host does for it: filling buckets, emptying them,
    broadcasting buffers."""
    gone, graphs = [], []
    for case, part, mask, ranges in zip(job.cases, job_graph.parts, masks, around, strict=True):
        graph = part.graph
        gone.append(mask | tasks_of(graph, calls_inside(graph, ranges)))
        left = without_host_ranges(graph, ranges)
        graphs.append(without_operators(case, left, ranges) if graph.on_host else left)
    return without_collectives(with_graphs(job_graph, graphs), gone)


def _host_ranges(job: JobCase, index: int) -> Intervals:
    """When the host works for exchanges that are not needed: from each step's first micro-batch to
    its last one, which is kept."""
    trace = job.cases[index].context.trace
    begins = [times for times in beginnings(job, index) if len(times) > 1]
    accumulating = union(
        np.array([times[0] for times in begins], np.int64),
        np.array([times[-1] for times in begins], np.int64),
    )
    own = np.flatnonzero(trace.is_kind(Kind.OP, Kind.MARK) & matching(trace, EXCHANGING))
    own = own[contains(accumulating, trace.start_ns[own])]
    forward = np.flatnonzero(trace.is_kind(Kind.MARK) & matching(trace, FORWARD))
    forward = forward[contains(accumulating, trace.start_ns[forward])]
    sent = np.sort(trace.end_ns[own[matching(trace, BROADCAST)[own]]])
    until = [
        int(sent[(sent > low) & (sent <= high)].max(initial=low))
        for low, high in _spans(trace, forward)
    ]
    return union(
        np.concatenate([trace.start_ns[own], trace.start_ns[forward]]),
        np.concatenate([trace.end_ns[own], np.array(until, np.int64)]),
    )


def _spans(trace: Trace, events: Int64) -> list[tuple[int, int]]:
    return list(zip(trace.start_ns[events].tolist(), trace.end_ns[events].tolist(), strict=True))


def unneeded_exchanges(job: JobCase, index: int) -> Bool | None:
    """Mask of the exchanges of all micro-batches but the last; None when they do not exchange the
    same."""
    graph, records = job.job_graph.parts[index].graph, job.rank_records[index]
    wanted = job.tasks(
        index, job.entries(index, lambda kind: kind.op in ("all_reduce", "reduce_scatter"))
    )
    launched = graph.call_start_ns[call_of_task(graph)]
    mask = np.zeros(len(graph), np.bool_)
    size_of = {
        int(event): records.kinds[kind].bytes or 0
        for event, kind in zip(records.event, records.kind, strict=True)
    }
    for step, begins in enumerate(beginnings(job, index)):
        num = len(begins)
        if num < 2:
            return None
        exchanges = np.flatnonzero((graph.task_step == step) & wanted)
        after = np.searchsorted(begins[1:], launched[exchanges], side="right")
        sizes = np.bincount(
            after,
            [size_of.get(int(graph.task_event[task]), 0) for task in exchanges],
            minlength=num,
        )
        if sizes[-1] <= 0 or sizes[:-1].min() < MIN_SHARE * sizes[-1]:
            return None
        mask[exchanges[after < num - 1]] = True
    return mask if mask.any() else None


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, propose_job=propose_job)
