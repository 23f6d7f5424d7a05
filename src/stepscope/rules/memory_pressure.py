"""The device's memory is nearly full.

What it sees: the most bytes that tensors held at once, against the device's memory.

Why it costs: at the limit the allocator gives back its cache and asks the driver again, with the device standing still, and a
longer sequence or a second process ends the run. It also rules out mends that need room: larger batches, no checkpointing.

Evidence it needs: the allocator's events: profile with `profile_memory=True`.

What to do: checkpoint activations, shard optimizer and parameters, bf16, a fused loss that never holds the logits, a smaller
micro-batch with accumulation; last, offload.

Example: (for illustration, not measured)
134 of 140 GB held at the end of the forward pass; with every second block checkpointed, 96.
"""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.rules.allocations import NEEDS, device_memory
from stepscope.rules.case import Case
from stepscope.rules.proposal import Abstention, Proposal, Remark

CODE = "memory-pressure"
NEEDS_REPLAY = False
BOUND = "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    most: float = 0.92
    """Of the device's memory: the rest goes to the context, to libraries' workspaces and to rounding."""


POLICY = Policy()


def propose(case: Case) -> Proposal | Abstention | Remark | None:
    """Tell how full the device is; there is no step time in it."""
    memory = device_memory(case)
    if memory is None:
        return Abstention(code=CODE, needs=NEEDS)
    total = None if case.survey.device is None else case.survey.device.memory_bytes
    if not total:
        return Abstention(code=CODE, needs="the device's memory is not in the trace")
    peak = int(memory.allocated.max())
    if peak < POLICY.most * total:
        return None
    text = f"tensors hold {peak / 1e9:.1f} of {total / 1e9:.1f} GB at the peak ({peak / total:.0%}): checkpoint or shard"
    return Remark(code=CODE, text=text)
