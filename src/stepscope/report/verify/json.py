"""What verify proved, as JSON: the contract `stepscope.verification/1`."""

from __future__ import annotations

import math
from typing import Any

from stepscope.core.experiment import (
    BASELINE,
    CANDIDATE,
    Difference,
    Gap,
    Interval,
    LossCheck,
    Measured,
    NumericsCheck,
    Prediction,
    Side,
    SideLoss,
    SideSummary,
    SoFar,
    Verified,
)
from stepscope.core.trials import Change
from stepscope.protocol.json_text import json_text

SCHEMA = "stepscope.verification/1"


def verified_json(verified: Verified) -> str:
    """The contract as indented text."""
    return json_text(verified_contract(verified), indent=2)


def verified_contract(verified: Verified) -> dict[str, Any]:
    """The contract as plain values. What was not measured is null, never 0."""
    return {
        "schema": SCHEMA,
        "verdict": verified.verdict,
        "because": verified.because,
        "speedup": _interval(verified.speedup),
        "smallest_shown": _number(verified.smallest),
        "unit": "sample" if verified.per_sample else "step",
        "baseline": _side(verified, BASELINE, verified.baseline),
        "candidate": _side(verified, CANDIDATE, verified.candidate),
        "rounds": verified.num_rounds,
        "looks": verified.num_looks,
        "wall_s": verified.wall_s,
        "interrupted": verified.is_interrupted,
        "so_far": {side: _so_far(verified.so_far.get(side)) for side in (BASELINE, CANDIDATE)} if verified.so_far else None,
        "differences": [_difference(one) for one in verified.differences],
        "refusals": list(verified.refusals),
        "tail": verified.tail,
        "loss": None if verified.loss is None else _loss(verified.loss),
        "numerics": None if verified.check is None else _check(verified.check),
        "prediction": None if verified.prediction is None else _prediction(verified.prediction),
        "runs": [_run(run) for run in verified.runs],
        "notes": list(verified.notes),
        "folder": verified.folder,
    }


def _side(verified: Verified, side: Side, summary: SideSummary) -> dict[str, Any]:
    return {
        "command": verified.commands.get(side),
        "change": _change(verified.changes.get(side, Change())),
        "runs": summary.num_runs,
        "ms": _ms(summary.step_ns),
        "mean_ms": _ms(summary.mean_ns),
        "run_spread": summary.run_spread,
    }


def _so_far(one: SoFar | None) -> dict[str, Any] | None:
    return None if one is None else {"runs": one.num_runs, "steps": one.num_steps, "median_ms": _ms(one.median_ns)}


def _change(change: Change) -> dict[str, Any]:
    return {"environment": dict(change.environment), "knobs": dict(change.knobs), "arguments": list(change.arguments)}


def _interval(interval: Interval | None) -> dict[str, Any] | None:
    if interval is None:
        return None
    low = interval.low if interval.is_bounded else None
    return {"value": interval.value, "low": low, "high": _number(interval.high), "level": interval.level}


def _run(run: Measured) -> dict[str, Any]:
    trial = run.trial
    return {
        "side": run.side,
        "round": run.round,
        "folder": trial.folder,
        "steps": len(trial.step_ns),
        "ms": _ms(run.pace_ns),
        "wall_s": trial.wall_s,
        "exit_code": trial.exit_code,
        "on_device": trial.on_device,
    }


def _difference(one: Difference) -> dict[str, Any]:
    return {"what": one.what, "baseline": one.baseline, "candidate": one.candidate, "allowed": one.is_allowed}


def _loss(check: LossCheck) -> dict[str, Any]:
    return {
        "verdict": check.verdict,
        "because": check.because,
        "baseline": _side_loss(check.baseline),
        "candidate": _side_loss(check.candidate),
    }


def _side_loss(side: SideLoss) -> dict[str, Any]:
    return {
        "runs": side.num_runs,
        "first": _number(side.first),
        "last": _number(side.last),
        "runs_not_finite": side.num_not_finite,
        "not_finite_step": side.not_finite_step,
    }


def _check(check: NumericsCheck) -> dict[str, Any]:
    return {
        "verdict": check.verdict,
        "because": check.because,
        "tolerance": check.tolerance,
        "deterministic": check.is_deterministic,
        "loss": _gap(check.loss),
        "grad_norm": _gap(check.grad_norm),
        "parameter_norm": _gap(check.parameter_norm),
        "loss_floor": _gap(check.loss_floor),
        "grad_norm_floor": _gap(check.grad_norm_floor),
        "parameter_norm_floor": _gap(check.parameter_norm_floor),
        "parameters_equal": check.num_parameters_equal,
        "parameters_compared": check.num_parameters_compared,
    }


def _gap(gap: Gap) -> dict[str, Any]:
    is_number = gap.largest is None or math.isfinite(gap.largest)
    return {
        "steps": gap.num,
        "largest": _number(gap.largest),
        "is_number": is_number,
        "at_step": gap.at_step,
        "first_step": gap.first_step,
    }


def _prediction(prediction: Prediction) -> dict[str, Any]:
    return {
        "value": prediction.value,
        "low": prediction.low,
        "high": prediction.high,
        "source": prediction.source,
        "verdict": prediction.verdict,
    }


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _ms(ns: float | None) -> float | None:
    return None if ns is None else ns / 1e6
