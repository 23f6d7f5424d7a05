"""Matrix products run in fp32 on the vector units, with the tensor cores idle.

What it sees: GEMM, convolution and attention kernels whose inputs are fp32 and that use no tensor
cores (sgemm, simt, ffma).

Why it costs: on an H200 the vector units do 67 TFLOP/s, the tensor cores 495 in TF32 and 989 in
bf16. Products that keep the device busy become that much shorter; those that wait for the host do
not, and autocast adds a cast of every weight, each a kernel and a launch.

Evidence it needs: shapes (`record_shapes=True`), to tell each product's FLOPs and its type.

What to do: `torch.set_float32_matmul_precision("high")` (and `torch.backends.cudnn.allow_tf32 =
True`) is one line and keeps the range of fp32; `torch.autocast("cuda", torch.bfloat16)` around the
forward pass gives more. Both change the numbers: check the loss.

Example: a 12-layer GPT in fp32 took 218 ms a step, 32 ms under bf16 autocast.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
from msgspec import Struct

from stepscope.analyses.kernels.measured_rates import DevicePeaks
from stepscope.core.diagnosis import Abstention
from stepscope.core.trace import NONE, Bool, Float64
from stepscope.replay.changes import Change
from stepscope.replay.graph import Graph
from stepscope.rules.case import Case
from stepscope.rules.proposal import Proposal
from stepscope.rules.shared.convolutions import is_nchw, is_thin
from stepscope.rules.shared.rates import (
    attention_ns,
    convolution_ns,
    half_precision,
    matrix_ns,
    stream_ns,
)
from stepscope.rules.shared.unknown_shapes import ask_for_shapes
from stepscope.rules.task_table import TaskTable, per_step_ms
from stepscope.workload.operands import operand, operands

CODE = "fp32-matmul"
BOUND = "compute"


class Policy(Struct, frozen=True, kw_only=True):
    least_share: float = 0.005
    """Of the step in such kernels below which there is nothing to say."""
    unknown_share: float = 0.05
    """Of the step in kernels that look so by name, from which it is worth asking for shapes."""
    cast_bytes: int = 12
    """Moved per weight under autocast: 4 read and 2 written going forward, 2 read and 4 written for
    its gradient."""
    casts: int = 3
    """Launches that autocast adds per product of the forward pass: its weight, its gradient, its
    input."""


POLICY = Policy()
WEIGHTS = {
    "aten::mm": 1,
    "aten::addmm": 2,
    "aten::linear": 1,
    "aten::cudnn_convolution": 1,
    "aten::_convolution": 1,
}
"""Where these operators have their weight."""


def propose(case: Case) -> Proposal | Abstention | None:
    """The same products at TF32's or bf16's rate."""
    graph, roofs = case.graph, case.context.roofs
    if graph is None or case.step_interval_ns is None:
        return None
    table = case.table
    slow = _vector_matrix_tasks(table)
    sized = slow & table.is_matrix & ~np.isnan(table.flops)
    half = None if roofs is None else half_precision(roofs)
    if roofs is None or half is None or not sized.any():
        return _ask(case, table)
    spent_ms = per_step_ms(graph, slow)
    if spent_ms * 1e6 < POLICY.least_share * case.step_interval_ns:
        return None
    in_half = _at_precision(table, roofs, slow, sized, half)
    choices = [(f"torch.autocast with {half}", in_half)]
    if (
        roofs.spec.vendor == "nvidia" and "tf32" in roofs.spec.peak_flops
    ):  # elsewhere PyTorch's "high" may change nothing
        choices.append(
            (_tf32_knobs(table, sized), _at_precision(table, roofs, slow, sized, "tf32"))
        )
    best = max(choices, key=lambda choice: case.speedup(choice[1](graph)))
    rate = float(table.flops[sized].sum() / graph.task_ns[sized].sum() / 1e3)
    return Proposal(
        code=CODE,
        bound=BOUND,
        summary=f"{spent_ms:.1f} ms of fp32 matrix products a step run without tensor cores.",
        action=best[0]
        + (f"; or first {choices[1][0]}" if best is choices[0] and len(choices) > 1 else ""),
        evidence=(
            (
                f"{int(sized.sum()) // max(graph.num_steps, 1)} products a step reach {rate:.0f} "
                "TFLOP/s"
            ),
            f"the device's {half} peak is {roofs.spec.peak_flops[half].value / 1e12:.0f} TFLOP/s",
        ),
        events=graph.task_event[slow],
        change=best[1],
        cautious=choices[-1][1],
        hopeful=in_half,
        changes_numerics=True,
    )


def _tf32_knobs(table: TaskTable, sized: Bool) -> str:
    """Products and convolutions have a switch each."""
    convolution = table.of_category("convolution")[sized]
    knobs = [] if convolution.all() else ['torch.set_float32_matmul_precision("high")']
    if convolution.any():
        knobs.append("torch.backends.cudnn.allow_tf32 = True")
    return " and ".join(knobs)


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
    chosen: Bool = matrix & np.isin(table.op, table.op[thick])
    return chosen


def _ask(case: Case, table: TaskTable) -> Abstention | None:
    if case.context.trace.meta.has_shapes and case.context.roofs is not None:
        return None
    by_name = table.of_category("gemm", "convolution") & (table.tensor_core == 0)
    reason = "kernels without tensor cores, whose type and size are not known"
    return ask_for_shapes(case, CODE, by_name, POLICY.unknown_share, reason)


def _at_precision(
    table: TaskTable, roofs: DevicePeaks, slow: Bool, sized: Bool, precision: str
) -> Change:
    """Products at that precision's rate; in 16 bits with half the traffic and the casts."""
    is_half = precision != "tf32"
    times = _times(table, roofs, slow, sized, precision)
    casts = np.zeros(len(slow))
    if is_half:
        forward = sized & ~table.backward
        cast_ns = np.zeros(len(table.example))
        for number in np.unique(table.alike[forward]).tolist():
            elements = float(_weight_elements(table, int(table.example[number])))
            if elements:
                cast_ns[number] = stream_ns(roofs, POLICY.cast_bytes * elements)
        casts = np.where(forward, cast_ns[table.alike], 0.0)

    def change(graph: Graph) -> Graph:
        faster = np.where(slow, np.minimum(graph.task_ns, times) + casts, graph.task_ns)
        return replace(
            graph,
            task_ns=faster,
            call_parts=_with_launches(graph, sized & ~table.backward if is_half else None),
        )

    return change


def _with_launches(graph: Graph, products: Bool | None) -> dict[str, Float64]:
    """The host's time with the launches of casts added, each as long as this host takes for a
    launch, in the middle."""
    work = graph.call_parts["work"]
    if products is None or not len(work):
        return graph.call_parts
    calls = np.searchsorted(graph.call_first, np.flatnonzero(products), side="right") - 1
    extra = np.zeros(len(work))
    np.add.at(extra, calls, POLICY.casts * float(np.median(work)))
    return graph.call_parts | {"work": work + extra}


def _times(
    table: TaskTable, roofs: DevicePeaks, slow: Bool, sized: Bool, precision: str
) -> Float64:
    """Per task, its time at that precision; a helper of a product whose time is known takes
    none."""
    helped = np.isin(table.op, np.unique(table.op[sized]))
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
