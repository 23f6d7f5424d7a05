"""Warps of a kernel wait for each other at barriers.

What it sees: at least 30 % of the warps' time spent at `__syncthreads()` or another barrier of the
block, in a kernel that is near no peak.

Why it costs: a block goes on when its last warp arrives. Where warps have unlike work before the
barrier, or barriers come every few instructions, the others stand still; with one large block on a
multiprocessor nothing else runs meanwhile.

Evidence it needs: Nsight Compute with `--set full` (WarpStateStats, SpeedOfLight). A kernel whose
tensor pipe is busy is left alone: its producers and consumers meet at barriers by design.

What to do: smaller blocks, so that several share a multiprocessor and one runs while another waits;
even work between barriers; reductions in registers with warp shuffles before the one barrier
(cub::BlockReduce); `__syncwarp` or `cuda::pipeline` where a whole block need not meet. Triton:
fewer warps a program.

Example: a reduction that halves its threads in shared memory meets at ten barriers, with half of
the threads idle after the first.
"""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.api import Advice, Auxiliary, Rule
from stepscope.core.recordings.kernels import KernelMetrics
from stepscope.recordings.ncu.kernel_metrics import (
    POLICY,
    Fault,
    Wording,
    advice_by_cause,
    is_waiting,
)

CODE = "barrier-stalls"
BOUND = "compute"
BARRIER = "barrier"
WORDINGS = {
    BARRIER: Wording(
        summary="Warps of {kernels} stand at barriers.",
        action="smaller blocks, several on a multiprocessor; even work between barriers; warp "
        "shuffles before the one barrier",
    )
}


def advise(auxiliary: Auxiliary) -> Sequence[Advice]:
    return advice_by_cause(auxiliary, CODE, BOUND, judge, WORDINGS)


def judge(kernel: KernelMetrics) -> Fault | None:
    share = kernel.stalls.get("barrier", 0.0)
    if share < POLICY.stalled or not is_waiting(kernel):
        return None
    block = ""
    if kernel.block is not None:
        block = f", blocks of {kernel.block[0] * kernel.block[1] * kernel.block[2]} threads"
    return Fault(
        kernel=kernel, cause=BARRIER, words=f"{share:.0%} of the warps' time at barriers{block}"
    )


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, advise=advise)
