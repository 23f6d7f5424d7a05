"""Steps that a run timed with no profiler attached, all of one length."""

from __future__ import annotations

from typing import Any

from stepscope.core.run import UnprofiledSteps

MS = 1_000_000


def timed_steps(
    ms: float, *, wait_ms: float = 0.0, num: int = 50, **fields: Any
) -> UnprofiledSteps:
    """One batch and one backward pass a step, by the host's clock; `fields` say otherwise."""
    step_ns = round(ms * MS)
    usual = {
        "num_left_out": 0, "on_device": False, "wait_ns": round(wait_ms * MS),
        "backward_ns": None, "optimizer_ns": None, "num_batches": 1.0, "num_backwards": 1.0,
    }  # fmt: skip
    return UnprofiledSteps(
        num=num,
        step_ns=step_ns,
        low_ns=step_ns,
        high_ns=step_ns,
        median_ns=step_ns,
        slowest_ns=step_ns,
        **{**usual, **fields},
    )
