"""Convolutions of fixed shapes run the algorithm that cuDNN guessed, far under what the device gives.

What it sees: convolutions on tensor cores, with the same shapes in every step, that were called with `benchmark` off and take
longer than well-made ones of their FLOPs and bytes.

Why it costs: without benchmarking cuDNN picks an algorithm by rule of thumb. The guess is good on recent devices: over twelve
convolutions in five types and layouts on an H200 the forward pass gained nothing, all of them together 5 %, single gradients
(depthwise, 1 x 1 over large images) two or three times. Hence a range that begins at nothing.

On ROCm the same flag makes MIOpen search, and keep what it finds in its find-db; without it MIOpen takes what the find-db it came
with holds, or guesses. What a search gains there was not measured: the rule says that it was not tried, and promises nothing.

Evidence it needs: shapes and arguments (`record_shapes=True`).

What to do: `torch.backends.cudnn.benchmark = True` where shapes hold still: the first step of each shape tries every algorithm.
Leave it off where shapes change, each new one costs that again. Another algorithm rounds differently.

Example: twelve convolutions in TF32 and channels_last, forward and backward: 7.6 ms, 6.8 ms with benchmark on; in NCHW nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from stepscope.analyses.roofs import Roofs
from stepscope.core.trace import NONE, Bool, Float64
from stepscope.replay.changes import Change, with_task_ns
from stepscope.replay.graph import Graph
from stepscope.rules.case import Case
from stepscope.rules.proposal import Abstention, Proposal, Remark
from stepscope.rules.rates import matrix_ns
from stepscope.rules.task_table import TaskTable, per_step_ms
from stepscope.workload.inputs import flag_at

CODE = "untuned-convolution"
BOUND = "compute"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    least_share: float = 0.02
    """Of the step in such convolutions below which there is nothing to say."""
    unknown_share: float = 0.2
    """Of the step in convolutions, from which it is worth asking for shapes."""
    tuned: float = 0.95
    """Of their time, with the algorithm chosen by trial: what twelve of them took on an H200."""
    best: float = 0.4
    """Of its time, for one convolution: the largest gain measured, 0.34 to 0.48."""


POLICY = Policy()
FLAG_AT = {"aten::cudnn_convolution": 6, "aten::cudnn_convolution_transpose": 7, "aten::_convolution": 9}
"""Where these operators have `benchmark`."""
MIOPEN_FLAG_AT = {
    "aten::miopen_convolution": 7,
    "aten::miopen_depthwise_convolution": 7,
    "aten::miopen_convolution_transpose": 8,
}
"""The same on ROCm."""
MIOPEN_ACTION = (
    "Try torch.backends.cudnn.benchmark = True: the first step of each shape searches, and MIOpen's find-db keeps what it found."
)
PRECISIONS = ("bf16", "fp16", "tf32")


def propose(case: Case) -> Proposal | Abstention | Remark | None:
    """Slow convolutions a little faster; at best at the rate well-made ones reach."""
    graph, roofs = case.graph, case.survey.roofs
    if graph is None or case.pitch_ns is None:
        return None
    table = case.table
    convolutions = table.of_category("convolution")
    if roofs is None or not case.survey.trace.meta.has_shapes:
        much = per_step_ms(graph, convolutions) * 1e6 >= POLICY.unknown_share * case.pitch_ns
        lacks = "convolutions of unknown size: record_shapes=True" if roofs is not None else "the peaks of this device"
        return Abstention(code=CODE, needs=lacks) if much else None
    reach = _reach_ns(table, roofs, convolutions)
    slow = graph.task_ns > reach
    spent_ms = per_step_ms(graph, slow)
    if spent_ms * 1e6 < POLICY.least_share * case.pitch_ns or not _holds_still(graph, table, convolutions):
        return None
    if _flags(table, MIOPEN_FLAG_AT) == {False}:
        return Remark(code=CODE, text=f"{spent_ms:.1f} ms of convolutions a step without MIOpen's search. {MIOPEN_ACTION}")
    if _flags(table, FLAG_AT) != {False}:
        return None
    steps, reach_ms = max(graph.num_steps, 1), float(reach[slow].sum()) / max(graph.num_steps, 1) / 1e6
    return Proposal(
        code=CODE,
        bound=BOUND,
        summary=f"{spent_ms:.1f} ms of convolutions a step with algorithms that cuDNN guessed.",
        action="try torch.backends.cudnn.benchmark = True: one line, and it may give nothing",
        evidence=(
            f"{int(slow.sum()) // steps} convolutions a step, of the same shapes in each, with benchmark off",
            f"well-made ones of their size take {reach_ms:.1f} ms",
        ),
        change=_at(slow, POLICY.tuned * graph.task_ns),
        cautious=lambda before: before,
        hopeful=_at(slow, np.maximum(reach, POLICY.best * graph.task_ns)),
        changes_numerics=True,
    )


def _reach_ns(table: TaskTable, roofs: Roofs, convolutions: Bool) -> Float64:
    """Per task how long a well-made convolution takes; infinite where it is not known."""
    reach = np.full(len(table.op), np.inf)
    for task in np.flatnonzero(convolutions & table.is_matrix & ~np.isnan(table.flops)).tolist():
        if table.precision[task] in PRECISIONS:
            known = matrix_ns(roofs, float(table.flops[task]), float(table.bytes[task]), table.precision[task])
            reach[task] = np.inf if np.isnan(known) else known
    return reach


def _flags(table: TaskTable, places: Mapping[str, int]) -> set[bool | None]:
    """What `benchmark` was, over all of these operators; None among it where that cannot be told."""
    flags: set[bool | None] = set()
    for op in np.unique(table.op).tolist():
        place = None if op == NONE else places.get(table.op_name(op))
        inputs = table.inputs(op) if place is not None else None
        if place is not None and inputs is not None:
            flags.add(flag_at(inputs, place))
    return flags


def _holds_still(graph: Graph, table: TaskTable, convolutions: Bool) -> bool:
    """Whether every step has the same convolutions."""
    kinds: list[set[tuple[int, int]]] = []
    for step in np.unique(graph.task_step).tolist():
        mine = np.unique(table.op[convolutions & (graph.task_step == step)])
        kinds.append({table.key(op) for op in mine.tolist() if op != NONE})
    return all(kind == kinds[0] for kind in kinds)


def _at(slow: Bool, times: Float64) -> Change:
    return lambda graph: with_task_ns(graph, slow, times)
