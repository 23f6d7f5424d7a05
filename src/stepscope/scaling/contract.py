"""`stepscope.scaling/1`: what `stepscope diagnose --scaling --format json` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import Struct
from msgspec.structs import asdict

from stepscope.core.codec import Contract, Count, encode, one_of
from stepscope.core.scaling import WidthRun as MeasuredRun
from stepscope.scaling.shapes import KINDS, Amdahl, Gain, Scaling


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


def scaling_json(scaling: Scaling) -> str:
    """The document as indented text."""
    return encode(scaling_contract(scaling))


def scaling_contract(scaling: Scaling) -> ScalingContract:
    """What was not measured is null, never 0."""
    pairs = zip(scaling.runs, scaling.gains, strict=True)
    return ScalingContract(
        scaling=ScalingKind(kind=scaling.kind, source=scaling.kind_source, because=scaling.because),
        runs=tuple(_run(run, gain) for run, gain in pairs),
        amdahl=scaling.amdahl,
        notes=scaling.notes,
    )


def _run(run: MeasuredRun, gain: Gain | None) -> WidthRun:
    step = run.step
    return WidthRun(
        path=run.path,
        width=run.width,
        width_source=run.width_source,
        gradient_bytes=run.gradient_bytes,
        rate_per_s=run.rate_per_s,
        rate_unit=run.rate_unit,
        notes=run.notes,
        ranks_read=run.num_ranks,
        device=run.device_name,
        step=Step(
            count=step.count,
            source=step.source,
            ms=_ms(step.ns),
            low_ms=_ms(step.low_ns),
            high_ms=_ms(step.high_ns),
            profiled_ms=_ms(step.profiled_ns),
        ),
        partition_ms=_parts(run.parts_ns),
        flops_per_rank=run.flops,
        against_base=None if gain is None else _gain(gain),
    )


def _gain(gain: Gain) -> AgainstBase:
    loss = gain.loss
    of_speedup = asdict(gain)
    del of_speedup["loss"]
    return AgainstBase(
        **of_speedup,
        ideal_ms=None if loss is None else loss.ideal_ns / 1e6,
        lost_ms=None if loss is None else loss.lost_ns / 1e6,
        lost_parts_ms=None if loss is None else _parts(loss.parts_ns),
        worst=None if loss is None else loss.worst,
    )


def _parts(parts: Mapping[str, int | None] | None) -> dict[str, float | None] | None:
    return None if parts is None else {part: _ms(ns) for part, ns in parts.items()}


def _ms(ns: int | None) -> float | None:
    return None if ns is None else ns / 1e6
