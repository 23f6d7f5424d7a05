"""fp32 products on the vector units, and how long they take at another precision."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
from msgspec import Struct

from stepscope.analyses.grouping import distinct, is_among
from stepscope.analyses.kernels.measured_rates import DevicePeaks
from stepscope.core.diagnosis import Abstention
from stepscope.core.trace import NONE, Bool, Float64
from stepscope.replay.changes import Change
from stepscope.replay.graph import Graph
from stepscope.rules.case import Case
from stepscope.rules.shared.convolutions import is_nchw, is_thin
from stepscope.rules.shared.half_images import image_times_in_half
from stepscope.rules.shared.rates import attention_ns, convolution_ns, matrix_ns, stream_ns
from stepscope.rules.shared.unknown_shapes import ask_for_shapes
from stepscope.rules.task_table import TaskTable, per_step_ms
from stepscope.workload.operands import operand, operands


class Policy(Struct, frozen=True, kw_only=True):
    least_share: float = 0.005
    """Of the step in such kernels below which there is nothing to say."""
    unknown_share: float = 0.05
    """Of the step in kernels that look so by name, from which it is worth asking for shapes."""
    cast_bytes: int = 12
    """Moved per weight under autocast: 4 read and 2 written going forward, 2 read and 4 written for
    its gradient."""
    casts: float = 3.6
    """Launches that autocast adds per product of the forward pass: its weight, its gradient, its
    input and that one's gradient, unless it is cast already (3.7 over the products of a
    speech model, 497 launches)."""


POLICY = Policy()
WEIGHTS = {
    "aten::mm": 1,
    "aten::addmm": 2,
    "aten::linear": 1,
    "aten::cudnn_convolution": 1,
    "aten::_convolution": 1,
}
"""Where these operators have their weight."""


class VectorProducts(Struct, frozen=True, kw_only=True):
    """The products that use no tensor cores."""

    slow: Bool
    """Their tasks, helpers among them."""
    sized: Bool
    """Those of them whose work is known."""
    evidence: str
    summary: str


def find_products(case: Case) -> VectorProducts | None:
    """None where there are none of known size, or too few to matter."""
    graph, table = case.graph, case.table
    assert graph is not None
    assert case.step_interval_ns is not None
    slow = _vector_matrix_tasks(table)
    sized = slow & table.is_matrix & ~np.isnan(table.flops)
    spent_ms = per_step_ms(graph, slow)
    if not sized.any() or spent_ms * 1e6 < POLICY.least_share * case.step_interval_ns:
        return None
    rate = float(table.flops[sized].sum() / graph.task_ns[sized].sum() / 1e3)
    return VectorProducts(
        slow=slow,
        sized=sized,
        summary=f"{spent_ms:.1f} ms of fp32 matrix products a step run without tensor cores.",
        evidence=f"{int(sized.sum()) // max(graph.num_steps, 1)} products a step reach "
        f"{rate:.0f} TFLOP/s",
    )


def _vector_matrix_tasks(table: TaskTable) -> Bool:
    """fp32 matrix kernels that surely use no tensor cores, and the helpers launched with them."""
    fp32 = np.array([precision == "fp32" for precision in table.precision], np.bool_)
    matrix = table.of_category("gemm", "convolution", "attention") & fp32
    sure = (
        matrix
        & table.is_matrix
        & ((table.tensor_core == 0) | table.of_category("attention") | (table.tensor_core == NONE))
    )
    thick = sure & (table.op != NONE) & ~table.where(partial(is_thin, table))
    chosen: Bool = matrix & is_among(table.op, table.op[thick])
    return chosen


def ask_for_products(case: Case, code: str) -> Abstention | None:
    if case.context.trace.meta.has_shapes and case.context.roofs is not None:
        return None
    table = case.table
    by_name = table.of_category("gemm", "convolution") & (table.tensor_core == 0)
    reason = "kernels without tensor cores, whose type and size are not known"
    return ask_for_shapes(case, code, by_name, POLICY.unknown_share, reason)


def at_precision(
    case: Case, roofs: DevicePeaks, products: VectorProducts, precision: str
) -> Change:
    """Products at that precision's rate; in 16 bits with half the traffic and the casts."""
    graph, table, slow, sized = case.graph, case.table, products.slow, products.sized
    assert graph is not None
    is_half = precision != "tf32"
    times = _times(table, roofs, slow, sized, precision)
    casts = np.zeros(len(slow))
    image_ns = np.full(len(slow), np.nan)
    if is_half:
        image_ns = image_times_in_half(graph, table, roofs)
        forward = sized & ~table.backward
        cast_ns = np.zeros(len(table.example))
        for number in distinct(table.alike[forward]).tolist():
            elements = float(_weight_elements(table, int(table.example[number])))
            if elements:
                cast_ns[number] = stream_ns(roofs, POLICY.cast_bytes * elements)
        casts = np.where(forward, cast_ns[table.alike], 0.0)

    def change(before: Graph) -> Graph:
        faster = np.where(slow, np.minimum(before.task_ns, times) + casts, before.task_ns)
        # What another fix has changed, as by fusing it, is not what it was.
        others = ~np.isnan(image_ns) & (before.task_ns == graph.task_ns)
        return replace(
            before,
            task_ns=np.where(others, image_ns, faster),
            call_parts=_with_launches(before, sized & ~table.backward if is_half else None),
        )

    return change


def _with_launches(graph: Graph, products: Bool | None) -> dict[str, Float64]:
    """The host's time with the launches of casts added, each as long as this host takes for a
    launch, on average."""
    work = graph.call_parts["work"]
    if products is None or not len(work):
        return graph.call_parts
    calls = np.searchsorted(graph.call_first, np.flatnonzero(products), side="right") - 1
    extra = np.zeros(len(work))
    np.add.at(extra, calls, POLICY.casts * float(np.mean(work)))
    return graph.call_parts | {"work": work + extra}


def _times(
    table: TaskTable, roofs: DevicePeaks, slow: Bool, sized: Bool, precision: str
) -> Float64:
    """Per task, its time at that precision; a helper of a product whose time is known takes
    none."""
    helped = is_among(table.op, table.op[sized])
    times = np.where(slow & helped & ~sized, 0.0, np.inf)
    traffic = 1.0 if precision == "tf32" else 0.5
    known: dict[tuple[int, int, float, float], float] = {}
    for task in np.flatnonzero(sized).tolist():
        flops, size = float(table.flops[task]), float(table.bytes[task]) * traffic
        key = (int(table.alike[task]), int(table.category[task]), flops, size)
        if key not in known:
            known[key] = _time(table, roofs, task, flops, size, precision)
        times[task] = known[key]
    return np.where(np.isnan(times), np.inf, times)


def _time(
    table: TaskTable, roofs: DevicePeaks, task: int, flops: float, size: float, precision: str
) -> float:
    op, category = int(table.op[task]), table.categories[table.category[task]]
    if category == "attention":
        return _attention(table, roofs, op, flops, precision)
    if category == "convolution":
        backward, turned = "backward" in table.op_name(op), is_nchw(table, op)
        return convolution_ns(roofs, flops, size, precision, backward=backward, turned=turned)
    aligned = _is_aligned(table, op, precision)
    return matrix_ns(roofs, flops, size, precision, aligned=aligned)


def _attention(
    table: TaskTable, roofs: DevicePeaks, op: int, flops: float, precision: str
) -> float:
    """Fused attention as it is, from its FLOPs: they are 4 (backward 10) x batch x queries x keys x
    head size."""
    inputs = table.inputs(op)
    backward = "backward" in table.op_name(op)
    if precision == "tf32" or inputs is None:
        return np.inf
    query = operand(inputs, 1 if backward else 0)
    if query is None or not query.dims:
        return np.inf
    dim = max(query.dims[-1], 1)
    scores = flops / (10 if backward else 4) / dim
    side = max(int(scores**0.5), 1)
    once = attention_ns(
        roofs, batch=1, queries=side, keys=side, dim=dim, precision=precision, causal=False
    )
    return once * 3.0 if backward else once


def _is_aligned(table: TaskTable, op: int, precision: str) -> bool:
    """Whether the rows of both matrices are multiples of 16 bytes."""
    inputs = table.inputs(op)
    step = 4 if precision == "tf32" else 8
    if inputs is None or "conv" in table.op_name(op):
        return True
    matrices = [
        tensor for tensor in operands(inputs, range(len(inputs.dims))) if len(tensor.dims) >= 2
    ]
    return all(tensor.dims[-1] % step == 0 for tensor in matrices)


def _weight_elements(table: TaskTable, op: int) -> int:
    inputs, position = table.inputs(op), WEIGHTS.get(table.op_name(op))
    weight = None if inputs is None or position is None else operand(inputs, position)
    return 0 if weight is None else weight.numel
