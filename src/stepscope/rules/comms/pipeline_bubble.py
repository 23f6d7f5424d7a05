"""Pipeline stages stand idle while the pipeline fills and drains.

What it sees: ranks that hand activations to one another by send and receive, and wait in them; the
waiting compared with (p - 1) / (m + p - 1) of the step for p stages and m micro-batches, which
GPipe and 1F1B leave idle.

Why it costs: the last stage has nothing to do until the first micro-batch reaches it, the first one
nothing until the last gradient returns. The idle time is that of p - 1 micro-batches, however many
there are: more and smaller ones make it shorter.

Evidence it needs: traces of the ranks of one pipeline; NCCL's SendRecv kernels.

What to do: more micro-batches of the same batch (n_microbatches of the schedule); then an
interleaved schedule (ScheduleInterleaved1F1B), which divides the bubble by the stages per rank, or
a zero-bubble one. Smaller micro-batches launch as many kernels each: a step that its hosts hold up
gains less. Waiting that no bubble explains is uneven stages: see uneven-work.

Example: two stages with 2 micro-batches took 150 ms a step, 118 ms with 8.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from msgspec import Struct

from stepscope.core.trace import NONE, Float64
from stepscope.replay.graph import Graph
from stepscope.replay.simulate_job import JobGraph, play_job
from stepscope.rules.job_case import JobCase, JobProposal
from stepscope.rules.rule import Rule
from stepscope.rules.shared.messages import messages
from stepscope.rules.shared.micro_batches import num_micro_batches

CODE = "pipeline-bubble"
BOUND = "comms"
POINT_TO_POINT = ("send", "recv", "sendrecv")


class Policy(Struct, frozen=True, kw_only=True):
    least_share: float = 0.03
    """Share of the step that every stage must spend waiting in sends and receives."""
    more: int = 4
    """Times the micro-batches the fix is judged for. GPipe (2019, section 2.3) found the bubble
    negligible from m = 4 p on."""


POLICY = Policy()


def propose_job(job: JobCase) -> JobProposal | None:
    """Four times the micro-batches: a quarter of the bubble, four times the launches."""
    if len(job.cases) < 2:
        return None
    waited = _waits(job, job.job_graph)
    bubble = float(waited.min())
    if bubble < POLICY.least_share * job.step_interval_ns:
        return None
    num_stages, num = _num_stages(job), _num_microbatches(job)
    if num_stages < 2 or num is None:
        return None
    formula = (num_stages - 1) / (num + num_stages - 1)
    return JobProposal(
        summary=f"{num_stages} stages with {num} micro-batches: every stage waits "
        f"{bubble / 1e6:.1f} ms a step or longer, {bubble / job.step_interval_ns:.0%} of it on the "
        f"busiest stage, where (p - 1) / (m + p - 1) makes {formula:.0%}.",
        action=f"More micro-batches of the same batch ({POLICY.more * num}), or an interleaved or "
        "zero-bubble schedule",
        evidence=(
            (
                f"waiting in send and receive takes {bubble / job.step_interval_ns:.0%} of the "
                "step on the busiest stage"
            ),
            f"(p - 1) / (m + p - 1) is {formula:.0%}",
        ),
        change=lambda job_graph: _finer(job, job_graph, POLICY.more),
        cautious=lambda job_graph: _finer(job, job_graph, 2),
    )


def _waits(job: JobCase, job_graph: JobGraph) -> Float64:
    """Wait for the other side in sends and receives, a step, for each rank."""
    played = play_job(job_graph)
    values = []
    for index, waited in enumerate(played.waited_ns):
        sent = messages(job, index, lambda kind: kind.op in POINT_TO_POINT)
        # The first step of a replay has no steps before it to wait for: the one in the middle is
        # like the rest.
        steps = np.bincount(
            sent.step, waited[sent.task], minlength=job_graph.parts[index].graph.num_steps
        )
        values.append(float(np.median(steps)))
    return np.array(values, np.float64)


def _num_stages(job: JobCase) -> int:
    """The most ranks that sends and receives tie together."""
    ranks_of: dict[int, set[int]] = {}
    for index in range(len(job.cases)):
        for number in messages(job, index, lambda kind: kind.op in POINT_TO_POINT).number.tolist():
            if number != NONE:
                ranks_of.setdefault(number, set()).add(index)
    pipelines: list[set[int]] = []
    for stages in ranks_of.values():
        touched = [pipeline for pipeline in pipelines if pipeline & stages]
        pipelines = [pipeline for pipeline in pipelines if not pipeline & stages] + [
            stages.union(*touched)
        ]
    return max((len(pipeline) for pipeline in pipelines), default=0)


def _num_microbatches(job: JobCase) -> int | None:
    """1F1B alternates forward and backward on its last stage once a micro-batch; GPipe sends and
    receives once for each."""
    num = max(num_micro_batches(job, index) for index in range(len(job.cases)))
    if num > 1:
        return num
    counts = []
    for index in range(len(job.cases)):
        sent = messages(job, index, lambda kind: kind.op in POINT_TO_POINT)
        counts.append(len(sent) / max(job.job_graph.parts[index].graph.num_steps, 1))
    return round(min(counts) / 2) or None


def _finer(job: JobCase, job_graph: JobGraph, more: int) -> JobGraph:
    """`more` times the micro-batches: each wait is shorter by its share of the bubble, and the host
    launches `more` times."""
    played, waits = play_job(job_graph), _waits(job, job_graph)
    gone = (1 - 1 / more) * float(waits.min())
    parts = []
    for index, (part, waited) in enumerate(zip(job_graph.parts, played.waited_ns, strict=True)):
        task = messages(job, index, lambda kind: kind.op in POINT_TO_POINT).task
        tied = task[part.shared[task] != NONE]
        left = max(1.0 - gone / max(float(waits[index]), 1.0), 0.0)
        task_ns, shared = part.graph.task_ns.copy(), part.shared.copy()
        # Each rank at its own pace from here on: what is left of the waiting is part of its own
        # time.
        task_ns[tied] = job_graph.moving_ns[part.shared[tied]] + waited[tied] * left
        shared[tied] = NONE
        parts.append(
            replace(
                part,
                graph=_launching(job, index, replace(part.graph, task_ns=task_ns), more),
                shared=shared,
            )
        )
    return replace(job_graph, parts=tuple(parts))


def _launching(job: JobCase, index: int, graph: Graph, more: int) -> Graph:
    """The host's own work of forward and backward done `more` times."""
    optimizer = job.cases[index].table.optimizer
    first = np.minimum(graph.call_first[:-1], max(len(graph) - 1, 0))
    launches = np.diff(graph.call_first) > 0
    again = launches & ~optimizer[first] if len(graph) else launches
    return replace(
        graph,
        call_parts=graph.call_parts | {"work": np.where(again, more, 1) * graph.call_parts["work"]},
    )


RULE = Rule(
    code=CODE,
    bound=BOUND,
    text=__doc__,
    propose_job=propose_job,
    # Stages wait for one another.
    answers=("imbalance",),
)
