"""A kernel runs out of registers and keeps values in memory instead.

What it sees: instructions that spill registers to local memory and fetch them back, at least 1 % of
all; where these were not counted, local memory with at least a tenth of the kernel's traffic
through the L1.

Why it costs: local memory is device memory behind the caches. Each spilled value is written and
read again: cycles, L1 and L2 bandwidth, and room in the L1 that other data had.

Evidence it needs: Nsight Compute with `--set full` (SourceCounters and the memory tables).

What to do: look at the register limit first: `__launch_bounds__` or `maxrregcount` may ask for more
blocks than it gains. Then smaller tiles, less unrolling, fewer live values. Triton: smaller BLOCK
sizes or more `num_warps`, so that a thread holds less. Arrays that are indexed at run time live in
local memory too: make the indices constants by unrolling.

Example: a kernel that keeps 128 sums a thread under a limit of 32 registers moves each of them
through local memory in every turn of its loop.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from stepscope.api import Advice, Auxiliary, Rule
from stepscope.core.recordings.kernels import KernelMetrics
from stepscope.recordings.ncu import kernel_metrics
from stepscope.recordings.ncu.kernel_metrics import Fault, Wording, advice_by_cause

CODE = "register-pressure"
BOUND = "compute"
SECTOR_BYTES = 32


class Policy(Struct, frozen=True, kw_only=True):
    spilled: float = 0.01
    """Share of the instructions from which spills are more than a prologue's: a handful of them
    stands outside the loops."""
    local: float = 0.1
    """Share of the bytes through the L1 that are local memory's, where spills are not distinguished
    from the rest of it."""


POLICY = Policy()
SPILL, LOCAL = "spill", "local"
WORDINGS = {
    SPILL: Wording(
        summary="Registers of {kernels} spill to memory.",
        action="more registers a thread (launch bounds), smaller tiles, less unrolling (Triton: "
        "smaller blocks, more num_warps)",
    ),
    LOCAL: Wording(
        summary="Local memory takes much of the traffic of {kernels}: spilled registers, or arrays "
        "indexed at run time.",
        action="see which it is (-Xptxas -v lists spills); then more registers a thread, smaller "
        "tiles; or constant indices",
    ),
}


def advise(auxiliary: Auxiliary) -> Sequence[Advice]:
    return advice_by_cause(auxiliary, CODE, BOUND, judge, WORDINGS)


def judge(kernel: KernelMetrics) -> Fault | None:
    if kernel.tensor_pipe is not None and kernel.tensor_pipe >= kernel_metrics.POLICY.busy:
        return None
    registers = "" if kernel.registers is None else f", {kernel.registers:.0f} registers a thread"
    if kernel.spill_instructions is not None and kernel.instructions:
        share = kernel.spill_instructions / kernel.instructions
        if share < POLICY.spilled:
            return None
        words = f"{share:.1%} of its instructions spill registers or fetch them back{registers}"
        return Fault(kernel=kernel, cause=SPILL, words=words)
    local = _local_share(kernel)
    if local is None or local < POLICY.local:
        return None
    return Fault(
        kernel=kernel,
        cause=LOCAL,
        words=f"{local:.0%} of its L1 traffic is local memory{registers}",
    )


def _local_share(kernel: KernelMetrics) -> float | None:
    loads = kernel.global_load_sectors
    stores = kernel.global_store_sectors
    local = kernel.local_bytes
    if loads is None or stores is None or not local:
        return None
    return local / (local + SECTOR_BYTES * (loads + stores))


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, advise=advise)
