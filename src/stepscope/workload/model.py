"""The work of an operator, FLOPs and bytes, from its recorded inputs.

Charge it to the innermost operator that launched a kernel: a wrapper (aten::linear around
aten::addmm) has the same work, and counting both counts it twice. An operator that is not here, or
whose inputs do not say enough, has no work: None, never a guess.
"""

from __future__ import annotations

from collections import ChainMap

from stepscope.workload import attention, conv, matmul, memory, pointwise
from stepscope.workload.inputs import ParsedInputs, parse_inputs
from stepscope.workload.operands import MATRIX_KINDS, Model, Work

__all__ = ["MATRIX_KINDS", "ParsedInputs", "Work", "parse_inputs", "work_of"]

_FAMILIES = (
    matmul, attention, conv, memory, pointwise,
)  # fmt: skip
MODELS: dict[str, Model] = dict(ChainMap(*(dict(family.MODELS) for family in _FAMILIES)))


def work_of(op: str, inputs: ParsedInputs) -> Work | None:
    """The operator's work; `None` when it has no model or its inputs are insufficient for one."""
    model = MODELS.get(op)
    try:
        if model is not None:
            return model(inputs)
        return pointwise.backward_work(op, inputs) or memory.inductor_work(op, inputs)
    except (
        OverflowError
    ):  # sizes that no memory holds, from a damaged trace: beyond what a float can count
        return None
