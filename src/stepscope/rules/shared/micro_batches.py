"""Micro-batches: rounds of forward and backward in a step, by the order of its tasks; of a rank
without a device, whose tasks are its collectives alone, by the order of its operators."""

from __future__ import annotations

import re

import numpy as np

from stepscope.analyses.grouping import matching
from stepscope.analyses.intervals import contains, union
from stepscope.analyses.rank_context import RankContext
from stepscope.core.trace import NONE, Bool, Int64, Kind
from stepscope.rules.job_case import JobCase
from stepscope.rules.shared.host_ranges import call_of_task

NODE = re.compile(r"^autograd::engine::evaluate_function: ")


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
    return max((len(begins) for begins in beginnings(job, index)), default=0)


def beginnings(job: JobCase, index: int) -> list[Int64]:
    """Times at which a rank's host begins each micro-batch, by step."""
    graph = job.job_graph.parts[index].graph
    if graph.on_host:
        return begun_by_operators(job.cases[index].context)
    number = micro_batch_of(job, index)
    launched = graph.call_start_ns[call_of_task(graph)]
    begins = []
    for step in range(graph.num_steps):
        tasks = np.flatnonzero((graph.task_step == step) & (number != NONE))
        num = int(number[tasks].max()) + 1 if len(tasks) else 0
        begins.append(
            np.array(
                [launched[tasks[number[tasks] == each]].min() for each in range(num)], np.int64
            )
        )
    return begins


def begun_by_operators(context: RankContext) -> list[Int64]:
    """Starts of each step's micro-batches, by operators: of those that autograd noted, the ones
    outside its nodes are forward's."""
    trace, cut = context.trace, context.cut
    ops = np.flatnonzero(trace.is_kind(Kind.OP) & context.host.driving)
    nodes = ops[matching(trace, NODE)[ops]]
    inside = union(trace.start_ns[nodes], trace.end_ns[nodes])
    forward = ops[(trace.sequence[ops] >= 0) & (trace.fwd_thread[ops] <= 0)]
    forward = forward[~contains(inside, trace.start_ns[forward])]
    times = np.concatenate([trace.start_ns[forward], trace.start_ns[nodes]])
    order = np.argsort(times, kind="stable")
    is_node = (np.arange(len(times)) >= len(forward))[order]
    times, begins = times[order], []
    for low, high in zip(cut.host_start.tolist(), cut.host_end.tolist(), strict=True):
        own = slice(*np.searchsorted(times, (low, high)))
        number = numbered_micro_batches(is_node[own])
        _, first = np.unique(number[number != NONE], return_index=True)
        begins.append(times[own][first])
    return begins


def micro_batch_of(job: JobCase, index: int) -> Int64:
    """Micro-batch of its step for each task of a rank; NONE for copies, collectives and the
    optimizer."""
    case, graph = job.cases[index], job.job_graph.parts[index].graph
    assert case.kinds is not None
    outside = case.table.optimizer | case.kinds.comms | case.kinds.transfer
    number = np.full(len(graph), NONE, np.int64)
    for step in range(graph.num_steps):
        tasks = np.flatnonzero((graph.task_step == step) & ~outside)
        number[tasks] = numbered_micro_batches(case.table.backward[tasks])
    return number
