"""Kernels that only copy a tensor from one floating-point type to another."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from stepscope.analyses.grouping import distinct, matching
from stepscope.analyses.host.nesting import ancestor_with
from stepscope.core.trace import NONE, Bool, Int64
from stepscope.replay.changes import Change, without_tasks
from stepscope.replay.graph import Graph
from stepscope.rules.case import Case, once_a_case
from stepscope.rules.shared.host_ranges import ranges_of, without_ranges
from stepscope.rules.task_table import TaskTable
from stepscope.workload.inputs import Shape
from stepscope.workload.operands import operand

FLOATS = frozenset({"fp64", "fp32", "bf16", "fp16"})
CASTING = re.compile(r"^aten::(to|_to_copy|copy_|type_as)$|evaluate_function: ToCopyBackward")
"""What the host is in for the sake of a cast."""
ITS_OPERATORS = re.compile(r"^aten::(to|_to_copy|copy_|type_as)$")
OPERATOR = re.compile(r"^aten::")
CAST_BACK = re.compile(r"^ToCopyBackward")
GRADIENT_TYPE = re.compile(r"^autograd::engine::evaluate_function: (?!ToCopyBackward)")
"""Where the engine gives a gradient the type of what it is of: that was added to, or multiplied by,
a wider one."""


def cast_of(table: TaskTable, op: int) -> tuple[Shape, str, str] | None:
    """The shape of what the operator copies from one floating type to another, and the types it
    goes to and comes from; None where it does not."""
    inputs = table.inputs(op) if table.op_name(op) == "aten::copy_" else None
    to, source = (None, None) if inputs is None else (operand(inputs, 0), operand(inputs, 1))
    if to is None or source is None or to.dims != source.dims or to.dtype == source.dtype:
        return None
    return (to.dims, to.dtype, source.dtype) if {to.dtype, source.dtype} <= FLOATS else None


@once_a_case
def made_by_autocast(case: Case) -> Bool:
    """Tasks that cast what an operator takes in another type, or its gradient, as operators do
    under autocast; what the model casts itself, as by `x.float()`, is no part of an operator."""
    trace, table, parent = case.replayed, case.table, case.context.links.parent
    casts = table.where(lambda op: table.once(cast_of, op) is not None) & ~table.optimizer
    its, operators = matching(trace, ITS_OPERATORS), matching(trace, OPERATOR)

    def around(ops: Int64) -> Int64:
        while (inside := (ops != NONE) & its[ops]).any():
            ops = np.where(inside, parent[ops], ops)
        return ops

    def is_named(events: Int64, named: Bool) -> Bool:
        mask: Bool = (events != NONE) & named[events]
        return mask

    above = around(table.op)
    back = is_named(above, matching(trace, CAST_BACK))
    above = np.where(back, around(np.where(back, table.home, NONE)), above)
    promoted = is_named(above, matching(trace, GRADIENT_TYPE)) & ~table.recomputed
    made: Bool = casts & (is_named(above, operators) | promoted)
    return made


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
