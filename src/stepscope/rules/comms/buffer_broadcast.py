"""Rank 0's buffers are sent to all ranks before every forward pass.

What it sees: broadcasts launched inside DistributedDataParallel.forward, step after step.

Why it costs: DDP keeps buffers (batch norm's running statistics, a mask) the same on all ranks by
sending rank 0's before each forward. Nothing of forward can begin before they are there, so nothing
hides them.

Evidence it needs: NCCL / RCCL broadcasts and DDP's own mark (`ProfilerActivity.CPU`).

What to do: DistributedDataParallel(..., broadcast_buffers=False), where buffers never change
(masks, rotary tables) or may differ between ranks until a checkpoint, which rank 0 writes. Few
small buffers cost nothing: the replay decides.

Example: a ResNet's statistics, 0.12 MB, took 25 us of a 45 ms step: not worth a change.
"""

from __future__ import annotations

import numpy as np

from stepscope.analyses.grouping import distinct
from stepscope.core.trace import NONE, Bool
from stepscope.rules.job_case import JobCase, JobProposal, without_collectives
from stepscope.rules.rule import Rule
from stepscope.rules.shared.messages import Messages, launched_inside, messages

CODE = "buffer-broadcast"
BOUND = "comms"
FORWARD = "DistributedDataParallel.forward"
MIN_STEPS = 0.9
"""Share of the steps that must have a broadcast: one now and then is something else."""


def propose_job(job: JobCase) -> JobProposal | None:
    """The broadcasts of the forward pass are gone."""
    sent = [
        messages(job, index, lambda kind: kind.op == "broadcast" and kind.on_device)
        for index in range(len(job.cases))
    ]
    masks = [_in_forward(job, index, rank_messages) for index, rank_messages in enumerate(sent)]
    if not all(mask.any() for mask in masks):
        return None
    graph = job.job_graph.parts[0].graph
    if len(distinct(graph.task_step[masks[0]])) < MIN_STEPS * graph.num_steps:
        return None
    in_forward = masks[0][sent[0].task]
    size = float(np.nansum(sent[0].bytes[in_forward])) / graph.num_steps
    num = int(in_forward.sum()) / graph.num_steps
    return JobProposal(
        summary=f"Each forward pass begins with {num:.0f} broadcasts of "
        f"buffers, {size / 1e6:.2f} MB.",
        action="DistributedDataParallel(..., broadcast_buffers=False), if the buffers may differ "
        "between ranks",
        evidence=(f"{num:.0f} broadcasts a step inside {FORWARD}",),
        change=lambda job_graph: without_collectives(job_graph, masks),
        changes_numerics=True,
    )


def _in_forward(job: JobCase, index: int, sent: Messages) -> Bool:
    mask = np.zeros(len(job.job_graph.parts[index].graph), np.bool_)
    mask[sent.task[sent.step != NONE]] = True
    if mask.any():
        mask &= launched_inside(job, index, lambda name: name == FORWARD)
    return mask


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, propose_job=propose_job)
