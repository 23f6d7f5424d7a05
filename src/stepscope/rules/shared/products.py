"""Matrix products by their recorded inputs."""

from __future__ import annotations

from stepscope.rules.task_table import TaskTable
from stepscope.workload.operands import operand

PRODUCTS = {"aten::mm": (0, 1), "aten::addmm": (1, 2)}
"""The operators that a linear layer's products are, and where their two matrices stand."""


def product_sizes(table: TaskTable, op: int) -> tuple[int, int, int]:
    """m, n and k; zeros when not known."""
    return table.once(_sizes, op)


def _sizes(table: TaskTable, op: int) -> tuple[int, int, int]:
    inputs, positions = table.inputs(op), PRODUCTS.get(table.op_name(op))
    if inputs is None or positions is None:
        return 0, 0, 0
    left, right = (operand(inputs, position) for position in positions)
    if left is None or right is None or len(left.dims) != 2 or len(right.dims) != 2:
        return 0, 0, 0
    return left.dims[0], right.dims[1], left.dims[1]
