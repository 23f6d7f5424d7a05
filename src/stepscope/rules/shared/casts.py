"""Kernels that only copy a tensor from one floating-point type to another.

The step with its weights in 16 bits in place of autocast, and fp32 copies of them that the
optimizer keeps.

Autocast's casts go, and what lies between products, residuals and norms among it, is half as wide.
What comes with it: the gradients are cast to fp32 and the weights back, once a step. A norm that is
spelled out in Python (a mean of squares, `rsqrt`) is taken in fp32 by its own word: it has an fp32
input under autocast, and casts it and its output once that is narrow.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from math import prod

import numpy as np
from msgspec import Struct

from stepscope.analyses.grouping import distinct, is_among, matching
from stepscope.analyses.host.nesting import ancestor_with
from stepscope.analyses.kernels.measured_rates import DevicePeaks
from stepscope.core.trace import NONE, Bool, Float64, Int64
from stepscope.replay.changes import Change, without_tasks
from stepscope.replay.graph import Graph
from stepscope.rules.case import Case, once_a_case
from stepscope.rules.shared.autocast import CAST_OPERATORS, cast_ns
from stepscope.rules.shared.host_ranges import (
    INNER_LAUNCH,
    ranges_of,
    with_operators,
    without_ranges,
)
from stepscope.rules.shared.micro_batches import numbered_micro_batches
from stepscope.rules.shared.rates import STREAM_FIXED_NS, fixed_ns, stream_ns
from stepscope.rules.task_table import TaskTable
from stepscope.workload.inputs import ITEM_BYTES, Shape
from stepscope.workload.operands import Operand, operand, operands

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
    """Drop these casts; the sums then run over half the bytes."""
    trace, links = case.replayed, case.context.links
    ops: Int64 = distinct(table.op[gone])
    outer = ancestor_with(links.parent, ops[ops != NONE], matching(trace, CASTING), outermost=True)
    ranges = ranges_of(case, outer[outer != NONE])

    def change(graph: Graph) -> Graph:
        after = without_tasks(graph, gone)
        after = replace(after, task_ns=np.where(sums, after.task_ns * 0.5, after.task_ns))
        return without_ranges(case, after, ranges) if with_host else after

    return change


MIN_VOCABULARY = 16_000
"""A last dimension from which a tensor is taken for logits, whose loss is taken in fp32."""
STREAMING = ("pointwise", "pooling", "dropout", "copy", "norm")
OF_SQUARES = re.compile(r"^aten::(pow|mean|rsqrt)$")
HALF_BYTES = 2


class _Added(Struct, frozen=True, kw_only=True):
    """What comes with it; one entry per task."""

    task_ns: Float64
    operators: Float64


def spared_casts(case: Case) -> Bool:
    """Casts of autocast, but for the logits' before the loss."""
    table = case.table

    def is_of_logits(op: int) -> bool:
        cast = table.once(cast_of, op)
        return cast is not None and bool(cast[0]) and cast[0][-1] >= MIN_VOCABULARY

    return made_by_autocast(case) & ~table.where(is_of_logits)


def in_half(
    case: Case, roofs: DevicePeaks, trained: Counter[Shape], *, casts_alone: bool = False
) -> Change:
    """`trained` counts the gathered gradients by shape. With `casts_alone` no tensor that is
    computed with becomes narrower."""
    graph, table = case.graph, case.table
    casts = spared_casts(case)
    gone = spared(case, table, casts, np.zeros_like(casts), with_host=True)
    scalings = _scalings(table)
    times = np.full(len(graph), np.nan)
    if not casts_alone:
        times = _narrower_ns(graph, table, roofs, casts, scalings)
    copies, norms = _copies(graph, table, roofs, trained), _norm_casts(table, roofs, scalings)

    def change(before: Graph) -> Graph:
        after = gone(before)
        # What another fix has changed, as by fusing it, is not what it was.
        narrower = ~np.isnan(times) & (after.task_ns == graph.task_ns)
        task_ns = np.where(narrower, times, after.task_ns) + copies.task_ns + norms.task_ns
        operators = copies.operators + norms.operators
        return with_operators(replace(after, task_ns=task_ns), table, operators)

    return change


def _narrower_ns(
    graph: Graph, table: TaskTable, roofs: DevicePeaks, casts: Bool, scalings: Bool
) -> Float64:
    """Time over 16 bits of each task that moves fp32 numbers, NaN where it stays as it is."""
    of_norms = scalings | table.where(lambda op: bool(OF_SQUARES.search(table.op_name(op))))
    of_norms = of_norms | is_among(table.home, table.op[of_norms & (table.op != NONE)])
    saved = np.array([_saved_bytes(table, op) for op in table.example.tolist()])
    saved_ns = np.array([stream_ns(roofs, size) for size in saved.tolist()]) - stream_ns(roofs, 0)
    # A kernel that its bytes do not hold up, as one that turns a tensor, hardly feels them.
    least = np.minimum(graph.task_ns, fixed_ns(roofs, STREAM_FIXED_NS))
    narrow = np.maximum(graph.task_ns - saved_ns[table.alike], graph.task_ns / 2)
    streams = table.of_category(*STREAMING) & ~casts & ~of_norms & ~table.optimizer
    streams &= saved[table.alike] > 0
    times: Float64 = np.where(streams, np.maximum(narrow, least), np.nan)
    return times


def _saved_bytes(table: TaskTable, op: int) -> float:
    """Bytes that an operator no longer moves once all its numbers are 16 bits wide."""
    tensors = _floats(table, op)
    largest = max((tensor.numel for tensor in tensors), default=0)
    sizes = [ITEM_BYTES[tensor.dtype] for tensor in tensors if tensor.numel == largest]
    is_logits = any(tensor.dims and tensor.dims[-1] >= MIN_VOCABULARY for tensor in tensors)
    if table.once(cast_of, op) is not None or not sizes or is_logits:
        return 0.0
    # What is written is as wide as the widest that is read.
    written = [] if table.op_name(op) == "aten::copy_" else [max(sizes)]
    return float(largest) * sum(size - HALF_BYTES for size in (*sizes, *written))


def _floats(table: TaskTable, op: int) -> list[Operand]:
    inputs = table.inputs(op)
    tensors = [] if inputs is None else operands(inputs, range(len(inputs.dims)))
    return [tensor for tensor in tensors if tensor.dtype in FLOATS and tensor.numel > 1]


def _scalings(table: TaskTable) -> Bool:
    """Forward products of an fp32 tensor with one number for each of its rows."""

    def scales(op: int) -> bool:
        tensors = _floats(table, op) if table.op_name(op) == "aten::mul" else []
        rows, whole = sorted(tensors, key=lambda t: t.numel) if len(tensors) == 2 else (None, None)
        if rows is None or whole is None or whole.dtype != "fp32" or not whole.dims[-1] > 1:
            return False
        return rows.dims == (*whole.dims[:-1], 1)

    forward = ~table.backward | table.recomputed
    found: Bool = forward & ~table.optimizer & table.where(scales)
    return found


def _norm_casts(table: TaskTable, roofs: DevicePeaks, scalings: Bool) -> _Added:
    """Casts to fp32 and back around norms that are spelled out: no more than roots are taken, but
    for those that are cast already."""
    task_ns, operators = np.zeros(len(scalings)), np.zeros(len(scalings))
    forward = ~table.backward | table.recomputed
    roots = forward & table.where(lambda op: table.op_name(op) == "aten::rsqrt")
    share = min(float(roots.sum()) / max(float(scalings.sum()), 1.0), 1.0)
    numel = np.array([_largest(table, op) for op in table.example.tolist()])[table.alike]
    own = forward & table.where(lambda op: _widens(table, op)) & ~table.optimizer
    again = set(table.alike[scalings & table.recomputed].tolist())
    for size in np.unique(numel[scalings]).tolist():
        tasks = np.flatnonzero(scalings & (numel == size))
        added = share * max(1.0 - float((own & (numel == size)).sum()) / len(tasks), 0.0)
        for task in tasks.tolist():
            has_gradient = table.recomputed[task] or int(table.alike[task]) not in again
            pairs = added * (1 + has_gradient)
            task_ns[task] = pairs * cast_ns(roofs, size, back=True)
            operators[task] = 2 * pairs * CAST_OPERATORS
    return _Added(task_ns=task_ns, operators=operators)


def _widens(table: TaskTable, op: int) -> bool:
    cast = table.once(cast_of, op)
    return cast is not None and cast[1] == "fp32"


def _largest(table: TaskTable, op: int) -> int:
    return max((tensor.numel for tensor in _floats(table, op)), default=0)


def _copies(graph: Graph, table: TaskTable, roofs: DevicePeaks, trained: Counter[Shape]) -> _Added:
    """Gradients cast to fp32 and weights from it, all at once at the end of each step; the host
    makes room for each gradient."""
    task_ns, operators = np.zeros(len(graph)), np.zeros(len(graph))
    steps = np.unique(graph.task_step)
    for step in steps.tolist():
        tasks = np.flatnonzero(graph.task_step == step)
        of_model = tasks[~table.optimizer[tasks]]
        passes = int(numbered_micro_batches(table.backward[of_model]).max(initial=0)) + 1
        passes *= len(steps)
        numbers = sum(prod(shape) * count for shape, count in trained.items()) / passes
        task_ns[tasks[-1]] = cast_ns(roofs, int(numbers), back=True)
        operators[tasks[-1]] = INNER_LAUNCH * trained.total() / passes
    return _Added(task_ns=task_ns, operators=operators)
