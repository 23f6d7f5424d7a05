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


def kernel_tuning_json(found: KernelTuning) -> str:
    """The contract as indented text."""
    return json_text(kernel_tuning_contract(found), indent=2)


def kernel_tuning_contract(found: KernelTuning) -> dict[str, Any]:
    """The contract as plain values. What was not measured is null, never 0. Configurations are
    named by their place."""
    return {
        "schema": SCHEMA,
        "what": found.what,
        "reference": found.reference,
        "device": {"name": found.device, "kind": found.device_kind},
        "versions": dict(found.versions),
        "measured": {"by": found.by, "caches": found.caches, "gradients": found.has_gradients},
        "check": {
            "tolerance": found.tolerance,
            "allowed": {
                dtype: {"worst": one.worst, "rms": one.rms} for dtype, one in found.allowed.items()
            },
            "cases": [_case(case) for case in found.checked],
            "gradients": found.gradients_checked,
        },
        "roofs": found.roofs,
        "configs": [_config(one) for one in found.tryings],
        "cases": [_result(one, found) for one in found.cases],
        "overall": found.overall,
        "wall_s": found.wall_s,
        "notes": list(found.notes),
    }


def _case(case: Case) -> dict[str, Any]:
    return {
        "shapes": [list(shape) for shape in case.shapes],
        "dtype": case.dtype,
        "timed": case.is_timed,
    }


def _config(one: Trying) -> dict[str, Any]:
    return {
        "settings": dict(one.settings),
        "outcome": one.outcome,
        "why": one.why,
        "failed_at": None if one.failed_at is None else _case(one.failed_at),
        "worst": None if one.worst is None else _deviation(one.worst),
        "num_checks": one.num_checks,
    }


def _deviation(one: Deviation) -> dict[str, Any]:
    return {
        "case": _case(one.case),
        "output": one.output,
        "error": _finite(one.error),
        "allowed": _finite(one.allowed),
        "measure": one.measure,
    }


def _result(one: CaseResult, found: KernelTuning) -> dict[str, Any]:
    return {
        "case": _case(one.case),
        "floor": _floor(one.floor),
        "times": [None if told is None else _timed(told) for told in one.times],
        "reference": None if one.reference is None else _timed(one.reference),
        "baseline": one.baseline,
        "winner": one.winner,
        "settings": None if one.winner is None else dict(found.tryings[one.winner].settings),
        "speedup": None if one.gain is None else _gain(one.gain),
        "share_of_floor": one.share_of_floor,
        "ties": list(one.ties),
    }


def _floor(one: Floor) -> dict[str, Any]:
    return {
        "bytes": one.bytes_moved,
        "flops": one.flops,
        "ns": one.ns,
        "bound": one.bound,
        "fits_cache": one.fits_cache,
    }


def _timed(one: Timed) -> dict[str, Any]:
    return {"ns": one.ns, "low_ns": one.low_ns, "high_ns": one.high_ns, "samples": one.num_samples}


def _gain(one: Gain) -> dict[str, Any]:
    return {"value": one.value, "low": one.low, "high": _finite(one.high), "pairs": one.num_pairs}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
