"""Each step leaves more memory in use than the one before.

What it sees: the least bytes that tensors hold during each step, growing with every step by about as much.

Why it costs: something keeps tensors of finished steps, often a loss with its whole graph. The run gets to the device's limit
after hours, and slows down before that.

Evidence it needs: the allocator's events (`profile_memory=True`) over three steps or more, after the first few: the optimizer
makes its state in the first.

What to do: keep `loss.detach()` or `loss.item()`, never `loss`; empty lists of outputs and hooks; `del` what the next step does
not need.

Example: (for illustration, not measured) `losses.append(loss)` kept 40 MB a step; out of memory after 1,400 steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.rules.allocations import NEEDS, device_memory
from stepscope.rules.case import Case
from stepscope.rules.proposal import Abstention, Proposal, Remark

CODE = "memory-growth"
NEEDS_REPLAY = False
BOUND = "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    least_steps: int = 3
    """Two growths in a row, at least."""
    least_share: float = 1e-4
    """Of the memory in use, per step: smaller than that is rounding."""
    alike: float = 0.5
    """The smallest growth against the largest: what is kept every step is about the same every step."""


POLICY = Policy()


def propose(case: Case) -> Proposal | Abstention | Remark | None:
    """Tell how much each step leaves behind; there is no step time in it."""
    memory = device_memory(case)
    if memory is None:
        return Abstention(code=CODE, needs=NEEDS)
    step = np.searchsorted(case.survey.cut.host_start, memory.time_ns, side="right") - 1
    floors = np.array([memory.allocated[step == i].min() for i in np.unique(step[step >= 0])])
    if len(floors) < POLICY.least_steps:
        return Abstention(code=CODE, needs=f"record {POLICY.least_steps} steps or more")
    growth = np.diff(floors)
    if growth.min() < POLICY.least_share * floors[-1] or growth.min() < POLICY.alike * growth.max() or growth.min() <= 0:
        return None
    left = float(np.median(growth))
    return Remark(code=CODE, text=f"each step leaves {left / 1e6:.1f} MB more in use than the one before: detach what is kept")
