"""Convolutions of fixed shapes run an algorithm that cuDNN guessed, far below the device's rate.

What it sees: convolutions on tensor cores, with the same shapes in every step, that were called
with `benchmark` off and take longer than well-made ones of their FLOPs and bytes.

Why it costs: without benchmarking cuDNN picks an algorithm by rule of thumb. The guess is good on
recent devices: over twelve convolutions in five types and layouts on an H200 the forward pass
gained nothing, all of them together 5 %, single gradients (depthwise, 1 x 1 over large images) two
or three times. Hence a range that begins at nothing.

On ROCm the same flag makes MIOpen try every solver and keep their times; without it MIOpen takes
what it kept, or searches among fewer. What a search gains there was not measured: the rule says
that it was not tried, and promises nothing.

Evidence it needs: shapes and arguments (`record_shapes=True`).

What to do: `torch.backends.cudnn.benchmark = True` where shapes hold still: the first step of each
shape tries every algorithm. Leave it off where shapes change, each new one costs that again.
Another algorithm rounds differently. On ROCm a full search without that line is
`MIOPEN_FIND_MODE=NORMAL`; `MIOPEN_FIND_ENFORCE=SEARCH` tunes the solvers too, once, for minutes or
hours.

Example: twelve convolutions in TF32 and channels_last, forward and backward: 7.6 ms, 6.8 ms with
benchmark on; in NCHW nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from stepscope.analyses.grouping import distinct
from stepscope.analyses.kernels.measured_rates import DevicePeaks
from stepscope.core.diagnosis import Abstention
from stepscope.core.trace import NONE, Bool, Float64
from stepscope.replay.changes import Change, with_task_ns
from stepscope.replay.graph import Graph
from stepscope.rules.case import Case
from stepscope.rules.proposal import Proposal, Remark
from stepscope.rules.rule import Rule
from stepscope.rules.shared.measured import BENCHMARK, first_tasks, ratio_of, timed, with_also
from stepscope.rules.shared.rates import matrix_ns
from stepscope.rules.task_table import TaskTable, per_step_ms
from stepscope.workload.inputs import flag_at

CODE = "untuned-convolution"
BOUND = "compute"


class Policy(Struct, frozen=True, kw_only=True):
    least_share: float = 0.02
    """Share of the step in such convolutions below which nothing is reported."""
    unknown_share: float = 0.2
    """Share of the step in convolutions from which shapes are asked for."""
    tuned: float = 0.95
    """Fraction of the convolutions' time that is left with the algorithm chosen by trial: what
    twelve shapes took on an H200."""
    best: float = 0.4
    """Fraction of one convolution's time that is left at best: the largest gain measured, 0.34 to
    0.48."""


POLICY = Policy()
FLAG_AT = {
    "aten::cudnn_convolution": 6,
    "aten::cudnn_convolution_transpose": 7,
    "aten::_convolution": 9,
}
"""Where these operators have `benchmark`."""
MIOPEN_FLAG_AT = {
    "aten::miopen_convolution": 7,
    "aten::miopen_depthwise_convolution": 7,
    "aten::miopen_convolution_transpose": 8,
}
"""The same on ROCm."""
MIOPEN_ACTION = (
    "Try torch.backends.cudnn.benchmark = True: the first step of each shape searches, and "
    "MIOpen's find-db keeps what it found."
)
PRECISIONS = ("bf16", "fp16", "tf32")


def propose(case: Case) -> Proposal | Abstention | Remark | None:
    """Slow convolutions a little faster; at best at the rate well-made ones reach."""
    graph, roofs = case.graph, case.context.roofs
    table = case.table
    convolutions = table.of_category("convolution")
    if roofs is None or not case.context.trace.meta.has_shapes:
        much = (
            per_step_ms(graph, convolutions) * 1e6 >= POLICY.unknown_share * case.step_interval_ns
        )
        if not much:
            return None
        if roofs is None:
            return Abstention(
                code=CODE,
                reason="the peaks of this device are not known",
                needs="--hardware FILE, as `stepscope calibrate` writes it",
            )
        return Abstention(
            code=CODE, reason="convolutions of unknown size", needs="record_shapes=True"
        )
    reach = _reach_ns(table, roofs, convolutions)
    slow = graph.task_ns > reach
    spent_ms = per_step_ms(graph, slow)
    if spent_ms * 1e6 < POLICY.least_share * case.step_interval_ns or not _holds_still(
        graph, table, convolutions
    ):
        return None
    if _flags(table, MIOPEN_FLAG_AT) == {False}:
        return Remark(
            code=CODE,
            text=f"{spent_ms:.1f} ms of convolutions a step without MIOpen's search. "
            f"{MIOPEN_ACTION}",
        )
    if _flags(table, FLAG_AT) != {False}:
        return None
    leads = first_tasks(table, slow)
    tried = timed(graph, table, roofs, leads, lambda _, now: with_also(now, BENCHMARK))
    ratio = np.minimum(ratio_of(graph, table, tried), 1.0)
    is_tried = slow & ~np.isnan(ratio)
    unknown = graph.task_ns * np.where(is_tried, ratio, POLICY.tuned)
    least = graph.task_ns * np.where(is_tried, ratio, 1.0)
    best = np.where(is_tried, least, np.maximum(reach, POLICY.best * graph.task_ns))
    steps = max(graph.num_steps, 1)
    reach_ms = float(reach[slow].sum()) / max(graph.num_steps, 1) / 1e6
    return Proposal(
        summary=f"{spent_ms:.1f} ms of convolutions a step with algorithms that cuDNN guessed.",
        action="try torch.backends.cudnn.benchmark = True: one line, and it may give nothing",
        evidence=(
            (
                f"{int(slow.sum()) // steps} convolutions a step, of the same shapes in each, with "
                "benchmark off"
            ),
            f"well-made ones of their size take {reach_ms:.1f} ms",
        ),
        change=_at(slow, unknown),
        cautious=_at(slow, least),
        hopeful=_at(slow, best),
        changes_numerics=True,
    )


def _reach_ns(table: TaskTable, roofs: DevicePeaks, convolutions: Bool) -> Float64:
    """Time that a well-made convolution takes, by task; infinite where it is not known."""
    reach = np.full(len(table.op), np.inf)
    for task in np.flatnonzero(convolutions & table.is_matrix & ~np.isnan(table.flops)).tolist():
        if table.precision[task] in PRECISIONS:
            time_ns = matrix_ns(
                roofs, float(table.flops[task]), float(table.bytes[task]), table.precision[task]
            )
            reach[task] = np.inf if np.isnan(time_ns) else time_ns
    return reach


def _flags(table: TaskTable, positions: Mapping[str, int]) -> set[bool | None]:
    """What `benchmark` was, over all of these operators; None among it where that was not
    recorded."""
    flags: set[bool | None] = set()
    for op in distinct(table.op).tolist():
        position = None if op == NONE else positions.get(table.op_name(op))
        inputs = table.inputs(op) if position is not None else None
        if position is not None and inputs is not None:
            flags.add(flag_at(inputs, position))
    return flags


def _holds_still(graph: Graph, table: TaskTable, convolutions: Bool) -> bool:
    """Whether every step has the same convolutions."""
    kinds: list[set[tuple[int, int]]] = []
    for step in distinct(graph.task_step).tolist():
        ops = distinct(table.op[convolutions & (graph.task_step == step)])
        kinds.append({table.key(op) for op in ops.tolist() if op != NONE})
    return all(kind == kinds[0] for kind in kinds)


def _at(slow: Bool, times: Float64) -> Change:
    return lambda graph: with_task_ns(graph, slow, times)


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, propose=propose)
