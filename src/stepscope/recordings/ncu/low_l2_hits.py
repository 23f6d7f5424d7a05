"""A kernel is held up by DRAM, with data that the L2 may have had before.

What it sees: a kernel at 60 % of the DRAM's peak or more that reads more from DRAM than the L2
holds, writes little, and whose multiprocessors get clearly more from the L2 than the L2 gets from
DRAM: data are used more than once. The L2 itself has room for more: what it looks up and sends is
well below the DRAM's share of peak. And, with a memory recording of the same run beside it: a
kernel that reads more from DRAM than all tensors held, which proves that data came twice.

Why it costs: where blocks that run together read distant parts, each takes the others' lines away
before they are used again, and DRAM brings them again. The L2 has more bandwidth than DRAM: some
1.2 times on an H200, several times on devices with GDDR.

Evidence it needs: Nsight Compute with `--set full` (bytes from L2 to L1, from DRAM, and how busy
the L2's lookups and its output are). Hit rates are not used: devices with an L2 in two halves look
a read of the far half up twice. A pass that reads every byte once gets as much from the L2 as the
L2 gets from DRAM, and nothing is said of it. No counter tells how large the data are, so a small
operand that stays in the L2 beside a large one that is read once looks the same (a product of few
rows with large weights): the sentence gives the bytes, to be compared with the size of the inputs.

What to do: let blocks that run together share operands: a swizzled order of blocks (Triton:
GROUP_SIZE_M), larger tiles, a split that fits the L2; sort the indices of a gather; keep what is
small and used often resident (an access policy window: CUDA C++ Best Practices Guide, L2 Cache);
work on chunks that fit, with the passes over a chunk one after the other (or fused).

Example: rows of 512 bytes in random order, each 8 times, out of a buffer of 157 MB on an H200 with
an L2 of 63: 0.94 GB came from DRAM at 88 % of its peak, six times what the buffer holds.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from stepscope.api import Advice, Auxiliary, Rule
from stepscope.core.recordings.kernels import KernelMetrics
from stepscope.recordings.ncu import kernel_metrics
from stepscope.recordings.ncu.kernel_metrics import Fault, Wording, advice_by_cause

CODE = "low-l2-hits"
BOUND = "memory"


class Policy(Struct, frozen=True, kw_only=True):
    used_again: float = 1.25
    """Bytes from the L2 over those from DRAM, from which data are used again. On an H200, passes
    that read a byte once have 1.00 to 1.03, random rows of a buffer 2.5 times the L2, read 8 times
    each, 1.34. A choice of ours between them."""
    room: float = 0.8
    """The L2's share of peak over the DRAM's, up to which hits would gain a fifth of the time."""
    written: float = 0.25
    """Bytes written to DRAM over those read. What writes as much as it reads (a pass with a small
    operand beside: rotary embeddings, a bias) reads the large one once."""
    proved: float = 1.1
    """Bytes read over those that tensors held. The kernel's own inputs are not more; libraries have
    some beside."""


POLICY = Policy()
MISSED, AGAIN = "missed", "again"
ACTION = (
    "an order of blocks that shares operands in the L2 (Triton: GROUP_SIZE_M), larger tiles, "
    "chunks that fit, sorted indices"
)
WORDINGS = {
    AGAIN: Wording(summary="Data of {kernels} come from DRAM several times.", action=ACTION),
    MISSED: Wording(
        summary="DRAM holds {kernels} up, and may bring the same data several times.",
        action=f"if its inputs are smaller than what it read: {ACTION}",
    ),
}


def advise(auxiliary: Auxiliary) -> Sequence[Advice]:
    peaks = []
    if auxiliary.memory is not None:
        peaks = [record.peak_bytes for record in auxiliary.memory.records]
    return advice_by_cause(
        auxiliary, CODE, BOUND, lambda kernel: judge(kernel, max(peaks, default=0)), WORDINGS
    )


def judge(kernel: KernelMetrics, held_bytes: int = 0) -> Fault | None:
    """`held_bytes` is the most that tensors of the run held; 0 where that is not known."""
    dram, read = kernel.dram_throughput, kernel.dram_read_bytes
    busy = kernel_metrics.POLICY.busy
    if (
        dram is None
        or dram < busy
        or not read
        or (kernel.tensor_pipe or 0.0) >= busy
        or not _has_room(kernel, dram)
    ):
        return None
    words = f"{read / 1e9:.2f} GB read from DRAM, at {dram:.0%} of its peak"
    if held_bytes and read >= POLICY.proved * held_bytes:
        return Fault(
            kernel=kernel,
            cause=AGAIN,
            words=f"{words}; all tensors together held {held_bytes / 1e9:.2f} GB at most",
        )
    size, served, written = kernel.l2_size_bytes, kernel.l2_read_bytes, kernel.dram_write_bytes
    if (
        size is None
        or served is None
        or written is None
        or read <= size
        or written > POLICY.written * read
    ):
        return None
    if served < POLICY.used_again * read:
        return None
    return Fault(
        kernel=kernel,
        cause=MISSED,
        words=f"{words}; the multiprocessors got {served / read:.1f} times that from the L2",
    )


def _has_room(kernel: KernelMetrics, dram: float) -> bool:
    """Whether the kernel would be faster if more came from the L2."""
    others = (kernel.l2_served, kernel.compute_throughput, kernel.l1_throughput)
    return kernel.l2_served is not None and all(
        share is None or share <= POLICY.room * dram for share in others
    )


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, advise=advise)
