"""The allocator holds far more memory than tensors use.

What it sees: reserved against allocated bytes at the moment tensors hold most.

Why it costs: free blocks of the wrong size are of no use. The allocator asks the driver for more until the device is full, then
gives back and retries; a run ends out of memory with gigabytes free.

Evidence it needs: the allocator's events: profile with `profile_memory=True`.

What to do: `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`; pad or bucket shapes so that sizes repeat; no `empty_cache()` in
the loop.

Example: (for illustration, not measured)
71 GB reserved for 48 GB of tensors on an 80 GB device, with sequence lengths that change every step.
"""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.rules.allocations import NEEDS, device_memory
from stepscope.rules.case import Case
from stepscope.rules.proposal import Abstention, Proposal, Remark

CODE = "fragmentation"
NEEDS_REPLAY = False
BOUND = "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    least_unused: float = 0.25
    """Of the reserved bytes that no tensor uses at the peak: rounding and a warm cache leave some (a judgement, not measured)."""
    least_full: float = 0.5
    """Of the device reserved: below, the cache is in nobody's way."""


POLICY = Policy()


def propose(case: Case) -> Proposal | Abstention | Remark | None:
    """Tell what is reserved and unused when it matters; there is no step time in it."""
    memory = device_memory(case)
    if memory is None:
        return Abstention(code=CODE, needs=NEEDS)
    peak = int(memory.allocated.argmax())
    allocated, reserved = int(memory.allocated[peak]), int(memory.reserved[peak])
    total = None if case.survey.device is None else case.survey.device.memory_bytes
    if reserved - allocated < POLICY.least_unused * reserved or (total and reserved < POLICY.least_full * total):
        return None
    return Remark(
        code=CODE,
        text=f"{reserved / 1e9:.1f} GB are reserved for {allocated / 1e9:.1f} GB of tensors at the peak: try "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    )
