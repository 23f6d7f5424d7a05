"""Kernels that come near no limit of the device: they wait, and counters that say why are missing.

What it sees: kernels whose compute and DRAM throughput are both below 60 % of their peaks, in a
recording without stalls or occupancy.

Why it costs: such a kernel has too few threads, or threads that wait for one another, for loads or
for barriers. A device that could do several times as much is held for it.

Evidence it needs: `sm__throughput` and `dram__throughput` (or gpu__compute_memory_throughput) of
Nsight Compute. Why it waits, these do not tell: low-occupancy, memory-stalls and barrier-stalls
judge once the whole set is recorded.

What to do: `ncu --set full` on the kernels that are named. Small grids want larger batches or
fusion (`torch.compile`), long waits for loads more warps.

Example: 14 % of the multiprocessors' peak and 12 % of the DRAM's: a grid of nine blocks.
"""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.api import Abstention, Advice, Auxiliary, Rule
from stepscope.core.recordings.kernels import KernelMetrics
from stepscope.recordings.ncu.kernel_metrics import Fault, Wording, advice_by_cause, is_busy

CODE = "latency-bound"
BOUND = "compute"
WAITS = "waits"
RECORD_ALL = "ncu --set full records why"
WORDINGS = {
    WAITS: Wording(
        summary="Near no limit of the device, so they wait: {kernels}.",
        action=f"{RECORD_ALL}; small grids want larger batches or fusion (torch.compile)",
    )
}


def advise(auxiliary: Auxiliary) -> Sequence[Advice] | Abstention:
    kernels = () if auxiliary.kernels is None else auxiliary.kernels.kernels
    if kernels and all(is_busy(kernel) is None and kernel.occupancy is None for kernel in kernels):
        return Abstention(
            code=CODE,
            reason="kernels were recorded without the throughput of compute and DRAM",
            needs=RECORD_ALL,
        )
    return advice_by_cause(auxiliary, CODE, BOUND, judge, WORDINGS)


def judge(kernel: KernelMetrics) -> Fault | None:
    """Nothing where the recording has what other rules judge by."""
    if is_busy(kernel) is not False or kernel.stalls or kernel.occupancy is not None:
        return None
    words = f"compute at {kernel.compute_throughput:.0%}, DRAM at {kernel.dram_throughput:.0%}"
    return Fault(kernel=kernel, cause=WAITS, words=f"{words} of their peaks")


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, advise=advise)
