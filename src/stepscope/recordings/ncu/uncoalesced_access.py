"""A kernel's threads read or write memory so scattered that much of what is moved is not used.

What it sees: warps whose accesses touch more sectors of 32 bytes than their data fill, and the
sectors that go to the L2 for it: at least 30 % of all of them without need. What the L1 keeps for
the neighbours' use is not counted. A kernel whose tensor or FMA pipe is busy is left alone: memory
does not hold it up.

Why it costs: memory moves whole sectors. A warp that reads 32 floats in a row needs 4 sectors; with
a stride of 8 floats or more it needs 32, and 7 of 8 bytes are moved for nothing, from DRAM to L2 to
L1.

Evidence it needs: Nsight Compute with `--set full` (the memory tables: sectors, requests, bytes
used of a sector).

What to do: let neighbouring threads touch neighbouring addresses: make the fast axis of the tensor
the one that threads run along (.contiguous(), channels_last, a transposed weight kept as such),
stage a transposition through shared memory, keep structures as arrays. In torch: look at the
strides of the operator's inputs; torch.compile chooses its loops by them.

Example: a copy with a stride of 32 floats touches 32 sectors for a warp's load where 4 would do.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from stepscope.api import Advice, Auxiliary, Rule
from stepscope.core.recordings.kernels import KernelMetrics
from stepscope.recordings.ncu import kernel_metrics
from stepscope.recordings.ncu.kernel_metrics import Fault, Wording, advice_by_cause

CODE = "uncoalesced-access"
BOUND = "memory"


class Policy(Struct, frozen=True, kw_only=True):
    wasted: float = 0.3
    """Share of the sectors moved without need. The CUDA C++ Best Practices Guide (Strided
    Accesses): a stride of 2 uses half of what is loaded, in a copy with a coalesced other side a
    third of all."""
    widest: float = 16.0
    """Sectors of a warp's access with 16 bytes a thread, the widest there is: the ideal where its
    bytes were not counted."""


POLICY = Policy()
SCATTERED = "scattered"
WORDINGS = {
    SCATTERED: Wording(
        summary="Memory accesses of {kernels} are not coalesced: much "
        "of what is moved is not used.",
        action="neighbouring threads to neighbouring addresses: inputs contiguous along the fast "
        "axis; a tile in shared memory",
    )
}


def advise(auxiliary: Auxiliary) -> Sequence[Advice]:
    return advice_by_cause(auxiliary, CODE, BOUND, judge, WORDINGS)


def judge(kernel: KernelMetrics) -> Fault | None:
    if max(kernel.tensor_pipe or 0.0, kernel.fma_pipe or 0.0) >= kernel_metrics.POLICY.busy:
        return None
    loads = _moved(
        kernel.global_load_sectors,
        kernel.l2_load_sectors,
        kernel.load_sectors,
        kernel.load_sectors_ideal,
    )
    stores = _moved(
        kernel.global_store_sectors,
        kernel.l2_store_sectors,
        kernel.store_sectors,
        kernel.store_sectors_ideal,
    )
    recorded = [sectors for sectors in (loads, stores) if sectors is not None]
    moved = sum(sectors[0] for sectors in recorded)
    if not moved:
        return None
    wasted = sum(sectors[1] for sectors in recorded) / moved
    if wasted < POLICY.wasted:
        return None
    return Fault(
        kernel=kernel,
        cause=SCATTERED,
        words=f"{_words(kernel)}; {wasted:.0%} of the sectors moved without need",
    )


def _moved(
    touched: float | None, beyond_l1: float | None, per_access: float | None, ideal: float | None
) -> tuple[float, float] | None:
    """Sectors between L1 and L2, and those of them that a coalesced access would not have
    needed."""
    if not touched or not per_access:
        return None
    needed = touched * min((ideal if ideal is not None else POLICY.widest) / per_access, 1.0)
    moved = touched if beyond_l1 is None else min(beyond_l1, touched)
    return moved, max(moved - needed, 0.0)


def _words(kernel: KernelMetrics) -> str:
    sides = (
        ("load", kernel.load_sectors, kernel.load_sectors_ideal),
        ("store", kernel.store_sectors, kernel.store_sectors_ideal),
    )
    return ", ".join(
        f"{sectors:.0f} sectors a {name}"
        + ("" if ideal is None else f" where {ideal:.0f} would do")
        for name, sectors, ideal in sides
        if sectors is not None and (ideal is None or round(ideal) < round(sectors))
    )


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, advise=advise)
