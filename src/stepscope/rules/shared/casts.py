"""Kernels that only copy a tensor from one floating-point type to another."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from stepscope.analyses.grouping import distinct
from stepscope.analyses.host.nesting import ancestor_with
from stepscope.analyses.naming import matching
from stepscope.core.trace import NONE, Bool, Int64
from stepscope.replay.changes import Change, without_tasks
from stepscope.replay.graph import Graph
from stepscope.rules.case import Case
from stepscope.rules.shared.host_ranges import ranges_of, without_ranges
from stepscope.rules.task_table import TaskTable
from stepscope.workload.inputs import Shape
from stepscope.workload.operands import operand

FLOATS = frozenset({"fp64", "fp32", "bf16", "fp16"})
CASTING = re.compile(r"^aten::(to|_to_copy|copy_|type_as)$|evaluate_function: ToCopyBackward")
"""What the host is in for the sake of a cast."""


def cast_of(table: TaskTable, op: int) -> tuple[Shape, str, str] | None:
    """The shape of what the operator copies from one floating type to another, and the types it
    goes to and comes from; None where it does not."""
    inputs = table.inputs(op) if table.op_name(op) == "aten::copy_" else None
    to, source = (None, None) if inputs is None else (operand(inputs, 0), operand(inputs, 1))
    if to is None or source is None or to.dims != source.dims or to.dtype == source.dtype:
        return None
    return (to.dims, to.dtype, source.dtype) if {to.dtype, source.dtype} <= FLOATS else None


def spared(case: Case, table: TaskTable, gone: Bool, sums: Bool, *, with_host: bool) -> Change:
    """Without these casts; the sums then run over half the bytes."""
    trace, links = case.replayed, case.context.links
    ops: Int64 = distinct(table.op[gone])
    outer = ancestor_with(links.parent, ops[ops != NONE], matching(trace, CASTING), outermost=True)
    ranges = ranges_of(case, outer[outer != NONE])

    def change(graph: Graph) -> Graph:
        after = without_tasks(graph, gone)
        after = replace(after, task_ns=np.where(sums, after.task_ns * 0.5, after.task_ns))
        return without_ranges(case, after, ranges) if with_host else after

    return change
