"""The optimizer's states are kept in fp32, and the update moves them in every step.

What it sees: states of four bytes an element beside the weights, and an update that takes a good
part of the step.

Why it costs: an update reads and writes every state. AdamW moves three times the weights' bytes
and four times one state's; with states in 16 bits, two fewer of seven parts. They also hold half
the memory then, room for a larger batch or for fewer checkpointed blocks.

Evidence it needs: the allocator's events (`profile_memory=True`, `stepscope run --memory`) with
shapes (`record_shapes=True`), and an optimizer of torch, whose states are known.

What to do: 8-bit states (torchao.optim.AdamW8bit, bitsandbytes.optim.AdamW8bit), or bf16 ones
(Megatron's exp_avg_dtype). The update is rounded: compare the loss over a few hundred steps.

Example: (for illustration, not measured)
AdamW over 1.3 billion weights in fp32 moves 38 GB a step, 8 ms on an H200; 27 GB with bf16 states.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from stepscope.core.diagnosis import Abstention, MemoryChange
from stepscope.core.memory import MemoryUse
from stepscope.core.numbers import size_words
from stepscope.core.recordings.memory import OPTIMIZER
from stepscope.replay.changes import Change, with_task_ns
from stepscope.replay.graph import Graph
from stepscope.rules.case import Case
from stepscope.rules.proposal import Proposal
from stepscope.rules.rule import Rule
from stepscope.rules.shared.unrecorded import REASON
from stepscope.rules.task_table import per_step_ms

CODE = "wide-optimizer-state"
BOUND = "memory"
WIDE_BYTES = 4


class Policy(Struct, frozen=True, kw_only=True):
    least_share: float = 0.05
    """Share of the step in the update's kernels below which nothing is reported: a third of them
    can go."""
    bandwidth_share: float = 0.85
    """Share of the device's bandwidth that an update reaches: as large copies do."""


POLICY = Policy()


def propose(case: Case) -> Proposal | Abstention | None:
    """What narrower states no longer move is gone from the update."""
    graph, roofs = case.graph, case.context.roofs
    if roofs is None:
        return None
    update = case.table.optimizer
    update_ms = per_step_ms(graph, update)
    if update_ms * 1e6 < POLICY.least_share * case.step_interval_ns:
        return None
    memory = case.facts.memory
    if memory is None:
        return Abstention(code=CODE, reason=REASON, needs=case.recorder.with_memory)
    states = _wide_bytes(case, memory)
    if not states:
        return None
    rate = POLICY.bandwidth_share * roofs.spec.bandwidth_bytes_per_s.value / 1e9
    return Proposal(
        summary=f"The update moves {size_words(2 * states)} of fp32 states in each step.",
        action="torchao.optim.AdamW8bit (or bitsandbytes'), or states in bf16; compare the loss",
        evidence=(
            f"{update_ms:.2f} ms of kernels a step in the optimizer",
            (
                f"states take {size_words(states)}: {size_words(states / 2)} in bf16, "
                f"{size_words(states / 4)} in 8 bits"
            ),
        ),
        change=_without_ns(case, states / rate),
        cautious=_without_ns(case, 0.0),
        hopeful=_without_ns(case, 1.5 * states / rate),
        changes_numerics=True,
        memory=MemoryChange(
            before_bytes=memory.peak_bytes, after_bytes=memory.peak_bytes - states // 2
        ),
    )


def _wide_bytes(case: Case, memory: MemoryUse) -> int:
    """Bytes of the optimizer's states where they have four bytes an element; else 0."""
    from stepscope.analyses.memory.kinds import STATES
    from stepscope.analyses.weights import optimizer_of, trained_weights

    trained, num = trained_weights(case.context), STATES.get(optimizer_of(case.context.trace) or "")
    states = 0 if memory.kinds is None else memory.kinds.get(OPTIMIZER, 0)
    if trained is None or not num or states < WIDE_BYTES * num * trained.num_elements:
        return 0
    return states


def _without_ns(case: Case, saved_ns: float) -> Change:
    """The update's kernels of each step take so much less together, each as its length is."""

    def change(graph: Graph) -> Graph:
        update = case.table.optimizer
        now = float(graph.task_ns[update].sum()) / max(graph.num_steps, 1)
        left = max(1.0 - saved_ns / max(now, 1.0), 0.0)
        return with_task_ns(graph, update, np.asarray(graph.task_ns * left))

    return change


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, propose=propose)
