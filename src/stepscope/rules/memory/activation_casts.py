"""Activations are cast to fp32 and back around layers that could take 16 bits.

What it sees: kernels that only copy an activation from one floating-point type to another, forward
and backward. Weights are another rule's (dtype-casts), and the logits' cast before the loss is left
alone. Where the host limits the step it is the launches that count, and weights that are cast once
a step as well: the fix spares both.

Why it costs: under autocast norms, softmax and losses ask for fp32: their input is read and written
once more before them and once more after. PyTorch's kernels for norms and softmax take bf16 and add
up in fp32 by themselves.

Evidence it needs: shapes and types (`record_shapes=True`), and the device's peaks.

What to do: `model.to(torch.bfloat16)` with an optimizer that keeps fp32 copies of the weights, in
place of autocast; or norms outside autocast (`torch.autocast(..., enabled=False)` around them, with
their weights in bf16); `torch.compile` writes casts into the kernels beside them. The gain is of
the casts alone: that norms then move half the bytes is not counted.

Example: a norm over 64 x 512 x 768 in bf16 under autocast reads 50 MB and writes 101 for its cast
to fp32, before it reads them again. DeiT-small with a batch of 8, which its host limits: weights in
bf16 gave 1.16 times the speed.
"""

from __future__ import annotations

from math import prod

import numpy as np
from msgspec import Struct

from stepscope.core.trace import Bool
from stepscope.replay.changes import with_task_ns
from stepscope.replay.graph import Graph
from stepscope.rules.case import Case
from stepscope.rules.memory.dtype_casts import weight_casts
from stepscope.rules.proposal import Proposal
from stepscope.rules.shared.casts import cast_of, spared
from stepscope.rules.task_table import TaskTable, per_step_ms

CODE = "activation-casts"
BOUND = "memory"


class Policy(Struct, frozen=True, kw_only=True):
    least_share: float = 0.02
    """Of the step in such casts below which there is nothing to say."""
    least_numbers: int = 1 << 16
    """In a tensor, from which its cast is more than a launch."""
    vocabulary: int = 16_000
    """A last dimension from which a tensor is taken for logits."""
    least_gain: float = 1.05
    """Of sparing all casts' launches, below which other training is not worth it."""
    cautious_left: float = 0.5
    """Of the casts' time that may have to stay: what a loss or a sum is taken in."""


POLICY = Policy()


def propose(case: Case) -> Proposal | None:
    """The casts of activations are gone."""
    graph = case.graph
    if not case.context.trace.meta.has_shapes or case.context.roofs is None:
        # Without the device's peaks nobody can say what compiling gives, which does this and more.
        return None
    table = case.table
    casts = _casts(case, POLICY.least_numbers)
    spent_ms, steps = per_step_ms(graph, casts), max(graph.num_steps, 1)
    if spent_ms * 1e6 < POLICY.least_share * case.step_interval_ns:
        return _launches(case, graph, table)
    nothing = np.zeros_like(casts)
    back_ms = per_step_ms(graph, casts & table.backward)
    return Proposal(
        summary=f"{spent_ms:.1f} ms a step only cast activations between fp32 and 16 bits.",
        action="model.to(torch.bfloat16) in place of autocast, with fp32 weights kept by the "
        "optimizer; or norms outside autocast, in bf16",
        evidence=(
            f"{int(casts.sum()) // steps} casts of activations a step",
            f"{back_ms:.1f} ms of them in backward",
        ),
        events=graph.task_event[casts],
        change=spared(case, table, casts, nothing, with_host=True),
        cautious=lambda before: with_task_ns(before, casts, POLICY.cautious_left * graph.task_ns),
        changes_numerics=True,
        alternative_to=("unfused-pointwise",),
    )


def _launches(case: Case, graph: Graph, table: TaskTable) -> Proposal | None:
    """Where the device hardly feels the casts, the host may feel their launches: weights in 16 bits
    spare those of the weights as well."""
    weights = weight_casts(case).once
    activations = _casts(case, 0)
    both, nothing = weights | activations, np.zeros_like(weights)
    change = spared(case, table, both, nothing, with_host=True)
    if not weights.any() or case.speedup(change(graph)) < POLICY.least_gain:
        return None
    steps = max(graph.num_steps, 1)
    return Proposal(
        bound="host",
        summary=f"{int(both.sum()) // steps} launches a step only cast between fp32 and 16 bits.",
        action="model.to(torch.bfloat16) in place of autocast, with fp32 weights kept by the "
        "optimizer",
        evidence=(
            f"{int(activations.sum()) // steps} casts of activations a step",
            f"{int(weights.sum()) // steps} casts of weights and their gradients a step",
        ),
        events=graph.task_event[both],
        change=change,
        cautious=spared(case, table, activations, nothing, with_host=True),
        changes_numerics=True,
        listed_last=True,
    )


def _casts(case: Case, least_numbers: int) -> Bool:
    """Tasks that cast an activation of so many numbers at least."""
    table = case.table

    def is_activation(op: int) -> bool:
        cast = table.once(cast_of, op)
        if cast is None or not cast[0]:
            return False
        numbers = prod(cast[0])
        return numbers >= least_numbers and cast[0][-1] < POLICY.vocabulary

    weights = weight_casts(case)
    mask: Bool = table.where(is_activation) & ~table.optimizer
    return mask & ~(weights.again | weights.frozen | weights.once)
