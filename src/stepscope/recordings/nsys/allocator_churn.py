"""allocator-churn: what totals of calls show."""

from __future__ import annotations

import re

from msgspec import Struct

from stepscope.api import Advice, Auxiliary
from stepscope.recordings.nsys.totals import call_totals, calls_named

CODE = "allocator-churn"
BOUND = "host"
ALLOCATES = re.compile(
    r"^(?:cuda|hip)(?:Malloc|Free)|^cuMem(?:Alloc|Free|Map|Unmap|Create|Release)"
)


class Policy(Struct, frozen=True, kw_only=True):
    least_calls: int = 100
    """Calls from which the driver is asked too often: the blocks that a run takes once are
    fewer."""
    least_call_share: float = 0.05
    """Share of the host's time in CUDA's calls; chosen without recordings."""


POLICY = Policy()


def advise(auxiliary: Auxiliary) -> Advice | None:
    """Advise by totals of calls alone: PyTorch asks the driver a few times in its first steps, and
    then keeps what it has."""
    rows = call_totals(auxiliary)
    total_ns = sum(row.total_ns for row in rows)
    num, spent_ns = calls_named(rows, ALLOCATES)
    if num < POLICY.least_calls or spent_ns < POLICY.least_call_share * total_ns:
        return None
    return Advice(
        code=CODE,
        bound=BOUND,
        summary=f"The driver is asked for memory {num:,} times, {spent_ns / total_ns:.0%} of the "
        "time in CUDA's calls.",
        action="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, no empty_cache() in the loop, "
        "shapes that hold still",
        evidence=tuple(
            f"{row.name}: {row.count:,} calls, {row.total_ns / 1e6:.1f} ms"
            for row in sorted(rows, key=lambda row: -row.total_ns)
            if ALLOCATES.search(row.name)
        )[:3],
        weight=spent_ns / total_ns,
        weight_of="the time in CUDA's calls",
    )
