"""Matrix products by their recorded inputs."""

from __future__ import annotations

from stepscope.rules.task_table import TaskTable
from stepscope.workload.inputs import ParsedInputs
from stepscope.workload.operands import is_shape, operand

PRODUCTS = {"aten::mm": (0, 1), "aten::addmm": (1, 2)}
"""The operators that a linear layer's products are, and where their two matrices stand."""
BATCHED = {"aten::bmm": (0, 1), "aten::baddbmm": (1, 2)}
ROW_OF = {"tf32": 4, "bf16": 8, "fp16": 8}
"""Numbers in 16 bytes."""


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


def is_aligned(inputs: ParsedInputs, positions: tuple[int, int], row: int) -> bool:
    """Whether the rows of both operands and of the output are whole."""
    for position in positions:
        dims, strides = inputs.dims[position], inputs.strides[position] if inputs.strides else ()
        if not is_shape(dims) or len(dims) < 2:
            return True
        leading = max(strides[-2:]) if is_shape(strides) and len(strides) > 1 else dims[-1]
        if leading % row:
            return False
    out = inputs.dims[positions[1]]
    return not (is_shape(out) and out[-1] % row)


def num_across(inputs: ParsedInputs, positions: tuple[int, int]) -> int:
    """Of the two matrices, how many do not lie along the dimension that is summed over."""
    left, right = (inputs.strides[position] if inputs.strides else () for position in positions)
    across = is_shape(left) and len(left) > 1 and left[-1] != 1
    return int(across) + int(is_shape(right) and len(right) > 1 and right[-2] != 1)
