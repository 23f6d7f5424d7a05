"""device-sync: what totals of calls show."""

from __future__ import annotations

from stepscope.api import Advice, Auxiliary
from stepscope.core.recordings.kernels import WAITS_FOR_DEVICE
from stepscope.recordings.nsys.totals import call_totals, calls_named

CODE = "device-sync"
BOUND = "host"
MIN_CALL_SHARE = 0.3
"""Share of the host's time in CUDA's calls, by their totals alone; chosen without recordings."""


def advise(auxiliary: Auxiliary) -> Advice | None:
    """Advise by totals of calls alone: whether the device waits too, they do not tell."""
    rows = call_totals(auxiliary)
    total_ns = sum(row.total_ns for row in rows)
    num, wait_ns = calls_named(rows, WAITS_FOR_DEVICE)
    if not total_ns or wait_ns < MIN_CALL_SHARE * total_ns:
        return None
    return Advice(
        code=CODE,
        bound=BOUND,
        summary=f"The host stands in {num:,} waits for the device for {wait_ns / total_ns:.0%} of "
        "its time in CUDA's calls.",
        action="no .item(), .cpu() or print of a tensor in the step; where the device is never "
        "idle it costs nothing, which a trace (stepscope run) tells",
        evidence=tuple(
            f"{row.name}: {row.count:,} calls, {row.total_ns / 1e6:.1f} ms"
            for row in sorted(rows, key=lambda row: -row.total_ns)
            if WAITS_FOR_DEVICE.search(row.name)
        )[:3],
        weight=wait_ns / total_ns,
        weight_of="the time in CUDA's calls",
    )
