"""Micro-batches: rounds of forward and backward in a step, by the order of its tasks."""

from __future__ import annotations

import numpy as np

from stepscope.core.trace import NONE, Bool, Int64
from stepscope.rules.job_case import JobCase


def numbered_micro_batches(backward: Bool) -> Int64:
    """The micro-batch of each task of a step: a new one begins where forward follows backward work;
    NONE after the last backward."""
    number = np.full(len(backward), NONE, np.int64)
    if backward.any():
        until = int(np.flatnonzero(backward)[-1]) + 1
        begins = np.concatenate([[False], backward[:-1] & ~backward[1:]])
        number[:until] = np.cumsum(begins)[:until]
    return number


def num_micro_batches(job: JobCase, index: int) -> int:
    """The most that a step of this rank has."""
    number = micro_batch_of(job, index)
    return int(number.max()) + 1 if len(number) else 0


def micro_batch_of(job: JobCase, index: int) -> Int64:
    """Per task of a rank, the micro-batch of its step; NONE for copies, collectives and the
    optimizer."""
    case, graph = job.cases[index], job.job_graph.parts[index].graph
    assert case.kinds is not None
    outside = case.table.optimizer | case.kinds.comms | case.kinds.transfer
    number = np.full(len(graph), NONE, np.int64)
    for step in range(graph.num_steps):
        tasks = np.flatnonzero((graph.task_step == step) & ~outside)
        number[tasks] = numbered_micro_batches(case.table.backward[tasks])
    return number
