"""A kernel that uses its data again fetches them from DRAM each time.

What it sees: a kernel at 60 % of the DRAM's peak or more, of whose reads the L2 serves less than half, but enough to
show that data are used more than once.

Why it costs: the L2 gives several times the DRAM's bandwidth. Where blocks that run together read distant parts, each takes the
others' lines away before they are used again.

Evidence it needs: Nsight Compute with `--set full` (the memory tables: hits of reads alone; writes always hit). A pass that reads
every byte once finds nothing in the L2 and loses nothing by it: nothing is said of it. Nor is anything where the tensor pipe is
busy all the same. Counters cannot tell how often a byte had to come: look whether what is read again is larger than the L2.

What to do: let blocks that run together share operands: a swizzled order of blocks (Triton: GROUP_SIZE_M), larger tiles, a split
that fits the L2; keep what is small and used often resident (an access policy window); work on chunks that fit, with the
passes over a chunk one after the other (or fused).

Example: a matrix product that walks its output row by row reads the whole of the second operand for each row of blocks: where
that is larger than the L2, from DRAM.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stepscope.core.beside import Advice, Beside
from stepscope.core.kernel_report import KernelMetrics
from stepscope.rules import kernel_metrics
from stepscope.rules.kernel_metrics import Fault, Wording, told

CODE = "low-l2-hits"
BOUND = "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    poor: float = 0.5
    """Of the reads. The matrix products of cuBLAS in our own recordings of an H200 have 59 to 83 %."""
    shared: float = 0.2
    """Of the reads, from which data are used again. In the same recordings copies, casts and sums, which read a byte once, have
    below 7 %, and a layer norm's gradient, which reads its rows twice, 22 %. A choice of ours."""


POLICY = Policy()
MISSED = "missed"
WORDINGS = {
    MISSED: Wording(
        summary="Data that {kernels} use again come from DRAM each time.",
        action="an order of blocks that shares operands in the L2 (Triton: GROUP_SIZE_M), larger tiles, chunks that fit",
    )
}


def advise(beside: Beside) -> Sequence[Advice]:
    return told(beside, CODE, BOUND, judge, WORDINGS)


def judge(kernel: KernelMetrics) -> Fault | None:
    hits, dram, busy = kernel.l2_read_hits, kernel.dram_throughput, kernel_metrics.POLICY.busy
    if hits is None or dram is None or dram < busy or (kernel.tensor_pipe or 0.0) >= busy:
        return None
    if not POLICY.shared <= hits < POLICY.poor:
        return None
    words = f"{hits:.0%} of its reads found in the L2, with {dram:.0%} of the DRAM's peak in use"
    return Fault(kernel=kernel, cause=MISSED, words=words)
