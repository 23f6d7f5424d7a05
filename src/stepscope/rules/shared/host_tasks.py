"""Operators of a run without a device, by what called them: backward, the optimizer, or lines that
read numbers."""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct

from stepscope.analyses.grouping import matching
from stepscope.analyses.intervals import contains, union
from stepscope.analyses.steps.projection import OPTIMIZER_RANGE
from stepscope.core.trace import NONE, Bool, Int64, Kind
from stepscope.replay.graph import Graph
from stepscope.rules.case import Case, once_a_case

READ = re.compile(r"^aten::(item|_local_scalar_dense|resolve_neg)$")
"""What `.item()`, `float()`, `.tolist()` and `.numpy()` call."""
PRODUCT = re.compile(
    r"^aten::(linear|addmm|mm|bmm|baddbmm|matmul|einsum|conv\w*|_?convolution|gru|lstm)"
)


class Policy(Struct, frozen=True, kw_only=True):
    most_between: int = 12
    """Operators between two numbers that are read: a norm, a mean and a deviation of a tensor take
    one or two each, a histogram some more. An evaluated batch takes a model's."""
    least_reads: int = 32
    """A step: fewer are a loss and some metrics."""


POLICY = Policy()


def home_of(case: Case, graph: Graph) -> Int64:
    """Task whose operators each node of backward is the backward of; NONE of the other tasks."""
    trace, home = case.context.trace, np.full(len(graph), NONE, np.int64)
    sequence = trace.sequence[graph.task_event]
    nodes = np.flatnonzero((sequence >= 0) & (trace.fwd_thread[graph.task_event] > 0))
    ops = np.flatnonzero(trace.is_kind(Kind.OP) & (trace.sequence >= 0) & (trace.fwd_thread <= 0))
    ops = ops[np.lexsort((trace.start_ns[ops], trace.sequence[ops]))]
    if not len(ops) or not len(nodes):
        return home
    # Operators that backward needs nothing of bear the number of the next node, too.
    at = np.searchsorted(trace.sequence[ops], sequence[nodes], side="right") - 1
    forward = ops[np.maximum(at, 0)]
    known = trace.sequence[forward] == sequence[nodes]
    task = np.searchsorted(graph.call_start_ns, trace.start_ns[forward[known]], side="right") - 1
    home[nodes[known]] = task
    return home


def in_optimizer(case: Case, graph: Graph) -> Bool:
    """Mask of the tasks that the optimizer's step calls."""
    trace = case.context.trace
    ranges = np.flatnonzero(matching(trace, OPTIMIZER_RANGE) & ~trace.device_work)
    inside = union(trace.start_ns[ranges], trace.end_ns[ranges])
    return contains(inside, trace.start_ns[graph.task_event])


@once_a_case
def reading(case: Case) -> Bool:
    """Mask of the tasks that make numbers and read them: stretches with many reads, of which
    backward needs nothing and which multiply no matrices."""
    trace, graph = case.context.trace, case.graph
    home = home_of(case, graph)
    needed = np.zeros(len(graph), np.bool_)
    needed[home[home != NONE]] = True
    nodes = trace.fwd_thread[graph.task_event] > 0
    apart = needed | nodes | in_optimizer(case, graph) | matching(trace, PRODUCT)[graph.task_event]
    reads = np.flatnonzero(matching(trace, READ)[graph.task_event] & ~apart)
    mask = np.zeros(len(graph), np.bool_)
    if len(reads) < 2:
        return mask
    walls = np.concatenate([[0], np.cumsum(apart)])
    together = (
        (np.diff(reads) <= POLICY.most_between)
        & (walls[reads[1:]] == walls[reads[:-1]])
        & (graph.task_step[reads[1:]] == graph.task_step[reads[:-1]])
    )
    edge = np.flatnonzero(~together) + 1
    for stretch in np.split(reads, edge):
        if len(stretch) >= POLICY.least_reads:
            mask[_begin(stretch, apart) : stretch[-1] + 1] = True
    return mask


def _begin(stretch: Int64, apart: Bool) -> int:
    """Begin of what the first number was made of: as many operators as there are between two."""
    usual = int(np.median(np.diff(stretch)))
    first = int(stretch[0])
    walls = np.flatnonzero(apart[:first])
    return max(first - usual + 1, int(walls[-1]) + 1 if len(walls) else 0, 0)
