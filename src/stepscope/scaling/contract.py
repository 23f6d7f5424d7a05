"""`stepscope.scaling/1`: what `stepscope diagnose --scaling --format json` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import Struct

from stepscope.core.codec import Contract, Count, one_of
from stepscope.scaling.shapes import KINDS, Amdahl


class ScalingKind(Struct, frozen=True, kw_only=True):
    """Whether each rank's work stays as the job widens (weak), or all ranks' together (strong)."""

    kind: Annotated[str, one_of(*KINDS)] | None
    source: str
    because: str
    """What it was derived from."""


class Step(Struct, frozen=True, kw_only=True):
    """One run's step time and how sure it is."""

    count: Count
    ms: float | None
    low_ms: float | None
    high_ms: float | None
    profiled_ms: float | None
    source: str


class AgainstBase(Struct, frozen=True, kw_only=True):
    """How one run compares with the base run."""

    ideal_speedup: float
    speedup: float
    efficiency: float
    efficiency_low: float | None
    efficiency_high: float | None
    karp_flatt: float | None
    ideal_ms: float | None
    lost_ms: float | None
    lost_parts_ms: Mapping[str, float | None] | None
    worst: str | None
    """The part that lost most."""


class WidthRun(Struct, frozen=True, kw_only=True):
    """One run."""

    path: str
    width: int
    width_source: str
    ranks_read: int
    device: str | None
    step: Step
    partition_ms: Mapping[str, float | None] | None
    flops_per_rank: float | None
    gradient_bytes: float | None
    rate_per_s: float | None = None
    """The work done in a second, where rates were given in place of recordings."""
    rate_unit: str = ""
    against_base: AgainstBase | None
    """null for the base run."""
    notes: tuple[str, ...]


class ScalingContract(Contract, frozen=True, kw_only=True, tag="stepscope.scaling/1"):
    """What `stepscope diagnose --scaling` says of runs of several widths. null is 'not
    measured'."""

    scaling: ScalingKind
    runs: tuple[WidthRun, ...]
    amdahl: Amdahl | None
    notes: tuple[str, ...]
