"""Where the device's dense peak goes: from all of it down to what the model's FLOPs used.

A budget is time at the peak. Every nanosecond of it is in exactly one part.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import Struct

from stepscope.core.codec import AboveZero, Count, Share, one_of

ACHIEVED = "achieved"
COMPUTE_PARTS = (
    ACHIEVED, "recomputation", "precision", "memory_bound", "vector_arithmetic", "not_filled",
    "below_bandwidth", "below_peak", "unknown_work",
)  # fmt: skip
"""What a kernel's time is, in the order in which it is charged: where kernels overlap, what comes
first is kept, for the time counts once."""

IDLE_PARTS = (
    "idle_input", "idle_sync", "idle_launch", "idle_allocator", "idle_compile", "idle_io",
    "idle_other",
)  # fmt: skip
"""Parts of a step in which the device has nothing to do."""
WATERFALL_PARTS = (
    *IDLE_PARTS, "comms_wait", "comms_transfer", "transfer", "recomputation", "precision",
    "memory_bound", "below_bandwidth", "vector_arithmetic", "not_filled", "clock", "below_peak",
    "unknown_work", "unexplained", ACHIEVED,
)  # fmt: skip
"""Parts from the top of the picture to its foot."""


class ComputeSplit(Struct, frozen=True, kw_only=True):
    """Compute, the part of a step, split by what keeps it from the peak; rows follow
    `Steps.windows`."""

    device: str | None = None
    """None where its peaks are not known: then all work is unknown."""
    precision: str | None = None
    """Precision whose dense peak is the whole."""
    peak_flops: float | None = None
    num_sms: int | None = None
    parts: Mapping[str, tuple[int, ...]]
    """Nanoseconds by part of COMPUTE_PARTS; one that could not be measured is absent."""
    arithmetic_ns: tuple[int, ...] = ()
    """Time in kernels that arithmetic limits: what a lower clock lengthens."""


class GivenWork(Struct, frozen=True, kw_only=True):
    """What a user says of a job that has no trace."""

    device: str
    precision: str
    peak_flops: float
    """Dense peak of one device, in FLOP/s."""
    step_flops: float | None = None
    """The model's, of one step on one device; None where the model was not given."""


class PeakPart(Struct, frozen=True, kw_only=True):
    """One step of the waterfall."""

    what: Annotated[str, one_of(*WATERFALL_PARTS)]
    ns: Count
    share: Share
    """Share of the whole."""


class PeakWaterfall(Struct, frozen=True, kw_only=True):
    """Waterfall from 100 % of the device's dense peak down to what was achieved. The parts sum to
    the whole; one that is absent could not be measured."""

    device: str | None
    """null where ranks have several, or its peaks are not known."""
    precision: str | None
    """Precision whose dense peak is the whole: the fastest that the run uses, bf16 or fp16 at
    least."""
    peak_flops: AboveZero | None
    """Peak of one device, in FLOP/s."""
    num_ranks: Count
    num_steps: Count
    """Steps of each rank in the sums: the median step, or the two in the middle."""
    total_ns: Count
    """All their time, on all ranks."""
    parts: tuple[PeakPart, ...]
    achieved: Share | None
    """Model FLOPs over what the peak gives in that time; null where no work is known."""
    is_least: bool
    """Whether more may have been achieved: the work of too few matrix kernels is known."""
    source: Annotated[str, one_of("trace", "log")]
    """Recorded steps, while profiled; or the job's own log, which tells less."""

    def self_check(self) -> None:
        """Assert that no part is negative, and that they sum to the whole."""
        assert all(part.ns >= 0 for part in self.parts)
        assert len({part.what for part in self.parts}) == len(self.parts)
        assert sum(part.ns for part in self.parts) == self.total_ns, "the parts are not the whole"


def waterfall_parts(parts_ns: Mapping[str, int], total_ns: int) -> tuple[PeakPart, ...]:
    """Parts in the order they are shown."""
    return tuple(
        PeakPart(what=what, ns=parts_ns[what], share=parts_ns[what] / total_ns if total_ns else 0.0)
        for what in WATERFALL_PARTS
        if what in parts_ns
    )
