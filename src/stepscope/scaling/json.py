"""Scaling as JSON: the document `stepscope.scaling/1`."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import asdict

from stepscope.core.codec import encode
from stepscope.core.scaling import WidthRun as MeasuredRun
from stepscope.scaling.contract import AgainstBase, ScalingContract, ScalingKind, Step, WidthRun
from stepscope.scaling.shapes import Gain, Scaling


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
