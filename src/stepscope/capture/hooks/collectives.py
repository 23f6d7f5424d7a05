"""Hooks on torch.distributed: what the host spends there, most of all waiting for other ranks.

Collectives that DDP starts from C++ do not come by here; they are inside the backward pass.
"""

from __future__ import annotations

from typing import Any

from stepscope.capture.guard import Guard
from stepscope.capture.hooks.patches import replace, timed
from stepscope.capture.session import Session
from stepscope.capture.tape import EXCHANGED

NAMES = (
    "all_gather",
    "all_gather_into_tensor",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "monitored_barrier",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
)


def hook_collectives(guard: Guard, torch: Any, session: Session) -> None:
    distributed = getattr(torch, "distributed", None)

    def exchanged(_: Any, begun: int, ended: int) -> None:
        session.tape.append((EXCHANGED, begun, ended, 0))

    for name in NAMES:
        if callable(getattr(distributed, name, None)):
            replace(guard, distributed, name, timed(guard, exchanged))
