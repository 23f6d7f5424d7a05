"""Scaling as JSON: the contract `stepscope.scaling/1`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepscope.core.scaling import Gain, Scaling, WidthRun
from stepscope.protocol.json_text import json_text

SCHEMA = "stepscope.scaling/1"


def scaling_json(scaling: Scaling) -> str:
    """The contract as indented text."""
    return json_text(scaling_contract(scaling), indent=2)


def scaling_contract(scaling: Scaling) -> dict[str, Any]:
    """The contract as plain values. What was not measured is null, never 0."""
    amdahl = scaling.amdahl
    return {
        "schema": SCHEMA,
        "scaling": {"kind": scaling.kind, "source": scaling.kind_source, "because": scaling.because},
        "runs": [_run(run, gain) for run, gain in zip(scaling.runs, scaling.gains, strict=True)],
        "amdahl": None
        if amdahl is None
        else {"serial_fraction": amdahl.serial_fraction, "worst": amdahl.worst, "num_widths": amdahl.num_widths},
        "notes": list(scaling.notes),
    }


def _run(run: WidthRun, gain: Gain | None) -> dict[str, Any]:
    step = run.step
    return {
        "path": run.path,
        "width": run.width,
        "width_source": run.width_source,
        "ranks_read": run.num_ranks,
        "device": run.device_name,
        "step": {
            "count": step.count,
            "ms": _ms(step.ns),
            "low_ms": _ms(step.low_ns),
            "high_ms": _ms(step.high_ns),
            "profiled_ms": _ms(step.profiled_ns),
            "source": step.source,
        },
        "partition_ms": _parts(run.parts_ns),
        "flops_per_rank": run.flops,
        "gradient_bytes": run.gradient_bytes,
        "against_base": None if gain is None else _gain(gain),
        "notes": list(run.notes),
    }


def _gain(gain: Gain) -> dict[str, Any]:
    loss = gain.loss
    return {
        "ideal_speedup": gain.ideal_speedup,
        "speedup": gain.speedup,
        "efficiency": gain.efficiency,
        "efficiency_low": gain.efficiency_low,
        "efficiency_high": gain.efficiency_high,
        "karp_flatt": gain.karp_flatt,
        "ideal_ms": _ms(loss.ideal_ns),
        "lost_ms": _ms(loss.lost_ns),
        "lost_parts_ms": _parts(loss.parts_ns),
        "worst": loss.worst,
    }


def _parts(parts: Mapping[str, int | None] | None) -> dict[str, float | None] | None:
    return None if parts is None else {part: _ms(ns) for part, ns in parts.items()}


def _ms(ns: int | None) -> float | None:
    return None if ns is None else ns / 1e6
