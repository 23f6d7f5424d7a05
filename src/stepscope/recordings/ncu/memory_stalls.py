"""A kernel waits for memory that is far from busy, or for shared memory with bank conflicts.

What it sees: warps that spend at least 30 % of their time waiting for loads from global or local
memory (long scoreboard), more than for anything else, while neither DRAM nor caches nor arithmetic
reach 60 % of their peak. And shared memory accesses that take twice the passes they should (bank
conflicts), with warps waiting for them.

Why it costs: the memory could give more, it is not asked often enough: too few loads in flight. A
kernel at the DRAM's roof waits too, but for bytes that have to come: nothing is said of it. Bank
conflicts serialise what could be one access.

Evidence it needs: Nsight Compute with `--set full` (WarpStateStats, SpeedOfLight; SourceCounters
for bank conflicts).

What to do: more bytes in flight: wider loads (float4; contiguous tensors, for which torch has
vectorised kernels), several loads before the first use, cp.async or TMA pipelines, more warps. In
torch: .contiguous() once instead of strided reads many times, torch.compile to fuse the pass away.
Bank conflicts: pad the tile's rows by one element, or swizzle.

Example: a strided copy of torch (elementwise_kernel) on an H200: 77 % of the warps' time waits for
loads, with 35 % of the DRAM's peak in use.
"""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.api import Advice, Auxiliary, Rule
from stepscope.core.recordings.kernels import KernelMetrics
from stepscope.recordings.ncu import kernel_metrics
from stepscope.recordings.ncu.kernel_metrics import (
    Fault,
    Wording,
    advice_by_cause,
    fills_device,
    is_waiting,
)

CODE = "memory-stalls"
BOUND = "memory"
MIN_CONFLICTS = 2.0
"""Passes over those without bank conflicts. A two-way conflict doubles them (CUDA C++ Best
Practices Guide, Shared Memory and Memory Banks)."""
GLOBAL, SHARED = "global", "shared"
WAITS_SHARED = ("short_scoreboard", "mio_throttle")
"""Where a warp waits for shared memory's answer, and for room in its queue (profiling guide, Warp
Stall Reasons)."""
WORDINGS = {
    GLOBAL: Wording(
        summary="Warps of {kernels} wait for memory that is far from busy: latency, not bandwidth.",
        action="more loads in flight: contiguous tensors, wide loads, several elements a thread; "
        "or fuse the pass away",
    ),
    SHARED: Wording(
        summary="Bank conflicts make {kernels} wait for shared memory.",
        action="pad the rows of the shared tile by one element, or swizzle its addresses",
    ),
}


def advise(auxiliary: Auxiliary) -> Sequence[Advice]:
    return advice_by_cause(auxiliary, CODE, BOUND, judge, WORDINGS)


def judge(kernel: KernelMetrics) -> Fault | None:
    return _shared(kernel) or _global(kernel)


def _global(kernel: KernelMetrics) -> Fault | None:
    waits = {
        reason: share
        for reason, share in kernel.stalls.items()
        if reason not in ("selected", "not_selected")
    }
    share = waits.get("long_scoreboard", 0.0)
    uncollected = 1 - sum(kernel.stalls.values())  # Of reasons that were not collected.
    if share < kernel_metrics.POLICY.stalled or share < max(*waits.values(), uncollected):
        return None
    if not is_waiting(kernel) or not fills_device(kernel):
        return None
    dram = kernel.dram_throughput
    return Fault(
        kernel=kernel,
        cause=GLOBAL,
        words=f"{share:.0%} of the warps' time waits for loads, with {dram:.0%} of the DRAM's peak "
        "in use",
    )


def _shared(kernel: KernelMetrics) -> Fault | None:
    """Whether or not a unit is busy: conflicts keep the L1 busy with passes that need not be."""
    passes, ideal = kernel.shared_wavefronts, kernel.shared_wavefronts_ideal
    waits = sum(kernel.stalls.get(reason, 0.0) for reason in WAITS_SHARED)
    if (
        not ideal
        or passes is None
        or passes < MIN_CONFLICTS * ideal
        or waits < kernel_metrics.POLICY.stalled
    ):
        return None
    words = (
        f"{passes / ideal:.1f} times the passes over shared memory that it needs; {waits:.0%} of "
        "the warps' time waits for it"
    )
    return Fault(kernel=kernel, cause=SHARED, words=words)


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, advise=advise)
