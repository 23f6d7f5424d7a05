"""Sharded parameters are gathered only when their layer needs them.

What it sees: all-gathers during which no kernel computes: each is asked for after the layer before
has been launched, and the compute stream stands still until it is done.

Why it costs: while one layer computes, the link is free to bring the next layer's parameters. Asked
for late, every layer's gather adds to the step.

Evidence it needs: NCCL / RCCL kernels with their launches (`ProfilerActivity.CPU`).

What to do: FSDP1: backward_prefetch=BackwardPrefetch.BACKWARD_PRE, forward_prefetch=True,
limit_all_gathers=True; FSDP2: set_modules_to_forward_prefetch / set_modules_to_backward_prefetch.
One layer's parameters more are in memory at a time. A gather that takes longer than a layer
computes stays visible in part: shard less, or send bf16.

Example: five layers gathered just in time took 50 ms a step, 39 ms with the next one always under
way.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from msgspec import Struct

from stepscope.analyses.intervals import lengths_in
from stepscope.core.trace import NONE, Int64
from stepscope.replay.graph import Graph
from stepscope.replay.job import with_graphs
from stepscope.rules.job_case import JobCase, JobProposal
from stepscope.rules.rule import Rule
from stepscope.rules.shared.messages import messages

CODE = "unprefetched-gather"
BOUND = "comms"


class Policy(Struct, frozen=True, kw_only=True):
    most_beside: float = 0.2
    """Largest share of a gather's time that may overlap with compute for it to count as not
    prefetched: the last kernels of the layer before."""
    least_share: float = 0.5
    """Share of the gathers that must be so: the first of each pass has nothing to hide behind."""


POLICY = Policy()
NEVER_NS = -1e15
"""A latency that never holds a task up."""


class EarlyGather(Struct, frozen=True, kw_only=True):
    """A gather that can be under way while the layer before it computes."""

    gather: int
    since: int
    """The compute task whose end it waits for: what the gather before it waited for."""
    user: int
    """The first compute task launched after it, which needs it."""


def propose_job(job: JobCase) -> JobProposal | None:
    """Each gather may begin when the one before it is done, one layer earlier."""
    late = [_late(job, index) for index in range(len(job.cases))]
    if not all(early for early, _ in late):
        return None
    early = [gathers for gathers, _ in late]
    steps = max(job.job_graph.parts[0].graph.num_steps, 1)
    num, total = len(early[0]), late[0][1]
    return JobProposal(
        summary=f"{num / steps:.0f} all-gathers a step begin only when their layer needs them.",
        action="FSDP1: backward_prefetch=BackwardPrefetch.BACKWARD_PRE, forward_prefetch=True; "
        "FSDP2: set_modules_to_forward_prefetch and set_modules_to_backward_prefetch (one layer's "
        "parameters more in memory)",
        evidence=(
            f"{num / steps:.0f} of {total / steps:.0f} all-gathers a step overlap with no compute",
        ),
        change=lambda job_graph: with_graphs(
            job_graph,
            [
                prefetched(part.graph, gathers)
                for part, gathers in zip(job_graph.parts, early, strict=True)
            ],
        ),
        cautious=lambda job_graph: job_graph,
    )


def _late(job: JobCase, index: int) -> tuple[list[EarlyGather], int]:
    """The gathers that overlap with no compute, and how many gathers there are."""
    case, graph = job.cases[index], job.job_graph.parts[index].graph
    sent = messages(job, index, lambda kind: kind.op == "all_gather" and kind.on_device)
    if len(sent) == 0:
        return [], 0
    trace = case.context.trace
    start = trace.start_ns[graph.task_event[sent.task]]
    end = trace.end_ns[graph.task_event[sent.task]]
    alone = lengths_in(start, end, case.context.sets.compute) <= POLICY.most_beside * (end - start)
    if alone.mean() < POLICY.least_share:
        return [], len(sent)
    compute = np.flatnonzero(job.compute_tasks(index) & ~case.table.optimizer)
    backward = case.table.backward[sent.task]
    early = []
    for position in range(1, len(sent)):
        same = (
            sent.step[position] == sent.step[position - 1] != NONE
            and backward[position] == backward[position - 1]
        )
        since = _before(compute, int(sent.task[position - 1]))
        user = _next(compute, int(sent.task[position]))
        if alone[position] and same and since is not None and user is not None:
            early.append(EarlyGather(gather=int(sent.task[position]), since=since, user=user))
    return early, len(sent)


def _before(compute: Int64, task: int) -> int | None:
    position = int(np.searchsorted(compute, task)) - 1
    return int(compute[position]) if position >= 0 else None


def _next(compute: Int64, task: int) -> int | None:
    position = int(np.searchsorted(compute, task))
    return int(compute[position]) if position < len(compute) else None


def prefetched(graph: Graph, early: list[EarlyGather]) -> Graph:
    """Gathers launched one layer earlier; the compute that needs them waits for them still."""
    after = graph.task_after.copy()
    lag = graph.task_lag_ns.copy()
    latency = graph.task_latency_ns.copy()
    for gathered in early:
        after[gathered.gather] = gathered.since
        lag[gathered.gather] = 0.0
        latency[gathered.gather] = NEVER_NS
        after[gathered.user], lag[gathered.user] = gathered.gather, 0.0
    return replace(graph, task_after=after, task_lag_ns=lag, task_latency_ns=latency)


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, propose_job=propose_job)
