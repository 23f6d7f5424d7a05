"""Tensors are copied only to change the order of their dimensions.

What it sees: kernels of `copy_` between tensors of one type and shape whose strides differ:
`contiguous()` after `transpose` or `permute`, `reshape` of a view that has no such shape, a tensor
that goes from NCHW to NHWC and back outside convolutions.

Why it costs: the copy reads and writes the whole tensor, at a fraction of the bandwidth where the
fastest dimension changes, and computes nothing. Many kernels take strides as they are.

Evidence it needs: shapes and strides (`record_shapes=True`), and the device's peaks.

What to do: leave `contiguous()` out where the next operator takes strides (`bmm`, `matmul`,
`scaled_dot_product_attention`, norms over the last dimension); make tensors in the order in which
they are used (`unflatten` before one `transpose`, not after); one memory format for the whole
model. A copy that a kernel needs is made by PyTorch itself, so the range begins at nothing.

Example: attention written out makes four such copies a layer: queries, keys, values and the result.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from stepscope.rules.case import Case
from stepscope.rules.proposal import Proposal
from stepscope.rules.rule import Rule
from stepscope.rules.shared.casts import spared
from stepscope.rules.task_table import TaskTable, per_step_ms
from stepscope.workload.operands import is_shape, operand

CODE = "layout-copies"
BOUND = "memory"


class Policy(Struct, frozen=True, kw_only=True):
    least_share: float = 0.02
    """Share of the step in such copies below which nothing is reported."""
    least_dims: int = 3
    """A matrix is turned for a product that asks for it."""


POLICY = Policy()


def propose(case: Case) -> Proposal | None:
    """The copies are gone; cautiously all of them stay."""
    graph = case.graph
    if not case.context.trace.meta.has_shapes or case.context.roofs is None:
        # Without the device's peaks nobody can say what compiling gives, which does this and more.
        return None
    table = case.table
    # Tasks of `copy_` between two orders of one shape and type.
    copies = table.where(lambda op: bool(_dims(table, op))) & ~table.optimizer
    spent_ms, steps = per_step_ms(graph, copies), max(graph.num_steps, 1)
    if spent_ms * 1e6 < POLICY.least_share * case.step_interval_ns:
        return None
    longest = int(np.flatnonzero(copies)[np.argmax(graph.task_ns[copies])])
    return Proposal(
        summary=f"{spent_ms:.1f} ms a step only copy tensors into another order of dimensions.",
        action="leave out contiguous() where the next operator takes strides; one memory format "
        "from end to end",
        evidence=(
            f"{int(copies.sum()) // steps} such copies a step",
            f"the longest is of {' x '.join(map(str, _dims(table, int(table.op[longest]))))}",
        ),
        events=graph.task_event[copies],
        change=spared(case, table, copies, np.zeros_like(copies), with_host=True),
        cautious=lambda before: before,
        alternative_to=("unfused-pointwise", "nchw-layout"),
    )


def _dims(table: TaskTable, op: int) -> tuple[int, ...]:
    """The shape of what the operator copies into another order; empty where it does not."""
    inputs = table.inputs(op) if table.op_name(op) == "aten::copy_" else None
    if inputs is None or not inputs.strides or len(inputs.strides) < 2:
        return ()
    to, source = operand(inputs, 0), operand(inputs, 1)
    if to is None or source is None or to.dims != source.dims or to.dtype != source.dtype:
        return ()
    made, read = inputs.strides[0], inputs.strides[1]
    if len(to.dims) < POLICY.least_dims or not is_shape(made) or not is_shape(read):
        return ()
    if 0 in read or _order(made, to.dims) == _order(read, to.dims):
        return ()
    return to.dims


def _order(strides: tuple[int, ...], dims: tuple[int, ...]) -> list[int]:
    """The dimensions from the slowest to the fastest; those of one number say nothing."""
    wide = [index for index, side in enumerate(dims) if side > 1]
    return sorted(wide, key=lambda index: -strides[index])


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, propose=propose)
