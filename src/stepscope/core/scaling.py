"""One run of a training job that was run at several widths.

A field is None when it was not measured. Times are integer nanoseconds, so that a loss and its
parts agree to the last one.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from stepscope.core.facts import PARTS

RANK_SPREAD = "rank_spread"
"""The step time less the mean over ranks: the step is the median rank's."""
UNPROFILED = "unprofiled"
"""The given step time less the recorded one: the parts were recorded under a profiler, the given
time was not."""

SCALING_PARTS = (*PARTS, RANK_SPREAD, UNPROFILED)
"""What a step time is made of here: the parts of a step as the mean over ranks, then what they
leave of it."""


class RunStep(Struct, frozen=True, kw_only=True):
    """One run's step time and how sure it is."""

    count: int
    """Whole steps measured on the rank with the median step."""
    ns: int | None
    profiled_ns: int | None
    source: str
    """given, trace or rate."""
    low_ns: int | None = None
    high_ns: int | None = None
    """Around the median of the recorded steps; None for a given time and where they are too few."""


class WidthRun(Struct, frozen=True, kw_only=True):
    """All that is kept of one run."""

    path: str
    width: int
    width_source: str
    """recorded (the traces' world size), counted (the ranks found), or of a rate: given, or where
    its log has it."""
    num_ranks: int
    """Ranks that were read."""
    step: RunStep
    parts_ns: Mapping[str, int | None] | None
    """Time by SCALING_PARTS, summing to the step; waits are None where they are not distinguished
    from transfers, which then hold both."""
    flops: float | None
    """The model's, of one rank and step: the mean over ranks."""
    gradient_bytes: float | None
    """Reduced in one step, on one rank."""
    device_name: str | None
    op_shares: Mapping[str, float]
    """Shares of the calls of all operators that compute."""
    notes: tuple[str, ...] = ()
    rate_per_s: float | None = None
    """Work done in a second, where that was given in place of steps."""
    rate_unit: str = ""

    def self_check(self) -> None:
        assert self.width >= 1
        if self.parts_ns is not None:
            assert set(self.parts_ns) == set(SCALING_PARTS)
            assert sum(ns or 0 for ns in self.parts_ns.values()) == self.step.ns
