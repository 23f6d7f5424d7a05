"""A kernel's tuning as JSON: the contract `stepscope.kernel_tuning/1`."""

from __future__ import annotations

import math
from typing import Any

from stepscope.core.experiments.kernel_tuning import (
    Case,
    CaseResult,
    Deviation,
    Floor,
    Gain,
    KernelTuning,
    Timed,
    Trying,
)
from stepscope.protocol.json_text import json_text

SCHEMA = "stepscope.kernel_tuning/1"


def kernel_tuning_json(tuning: KernelTuning) -> str:
    """The contract as indented text."""
    return json_text(kernel_tuning_contract(tuning), indent=2)


def kernel_tuning_contract(tuning: KernelTuning) -> dict[str, Any]:
    """The contract as plain values. What was not measured is null, never 0. Configurations are
    named by their index."""
    return {
        "schema": SCHEMA,
        "what": tuning.what,
        "reference": tuning.reference,
        "device": {"name": tuning.device, "kind": tuning.device_kind},
        "versions": dict(tuning.versions),
        "measured": {"by": tuning.by, "caches": tuning.caches, "gradients": tuning.has_gradients},
        "check": {
            "tolerance": tuning.tolerance,
            "allowed": {
                dtype: {"worst": error.worst, "rms": error.rms}
                for dtype, error in tuning.allowed.items()
            },
            "cases": [_case(case) for case in tuning.checked],
            "gradients": tuning.gradients_checked,
        },
        "roofs": tuning.roofs,
        "configs": [_config(trying) for trying in tuning.tryings],
        "cases": [_result(result, tuning) for result in tuning.cases],
        "overall": tuning.overall,
        "wall_s": tuning.wall_s,
        "notes": list(tuning.notes),
    }


def _case(case: Case) -> dict[str, Any]:
    return {
        "shapes": [list(shape) for shape in case.shapes],
        "dtype": case.dtype,
        "timed": case.is_timed,
    }


def _config(trying: Trying) -> dict[str, Any]:
    return {
        "settings": dict(trying.settings),
        "outcome": trying.outcome,
        "why": trying.why,
        "failed_at": None if trying.failed_at is None else _case(trying.failed_at),
        "worst": None if trying.worst is None else _deviation(trying.worst),
        "num_checks": trying.num_checks,
    }


def _deviation(deviation: Deviation) -> dict[str, Any]:
    return {
        "case": _case(deviation.case),
        "output": deviation.output,
        "error": _finite(deviation.error),
        "allowed": _finite(deviation.allowed),
        "measure": deviation.measure,
    }


def _result(result: CaseResult, tuning: KernelTuning) -> dict[str, Any]:
    return {
        "case": _case(result.case),
        "floor": _floor(result.floor),
        "times": [None if timed is None else _timed(timed) for timed in result.times],
        "reference": None if result.reference is None else _timed(result.reference),
        "baseline": result.baseline,
        "winner": result.winner,
        "settings": None if result.winner is None else dict(tuning.tryings[result.winner].settings),
        "speedup": None if result.gain is None else _gain(result.gain),
        "share_of_floor": result.share_of_floor,
        "ties": list(result.ties),
    }


def _floor(floor: Floor) -> dict[str, Any]:
    return {
        "bytes": floor.bytes_moved,
        "flops": floor.flops,
        "ns": floor.ns,
        "bound": floor.bound,
        "fits_cache": floor.fits_cache,
    }


def _timed(timed: Timed) -> dict[str, Any]:
    return {
        "ns": timed.ns,
        "low_ns": timed.low_ns,
        "high_ns": timed.high_ns,
        "samples": timed.num_samples,
    }


def _gain(gain: Gain) -> dict[str, Any]:
    return {
        "value": gain.value,
        "low": gain.low,
        "high": _finite(gain.high),
        "pairs": gain.num_pairs,
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
