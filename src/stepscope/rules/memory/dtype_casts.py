"""Weights are cast to another type again and again, though they change once a step at most.

What it sees: copies between floating-point types over tensors that have the shape of a weight: one
that gathers a gradient, or that a linear layer or a convolution multiplies by or adds. A weight
cast more often than it gathers gradients is cast needlessly, and so is one that gathers none
(frozen): autocast keeps no cast of it, and one is made at each use, in recomputation again. Casts
of activations are left alone: their values are new each time.

Why it costs: every cast reads the weight and writes a copy, its backward casts the gradient back,
and gradients in the wider type are added up in it. A weight used eight times a step costs eight of
each. A cast once a step costs little beside the products, and goes only with weights kept in 16
bits, which changes training: that is the upper end of the range.

Evidence it needs: shapes and types (`record_shapes=True`).

What to do: leave autocast's cache on (`torch.autocast(..., cache_enabled=True)`, one `with` around
the whole forward pass); `frozen.to(torch.bfloat16)` once, before training; cast a weight outside
the loop that uses it.

Example: one wide layer applied 8 times took 18.4 ms a step, 13.3 ms with its weights cast once.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from math import prod

import numpy as np
from msgspec import Struct, field

from stepscope.analyses.grouping import matching
from stepscope.core.diagnosis import Abstention
from stepscope.core.trace import Bool
from stepscope.replay.graph import Graph
from stepscope.rules.case import Case, once_a_case
from stepscope.rules.proposal import Proposal
from stepscope.rules.rule import Rule
from stepscope.rules.shared.casts import cast_of, spared
from stepscope.rules.shared.unrecorded import ask_for_shapes
from stepscope.rules.task_table import TaskTable, per_step_ms
from stepscope.workload.inputs import Shape
from stepscope.workload.operands import is_shape, operand

CODE = "dtype-casts"
BOUND = "memory"


class Policy(Struct, frozen=True, kw_only=True):
    least_share: float = 0.005
    """Share of the step in needless casts of weights below which nothing is reported."""
    unknown_share: float = 0.1
    """Share of the step in copies from which shapes are asked for."""


POLICY = Policy()
HALVES = frozenset({"bf16", "fp16"})
GATHERS = re.compile(r"^torch::autograd::AccumulateGrad$")
INPUT_AND_WEIGHT = {
    "aten::mm": (0, 1),
    "aten::addmm": (1, 2),
    "aten::cudnn_convolution": (0, 1),
    "aten::_conv_depthwise2d": (0, 1),
    "aten::convolution_overrideable": (0, 1),
}


class WeightCasts(Struct, frozen=True, kw_only=True):
    """Tasks that cast weights or their gradients, by what would spare them."""

    again: Bool
    """Casts of a weight that was cast already since it last changed."""
    frozen: Bool
    """Casts of a weight that never changes."""
    once: Bool
    """Casts of a weight that was changed since, or in a pass that recomputes: autocast's cache
    lasts as long as its `with`."""
    sums: Bool
    """Additions of gradients, each the gradient of one cast, in the wider type."""


class _Shapes(Struct):
    weights: set[Shape] = field(default_factory=set)
    inputs: set[Shape] = field(default_factory=set)

    def is_input(self, shape: Shape) -> bool:
        """Linear layers take their input as a matrix, whatever dimensions it has before its
        last. Where the first layers are frozen it may gather a gradient, as a weight does."""
        as_matrix = (prod(shape[:-1]), shape[-1]) if len(shape) > 2 else shape
        return shape in self.inputs or as_matrix in self.inputs


def propose(case: Case) -> Proposal | Abstention | None:
    """Every weight cast once after it changed, and never when it does not."""
    graph = case.graph
    table = case.table
    if not case.context.trace.meta.has_shapes:
        copies, reason = table.of_category("copy"), "copies whose types are not known"
        return ask_for_shapes(case, CODE, copies, POLICY.unknown_share, reason)
    casts = weight_casts(case)
    needless = casts.again | casts.frozen
    spent_ms, once_ms = per_step_ms(graph, needless), per_step_ms(graph, casts.once)
    if spent_ms * 1e6 < POLICY.least_share * case.step_interval_ns:
        return None
    frozen_ms, steps = per_step_ms(graph, casts.frozen), max(graph.num_steps, 1)
    keep = (
        "keep autocast's cache on (cache_enabled=True), or cast the weight once outside the loop "
        "that uses it"
    )
    return Proposal(
        summary=f"{spent_ms:.1f} ms a step cast weights that have not changed; {once_ms:.1f} ms "
        "cast each weight once.",
        action="cast the frozen weights once, before training: frozen.to(torch.bfloat16)"
        if frozen_ms > spent_ms / 2
        else keep,
        evidence=(
            (
                f"{int(needless.sum()) // steps} casts a step of weights, or of their gradients, "
                "that one cast would spare"
            ),
            (
                f"{int(casts.once.sum()) // steps} casts a step that only weights kept in 16 bits "
                "would spare"
            ),
        ),
        events=graph.task_event[needless],
        change=spared(case, table, needless, casts.sums, with_host=True),
        cautious=spared(case, table, needless, np.zeros_like(needless), with_host=False),
        hopeful=spared(case, table, needless | casts.once, casts.sums, with_host=True),
        changes_numerics=bool(casts.sums.any()),
    )


def trained_weights(case: Case) -> Counter[Shape]:
    """How many gradients of each weight's shape were gathered in the replayed time."""
    shapes = _product_shapes(case.table)
    gathered = _gathered(case, case.graph, case.table)
    return Counter({shape: n for shape, n in gathered.items() if not shapes.is_input(shape)})


@once_a_case
def weight_casts(case: Case) -> WeightCasts:
    """Sort the casts of weights by how often each weight gathers a gradient."""
    graph, table = case.graph, case.table
    gathered = trained_weights(case)
    shapes = _product_shapes(table)
    frozen_too = {shape for shape in shapes.weights if not shapes.is_input(shape)}
    down, up, recomputed = _casts(table, set(gathered) | frozen_too)
    again, frozen, once = (np.zeros(len(graph), np.bool_) for _ in range(3))
    repeated: set[Shape] = set()
    for shape, tasks in down.items():
        if not gathered[shape] and not up[shape] and gathered:
            frozen[tasks + recomputed[shape]] = True
            continue
        once[recomputed[shape]] = True
        times = max(round(len(tasks) / gathered[shape]), 1) if gathered[shape] else 1
        if times > 1:
            repeated.add(shape)
        for group in (tasks, up[shape]):
            kept = np.arange(len(group)) % times == 0
            once[group], again[group] = kept, ~kept
    return WeightCasts(again=again, frozen=frozen, once=once, sums=_sums(table, repeated))


def _gathered(case: Case, graph: Graph, table: TaskTable) -> Counter[Shape]:
    """How many gradients were gathered in the replayed time, by shape: one per weight and backward
    pass."""
    trace = case.replayed
    counts: Counter[Shape] = Counter()
    inside = (trace.start_ns >= graph.call_start_ns[0]) & (trace.start_ns < graph.call_end_ns[-1])
    events = np.flatnonzero(matching(trace, GATHERS) & inside)
    _, first, num = np.unique(trace.detail[events], return_index=True, return_counts=True)
    for event, count in zip(events[first].tolist(), num.tolist(), strict=True):
        inputs = table.inputs(event)
        grad = None if inputs is None else operand(inputs, 0)
        if grad is not None and grad.dims:
            counts[grad.dims] += count
    return counts


def _product_shapes(table: TaskTable) -> _Shapes:
    """Shapes that forward products take as weights, as the layer keeps them, and as inputs."""
    shapes = _Shapes()
    for op in table.examples(table.is_matrix & ~table.backward):
        positions, inputs = INPUT_AND_WEIGHT.get(table.op_name(op)), table.inputs(op)
        if positions is None or inputs is None:
            continue
        entered, weight = (operand(inputs, position) for position in positions)
        bias = operand(inputs, 0) if positions[0] else None
        if entered is not None:
            shapes.inputs.add(entered.dims)
        if bias is not None and len(bias.dims) == 1:
            shapes.weights.add(bias.dims)
        if weight is None:
            continue
        strides = inputs.strides[positions[1]] if inputs.strides else ()
        turned = is_shape(strides) and len(strides) == 2 and strides[0] == 1
        if turned or len(weight.dims) > 2:
            shapes.weights.add(weight.dims[::-1] if turned else weight.dims)
    return shapes


def _casts(
    table: TaskTable, weights: set[Shape]
) -> tuple[dict[Shape, list[int]], dict[Shape, list[int]], dict[Shape, list[int]]]:
    """Tasks that narrow a tensor of a weight's shape going forward, that widen one going back, and
    that narrow one going forward again, in order."""
    down: dict[Shape, list[int]] = defaultdict(list)
    up: dict[Shape, list[int]] = defaultdict(list)
    recomputed: dict[Shape, list[int]] = defaultdict(list)
    casts = [table.once(cast_of, op) for op in table.example.tolist()]
    is_cast = np.array([cast is not None and cast[0] in weights for cast in casts], np.bool_)
    for task in np.flatnonzero(is_cast[table.alike]).tolist():
        cast = casts[table.alike[task]]
        assert cast is not None
        shape, to, source = cast
        if table.recomputed[task]:
            if to in HALVES:
                recomputed[shape].append(task)
        elif to in HALVES and not table.backward[task] and not table.optimizer[task]:
            down[shape].append(task)
        elif source in HALVES and table.backward[task]:
            up[shape].append(task)
    return down, up, recomputed


def _sums(table: TaskTable, repeated: set[Shape]) -> Bool:
    """Additions in backward of two fp32 gradients of a weight that is cast repeatedly."""

    def is_sum(op: int) -> bool:
        inputs = table.inputs(op) if table.op_name(op) in ("aten::add", "aten::add_") else None
        tensors = [] if inputs is None else [operand(inputs, 0), operand(inputs, 1)]
        return bool(tensors) and all(
            tensor is not None and tensor.dims in repeated and tensor.dtype == "fp32"
            for tensor in tensors
        )

    sums: Bool = table.backward & table.where(is_sum)
    return sums


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, propose=propose)
