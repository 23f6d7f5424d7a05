"""Ranks without a device wait for one another over a few numbers, several times a step.

What it sees: collectives of a few numbers (a loss or an accuracy averaged over ranks, a flag, a
barrier), handed over by the training thread, which goes on when they are done. The gradients'
exchange is not meant, nor what DDP and FSDP send.

Why it costs: each takes a message there and back however few its bytes, wakes a thread of each
rank, and holds all ranks until the last one is there: what one rank takes longer, all take longer,
several times a step.

Evidence it needs: gloo's collectives with their sizes, which c10d records by itself, on all ranks.

What to do: average metrics every 50th step, or put them into one tensor: one `all_reduce` of six
numbers takes as long as one of one. No `dist.barrier()` in the step: the next exchange of gradients
waits for all ranks anyway. The gain is of every 50th step; at the least, of one in place of all.

Example: six metrics and a barrier a step, on two ranks, took 3 of 7 ms.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from stepscope.replay.changes import without_host_ranges
from stepscope.replay.job import with_graphs
from stepscope.replay.simulate_job import JobGraph
from stepscope.rules.job_case import JobCase, JobProposal, without_collectives
from stepscope.rules.rule import Rule
from stepscope.rules.shared.host_ranges import without_operators
from stepscope.rules.shared.waited_collectives import Waited, waited_collectives

CODE = "waited-metrics"
BOUND = "comms"
MAX_BYTES = 4096
"""Bytes of a few numbers; a page."""
MIN_A_STEP = 2
"""Collectives a step: one is a loss that all ranks must know."""


def propose_job(job: JobCase) -> JobProposal | None:
    """The step without them."""
    if len(job.cases) < 2 or not all(part.graph.on_host for part in job.job_graph.parts):
        return None
    few = [_few_numbers(waited_collectives(job, index)) for index in range(len(job.cases))]
    steps = max(job.job_graph.parts[0].graph.num_steps, 1)
    num = len(few[0]) / steps
    if min(map(len, few)) < MIN_A_STEP * steps:
        return None
    took_ms = [float((own.end - own.start).sum()) / steps / 1e6 for own in few]
    barriers = sum(kind.op == "barrier" for kind in few[0].sent.kind) / steps
    return JobProposal(
        summary=f"The ranks wait for one another {num:.0f} times a step over a few numbers: "
        f"{min(took_ms):.2f} ms at the least.",
        action="average metrics every 50th step, or all of them in one tensor: one all_reduce"
        + ("; no dist.barrier() in the step" if barriers else ""),
        evidence=(
            (
                f"{num - barriers:.0f} collectives of at most {MAX_BYTES} bytes and "
                f"{barriers:.0f} barriers a step"
            ),
        ),
        change=partial(_without, job=job, few=few),
        cautious=partial(_without, job=job, few=[_all_but_last(own) for own in few]),
    )


def _few_numbers(waited: Waited) -> Waited:
    is_barrier = np.array([kind.op == "barrier" for kind in waited.sent.kind], np.bool_)
    return waited.at((is_barrier | (waited.sent.bytes <= MAX_BYTES)) & ~waited.before_update)


def _all_but_last(waited: Waited) -> Waited:
    return waited.at(np.append(np.diff(waited.sent.step) == 0, False))


def _without(job_graph: JobGraph, job: JobCase, few: list[Waited]) -> JobGraph:
    masks, graphs = [], []
    for case, part, own in zip(job.cases, job_graph.parts, few, strict=True):
        mask = np.zeros(len(part.graph), np.bool_)
        mask[own.sent.task] = True
        masks.append(mask)
        left = without_host_ranges(part.graph, own.ranges)
        graphs.append(without_operators(case, left, own.ranges))
    return without_collectives(with_graphs(job_graph, graphs), masks)


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, propose_job=propose_job)
