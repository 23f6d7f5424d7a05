"""Operators over lists of tensors: fused optimizers and _foreach_*.

A list's shapes are recorded while it has no more than 30 tensors, its element type never: FLOPs
follow, bytes do not. A list of more gives nothing at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import prod

from stepscope.workload.inputs import ParsedInputs
from stepscope.workload.operands import Model, Work, make_work, shapes_at
from stepscope.workload.pointwise import POINTWISE

FUSED = {
    # Kingma and Ba 2015, algorithm 1: first moment (3), second moment (4), two bias corrections
    # (2), root and epsilon (2), step (3); decoupled weight decay (2) as in Loshchilov and Hutter
    # 2019, algorithm 2.
    "_fused_adam": 14,
    "_fused_adamw": 16,
    # Weight decay (2), momentum (3), step (2).
    "_fused_sgd": 7,
    # Weight decay (2), sum of squares (2), root and epsilon (2), step (3).
    "_fused_adagrad": 9,
}
_LISTS = {
    "_foreach_norm": (2, "reduction"),
    "_foreach_max": (1, "reduction"),
    "_foreach_copy": (0, "copy"),
    "_foreach_zero": (0, "copy"),
    "_foreach_clone": (0, "copy"),
    "_amp_foreach_non_finite_check_and_unscale": (1, "pointwise"),
}


def list_work(inputs: ParsedInputs, *, flops: int, kind: str) -> Work | None:
    """So many FLOPs for each element of the first list."""
    shapes = shapes_at(inputs, 0)
    if shapes is None:
        return None
    return make_work(
        kind, flops=flops * sum(prod(shape) for shape in shapes), moved=None, precision=None
    )


def _with_in_place(name: str) -> tuple[str, str]:
    return f"aten::{name}", f"aten::{name}_"


_POINTWISE_LISTS = {
    op.replace("aten::", "aten::_foreach_"): partial(list_work, flops=spec.flops, kind="pointwise")
    for op, spec in POINTWISE.items()
    if not op.endswith("_backward")
}
MODELS: Mapping[str, Model] = {
    **_POINTWISE_LISTS,
    **{
        op: partial(list_work, flops=flops, kind=kind)
        for name, (flops, kind) in _LISTS.items()
        for op in _with_in_place(name)
    },
    **{
        op: partial(list_work, flops=flops, kind="optimizer")
        for name, flops in FUSED.items()
        for op in _with_in_place(name)
    },
}
