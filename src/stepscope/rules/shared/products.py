"""Matrix products by their recorded inputs."""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from functools import partial

import numpy as np
from msgspec import Struct

from stepscope.analyses.kernels.measured_rates import DevicePeaks
from stepscope.core.trace import Bool, Float64
from stepscope.replay.changes import Change, with_task_ns
from stepscope.rules.case import Case, once_a_case
from stepscope.rules.shared.rates import matrix_ns, stream_ns
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
    """Number of the two matrices that do not lie along the dimension that is summed over."""
    left, right = (inputs.strides[position] if inputs.strides else () for position in positions)
    across = is_shape(left) and len(left) > 1 and left[-1] != 1
    return int(across) + int(is_shape(right) and len(right) > 1 and right[-2] != 1)


MISALIGNED_NAME = re.compile(r"align[12](?!\d)")
"""Names of kernels that load one or two numbers at a time."""
MAX_PADDING = 1.125
"""Times its arithmetic, with the padding: a dimension of a few numbers (a head for one class) is
not padded."""
COMPILER_WORTH = 1.1
"""Times the padded product's time, from which the compiler pads (torch 2.11, `shape_padding`): it
times both as it compiles."""


ODD_OUTSIDE_FACTOR = 1.65
"""Times the padded product's time, of one whose height alone is odd: it stays as it is, over the
rows that were padded for another (the gradient of a BERT's 30522 rows of embedding)."""


@once_a_case
def padded_times(case: Case) -> tuple[Float64, float]:
    """Best time of each task's padded product, NaN where it is no misaligned product; and how much
    longer aligned ones take."""
    graph, roofs, table = case.graph, case.context.roofs, case.table
    assert roofs is not None
    padded = np.full(len(graph), np.nan)
    aligned_now = aligned_best = 0.0
    products = table.is_matrix & table.of_category("gemm") & ~np.isnan(table.flops)
    products &= table.where(
        lambda op: table.op_name(op) in PRODUCTS and table.inputs(op) is not None
    )
    known: dict[tuple[int, str, float, float], _Padding] = {}
    for task in np.flatnonzero(products).tolist():
        precision, flops, size = table.precision[task], table.flops[task], table.bytes[task]
        if precision not in ROW_OF:
            continue
        key = (int(table.alike[task]), precision, float(flops), float(size))
        if key not in known:
            known[key] = _padding(table, roofs, int(table.op[task]), *key[1:])
        padding = known[key]
        if padding.is_aligned:
            aligned_now += float(graph.task_ns[task])
            aligned_best += padding.best_ns
        elif padding.growth <= MAX_PADDING:
            padded[task] = padding.best_ns
    slowdown = max(aligned_now / aligned_best, 1.0) if aligned_best > 0 else 1.0
    return padded, slowdown


def is_misaligned(case: Case) -> Bool:
    """Tasks that are such products."""
    table = case.table
    row_of = np.array([ROW_OF.get(precision, 0) for precision in table.precision], np.int64)
    misaligned = np.zeros(len(table.op), np.bool_)
    for row in set(ROW_OF.values()):
        odd = table.where(partial(_is_odd, table, row=row))
        misaligned |= (row_of == row) & odd & table.of_category("gemm")
    return misaligned


def _is_odd(table: TaskTable, op: int, row: int) -> bool:
    inputs, positions = table.inputs(op), PRODUCTS.get(table.op_name(op))
    return inputs is not None and positions is not None and not is_aligned(inputs, positions, row)


class _Padding(Struct, frozen=True, kw_only=True):
    """A product with every odd dimension padded."""

    is_aligned: bool
    """Whether it has no padding."""
    growth: float
    """How much larger it is."""
    best_ns: float


def _padding(
    table: TaskTable, roofs: DevicePeaks, op: int, precision: str, flops: float, size: float
) -> _Padding:
    inputs, row = table.inputs(op), ROW_OF[precision]
    assert inputs is not None
    growth = math.prod(
        math.ceil(side / row) * row / max(side, 1)
        for side in product_sizes(table, op)
        if side % row
    )
    return _Padding(
        is_aligned=is_aligned(inputs, PRODUCTS[table.op_name(op)], row),
        growth=growth,
        best_ns=matrix_ns(roofs, flops * growth, size * growth, precision),
    )


def padded_by_compiler(case: Case, sides: Collection[int] | None = None) -> Change | None:
    """torch.compile pads these products where that pays, with the copies that it takes; of those
    with one of the `sides` where they are given. None where there are none."""
    graph, roofs, table = case.graph, case.context.roofs, case.table
    if roofs is None or not case.context.trace.meta.has_shapes:
        return None
    best, plain = padded_times(case)
    times = best * plain
    for task in np.flatnonzero(~np.isnan(best)).tolist():
        op, row = int(table.op[task]), ROW_OF[table.precision[task]]
        if sides is not None and not set(sides).intersection(product_sizes(table, op)):
            times[task] = np.inf
        elif _is_odd_outside(table, op, row):
            times[task] *= ODD_OUTSIDE_FACTOR
        else:
            times[task] += _copies_ns(table, roofs, op, row)
    slow = graph.task_ns > np.nan_to_num(times, nan=np.inf) * COMPILER_WORTH
    if not slow.any():
        return None
    return lambda before: with_task_ns(before, slow, np.where(slow, times, np.inf))


def _is_odd_outside(table: TaskTable, op: int, row: int) -> bool:
    """Whether its height alone is odd, as of a weight's gradient."""
    m, n, k = product_sizes(table, op)
    return bool(m % row) and not (n % row or k % row)


def _copies_ns(table: TaskTable, roofs: DevicePeaks, op: int, row: int) -> float:
    """Time to copy each matrix with an odd side into a padded one, and an output whose rows are
    padded back: weights, logits and their gradient come from outside the compiled graph or go
    there."""
    m, n, k = product_sizes(table, op)
    copied = [(m, k)] * bool(m % row or k % row) + [(k, n)] * bool(k % row or n % row)
    copied += [(m, n)] * bool(n % row)
    item_bytes = 16 / row
    return sum(stream_ns(roofs, 2 * rows * columns * item_bytes) for rows, columns in copied)
