"""Rounds of forward and backward in a step: micro-batches, as far as their order shows them."""

from __future__ import annotations

import numpy as np

from stepscope.core.trace import NONE, Int64
from stepscope.rules.job_case import JobCase


def num_rounds(job: JobCase, index: int) -> int:
    """The most rounds that a step of this rank has."""
    number = round_of(job, index)
    return int(number.max()) + 1 if len(number) else 0


def round_of(job: JobCase, index: int) -> Int64:
    """Per task, the round of its step: a new one begins where forward follows backward work; NONE
    after the last backward."""
    case, graph = job.cases[index], job.job_graph.parts[index].graph
    assert case.kinds is not None
    backward, optimizer = case.table.backward, case.table.optimizer
    number = np.full(len(graph), NONE, np.int64)
    for step in range(graph.num_steps):
        tasks = np.flatnonzero((graph.task_step == step) & ~optimizer & ~case.kinds.comms & ~case.kinds.transfer)
        back = backward[tasks]
        if not back.any():
            continue
        until = int(np.flatnonzero(back)[-1]) + 1
        begins = np.concatenate([[False], back[:-1] & ~back[1:]])
        number[tasks[:until]] = np.cumsum(begins)[:until]
    return number
