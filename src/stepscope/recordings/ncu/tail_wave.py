"""The last blocks of a kernel run on a device that is nearly empty.

What it sees: a grid of few waves whose last one is small: 1.1 waves take the time of 2. It shows as
multiprocessors without work, or as fewer warps than the launch allows.

Why it costs: a wave is as many blocks as the device holds at once. Where all blocks take alike, a
wave that is a tenth full takes as long as a full one; after five full waves that no longer matters.

Evidence it needs: Nsight Compute with its sections LaunchStats, Occupancy and SpeedOfLight (the
basic set has them).

What to do: choose tiles so that the grid is just below a whole number of waves; smaller blocks, of
which more fit and the last wave is finer; a persistent kernel that hands out work (stream-K for
matrix products). In a model: batch sizes and dimensions that divide well; 132 multiprocessors and
tiles of 128 x 256 say which.

Example: 140 blocks on the 132 multiprocessors of an H200, one on each: the second wave has 8
blocks, and 47 % of the device's time is empty.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from stepscope.api import Advice, Auxiliary, Rule
from stepscope.core.recordings.kernels import KernelMetrics
from stepscope.recordings.ncu.kernel_metrics import Fault, Wording, advice_by_cause

CODE = "tail-wave"
BOUND = "compute"


class Policy(Struct, frozen=True, kw_only=True):
    idle: float = 0.2
    """Share of the room of all waves that the last one leaves empty. LaunchStatistics.py of Nsight
    Compute speaks of a tail that may take 20 % of the time: up to four full waves."""
    kept: float = 0.8
    """Share of the allowed warps below which they are fewer than the launch allows: the same rule's
    second sign."""
    active: float = 0.85
    """Share of the time in which a multiprocessor has work below which some stand empty. A copy of
    torch over 121 waves on an H200: 0.99; one over 3.9, with its start and end: 0.86."""
    near_roof: float = 0.8
    """Share of a peak from which there is little to gain. SpeedOfLight.py: no_bound_threshold =
    80."""


POLICY = Policy()
TAIL = "tail"
WORDINGS = {
    TAIL: Wording(
        summary="The last wave of {kernels} leaves much of the device empty.",
        action="tiles or batch sizes for a grid just below a whole number of waves; smaller "
        "blocks; a persistent kernel",
    )
}


def advise(auxiliary: Auxiliary) -> Sequence[Advice]:
    return advice_by_cause(auxiliary, CODE, BOUND, judge, WORDINGS)


def judge(kernel: KernelMetrics) -> Fault | None:
    waves = kernel.waves
    if waves is None or not math.isfinite(waves) or waves < 1:
        return None
    idle = 1 - waves / math.ceil(waves)
    roof = kernel.roof
    if (
        idle < POLICY.idle
        or not _shows(kernel)
        or (roof is not None and roof[1] >= POLICY.near_roof)
    ):
        return None
    return Fault(
        kernel=kernel,
        cause=TAIL,
        words=f"{waves:.2f} waves take the time of {math.ceil(waves)}: {idle:.0%} of their room is "
        "empty",
    )


def _shows(kernel: KernelMetrics) -> bool:
    """Whether the measurement bears it out: blocks that end unevenly may fill the gap."""
    few = kernel.occupancy is not None and kernel.theoretical_occupancy is not None
    fewer = few and (kernel.occupancy or 0.0) < POLICY.kept * (kernel.theoretical_occupancy or 0.0)
    return fewer or (kernel.active is not None and kernel.active < POLICY.active)


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, advise=advise)
