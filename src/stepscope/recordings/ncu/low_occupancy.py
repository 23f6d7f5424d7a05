"""A kernel holds too few warps to hide what it waits for.

What it sees: a kernel that is near no peak (below 60 % of the arithmetic, DRAM, L2 and L1) while
its multiprocessors hold less than half of the warps they could, and what keeps more from fitting:
registers, shared memory, the size of its blocks, or a grid with too few of them (its blocks would
fill half of the device or less).

Why it costs: a multiprocessor hides a wait by running another warp. With few warps it stands still
whenever these wait.

Evidence it needs: Nsight Compute with `--set full`, or at least its sections SpeedOfLight,
Occupancy and LaunchStats. A kernel whose tensor pipe or DRAM is busy is left alone: a good matrix
product holds a fifth of the warps, and needs no more.

What to do: registers: `__launch_bounds__`, smaller tiles, fewer live values (Triton: smaller
blocks, more or fewer `num_warps`). Shared memory: smaller tiles or fewer stages. A small grid:
larger batches, split the long axis over blocks (split-K, a reduction in two steps), or run
independent kernels together (CUDA graphs, streams). Not your kernel: torch.compile may fuse it
away.

Example: the gradient of a layer norm's weights launched 32 blocks on the 132 multiprocessors of an
H200: 0.12 waves, work on the device in 21 % of its time, 33 % of the DRAM's peak.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from stepscope.api import Advice, Auxiliary, Rule
from stepscope.core.recordings.kernels import KernelMetrics
from stepscope.recordings.ncu.kernel_metrics import (
    Fault,
    Wording,
    advice_by_cause,
    fills_device,
    is_waiting,
)

CODE = "low-occupancy"
BOUND = "compute"


class Policy(Struct, frozen=True, kw_only=True):
    low: float = 0.5
    """Share of the warps a multiprocessor can hold. The CUDA C++ Best Practices Guide (Occupancy)
    gives no number: low occupancy always interferes with hiding latency, and above some point more
    of it does not help. Half is where we begin to speak."""
    kept: float = 0.8
    """Share of what the launch allows below which blocks end too early or unevenly.
    LaunchStatistics.py of Nsight Compute: 0.8."""


POLICY = Policy()
GRID, UNEVEN = "grid", "uneven"
WORDINGS = {
    "registers": Wording(
        summary="Registers keep {kernels} from holding enough warps to hide latency.",
        action="fewer registers a thread: __launch_bounds__, smaller tiles (Triton: smaller "
        "blocks, another num_warps)",
    ),
    "shared memory": Wording(
        summary="Shared memory keeps {kernels} from holding enough warps to hide latency.",
        action="less shared memory a block: smaller tiles, fewer "
        "pipeline stages (Triton: num_stages)",
    ),
    "blocks": Wording(
        summary="Blocks of few threads keep {kernels} from holding enough warps to hide latency.",
        action="more threads a block: 128 to 256 is where to begin",
    ),
    "warps": Wording(
        summary="Large blocks keep {kernels} from holding enough warps to hide latency.",
        action="blocks whose warps divide what a multiprocessor holds: 128 or 256 threads",
    ),
    "barriers": Wording(
        summary="Named barriers keep {kernels} from holding enough warps to hide latency.",
        action="fewer named barriers a block",
    ),
    GRID: Wording(
        summary="The grid of {kernels} does not fill the device.",
        action="more blocks: a larger batch, the long axis split over blocks; or small kernels "
        "together (CUDA graphs, fusion)",
    ),
    UNEVEN: Wording(
        summary="Warps of {kernels} end early and leave the multiprocessors half empty.",
        action="more work a thread (several elements each), and even work in all blocks",
    ),
}


def advise(auxiliary: Auxiliary) -> Sequence[Advice]:
    return advice_by_cause(auxiliary, CODE, BOUND, judge, WORDINGS)


def judge(kernel: KernelMetrics) -> Fault | None:
    """Judge by what keeps more warps away; nothing where a unit is busy all the same."""
    occupancy, allowed = kernel.occupancy, kernel.theoretical_occupancy
    if occupancy is None or allowed is None or not is_waiting(kernel):
        return None
    if not fills_device(kernel):
        return Fault(kernel=kernel, cause=GRID, words=_grid_words(kernel))
    words = f"{occupancy:.0%} of the warps held, {allowed:.0%} allowed by its launch"
    if allowed < POLICY.low and kernel.limiters:
        return Fault(
            kernel=kernel, cause=kernel.limiters[0], words=f"{words}; {_limit_words(kernel)}"
        )
    if occupancy < POLICY.low and occupancy < POLICY.kept * allowed * min(
        1.0 if kernel.waves is None else kernel.waves, 1.0
    ):
        return Fault(kernel=kernel, cause=UNEVEN, words=words)
    return None


def _limit_words(kernel: KernelMetrics) -> str:
    amounts = {}
    if kernel.registers is not None:
        amounts["registers"] = f"{kernel.registers:.0f} registers a thread"
    if kernel.shared_bytes is not None:
        amounts["shared memory"] = f"{kernel.shared_bytes / 1024:.0f} KiB of shared memory a block"
    return " and ".join(amounts.get(limiter, limiter) for limiter in kernel.limiters)


def _grid_words(kernel: KernelMetrics) -> str:
    blocks = (
        "" if kernel.grid is None else f"{kernel.grid[0] * kernel.grid[1] * kernel.grid[2]} blocks"
    )
    on = ""
    if kernel.num_multiprocessors is not None:
        on = f" on {kernel.num_multiprocessors} multiprocessors"
    busy = "" if kernel.active is None else f"; these have work in {kernel.active:.0%} of its time"
    return f"{blocks}{on}, {kernel.waves:.2f} waves{busy}".lstrip(" ,")


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, advise=advise)
