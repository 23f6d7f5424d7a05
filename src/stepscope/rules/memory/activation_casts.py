"""Autocast casts weights and activations between fp32 and 16 bits in every step.

What it sees: kernels that only copy a tensor from one floating-point type to another for an
operator that autocast runs in the other, forward and backward, and their launches. What the model
casts itself (`x.float()`) and the logits' cast before the loss are left alone. Weights that are
cast again and again though they have not changed are another rule's as well (dtype-casts), whose
fix is smaller.

Why it costs: a weight is cast once a step, and once more for its gradient; with recomputation
again. Norms, softmax and losses ask for fp32: their input is read and written once more before them
and once more after, and the residuals between them are twice as wide. PyTorch's kernels for norms
and softmax take bf16 and add up in fp32 by themselves.

Evidence it needs: shapes and types (`record_shapes=True`), and the device's peaks.

What to do: `model.to(torch.bfloat16)` with an optimizer that keeps fp32 copies of the weights, in
place of autocast; or norms outside autocast (`torch.autocast(..., enabled=False)` around them, with
their weights in bf16); `torch.compile` writes casts into the kernels beside them. It changes the
training: check the loss. The fp32 copies are counted, two casts of all weights a step, and so are
those that norms spelled out in Python then need: a model of few tokens and many weights may become
slower.

Example: a norm over 64 x 512 x 768 in bf16 under autocast reads 50 MB and writes 101 for its cast
to fp32, before it reads them again. Weights in bf16 gave DeiT-small with a batch of 8, which its
host limits, 1.16 times the speed, SigLIP with a batch of 128 1.15, and Qwen3 with a vocabulary of
151,936 0.98.
"""

from __future__ import annotations

import math

import numpy as np
from msgspec import Struct

from stepscope.rules.case import Case
from stepscope.rules.memory.dtype_casts import trained_weights, weight_casts
from stepscope.rules.proposal import Proposal
from stepscope.rules.rule import Rule
from stepscope.rules.shared.casts import in_half, spared, spared_casts
from stepscope.rules.task_table import per_step_ms

CODE = "activation-casts"
BOUND = "memory"


class Policy(Struct, frozen=True, kw_only=True):
    least_gain: float = 1.05
    """Gain below which other training is not worth it."""
    host_share: float = 0.5
    """Share of the logarithm of the casts' gain from which it is their launches that cost."""


POLICY = Policy()


def propose(case: Case) -> Proposal | None:
    """Weights in 16 bits, and no autocast."""
    graph, table, roofs = case.graph, case.table, case.context.roofs
    if not case.context.trace.meta.has_shapes or roofs is None:
        return None
    casts = spared_casts(case)
    if not casts.any():
        return None
    trained = trained_weights(case)
    change = in_half(case, roofs, trained)
    if case.speedup(change(graph)) < POLICY.least_gain:
        return None
    weights, steps = weight_casts(case), max(graph.num_steps, 1)
    num_weights = int((casts & (weights.once | weights.again | weights.frozen)).sum())
    num, is_host = int(casts.sum()), _is_host(case)
    spent_ms, back_ms = per_step_ms(graph, casts), per_step_ms(graph, casts & table.backward)
    return Proposal(
        bound="host" if is_host else "",
        summary=f"{num // steps} launches a step only cast between fp32 and 16 bits."
        if is_host
        else f"{spent_ms:.1f} ms a step only cast between fp32 and 16 bits.",
        action="model.to(torch.bfloat16) in place of autocast, with fp32 weights kept by the "
        "optimizer",
        evidence=(
            f"{(num - num_weights) // steps} casts of activations a step",
            f"{num_weights // steps} casts of weights and their gradients a step",
            f"{spent_ms:.1f} ms of casts on the device, {back_ms:.1f} of them in backward",
        ),
        events=graph.task_event[casts],
        change=change,
        cautious=in_half(case, roofs, trained, casts_alone=True),
        changes_numerics=True,
        may_slow=True,
        changes_training=True,
    )


def _is_host(case: Case) -> bool:
    """Whether more of what the casts cost is their launches."""
    casts = spared_casts(case)
    nothing = np.zeros_like(casts)
    both, device = (
        math.log(case.speedup(spared(case, case.table, casts, nothing, with_host=host)(case.graph)))
        for host in (True, False)
    )
    return both - device > POLICY.host_share * both


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, propose=propose, includes=("dtype-casts",))
