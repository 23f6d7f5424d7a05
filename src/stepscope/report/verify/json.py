"""What verify proved, as JSON: the document `stepscope.verification/1`."""

from __future__ import annotations

import math

from stepscope.core.contract.codec import encode
from stepscope.core.contract.verification import (
    Change,
    Difference,
    Gap,
    Interval,
    Loss,
    Numerics,
    Prediction,
    Run,
    Side,
    SideLoss,
    SoFar,
    SoFarSides,
    VerificationContract,
)
from stepscope.core.experiments import experiment as core
from stepscope.core.experiments.trials import Change as TrialChange


def verified_json(verified: core.Verified) -> str:
    """The document as indented text."""
    return encode(verified_contract(verified))


def verified_contract(verified: core.Verified) -> VerificationContract:
    """What was not measured is null, never 0."""
    return VerificationContract(
        verdict=verified.verdict,
        because=verified.because,
        speedup=_interval(verified.speedup),
        smallest_shown=_number(verified.smallest),
        unit="sample" if verified.per_sample else "step",
        baseline=_side(verified, core.BASELINE, verified.baseline),
        candidate=_side(verified, core.CANDIDATE, verified.candidate),
        rounds=verified.num_rounds,
        looks=verified.num_looks,
        wall_s=verified.wall_s,
        interrupted=verified.is_interrupted,
        so_far=_so_far_sides(verified),
        differences=tuple(map(_difference, verified.differences)),
        refusals=verified.refusals,
        tail=verified.tail,
        loss=None if verified.loss is None else _loss(verified.loss),
        numerics=None if verified.check is None else _numerics(verified.check),
        prediction=None if verified.prediction is None else _prediction(verified.prediction),
        runs=tuple(map(_run, verified.runs)),
        notes=verified.notes,
        folder=verified.folder,
    )


def _side(verified: core.Verified, side: core.Side, summary: core.SideSummary) -> Side:
    change = verified.changes.get(side, TrialChange())
    return Side(
        command=verified.commands.get(side),
        change=Change(
            environment=change.environment,
            knobs=change.knobs,
            arguments=change.arguments,
        ),
        runs=summary.num_runs,
        ms=_ms(summary.step_ns),
        mean_ms=_ms(summary.mean_ns),
        run_spread=summary.run_spread,
    )


def _so_far_sides(verified: core.Verified) -> SoFarSides | None:
    if not verified.so_far:
        return None
    return SoFarSides(
        baseline=_so_far(verified.so_far.get(core.BASELINE)),
        candidate=_so_far(verified.so_far.get(core.CANDIDATE)),
    )


def _so_far(side: core.SoFar | None) -> SoFar | None:
    if side is None:
        return None
    return SoFar(runs=side.num_runs, steps=side.num_steps, median_ms=side.median_ns / 1e6)


def _interval(interval: core.Interval | None) -> Interval | None:
    if interval is None:
        return None
    return Interval(
        value=interval.value,
        low=interval.low if interval.is_bounded else None,
        high=_number(interval.high),
        level=interval.level,
    )


def _run(run: core.Measured) -> Run:
    trial = run.trial
    return Run(
        side=run.side,
        round=run.round,
        folder=trial.folder,
        steps=len(trial.step_ns),
        ms=_ms(run.pace_ns),
        wall_s=trial.wall_s,
        exit_code=trial.exit_code,
        on_device=trial.on_device,
    )


def _difference(difference: core.Difference) -> Difference:
    return Difference(
        what=difference.what,
        baseline=difference.baseline,
        candidate=difference.candidate,
        allowed=difference.is_allowed,
    )


def _loss(check: core.LossCheck) -> Loss:
    return Loss(
        verdict=check.verdict,
        because=check.because,
        baseline=_side_loss(check.baseline),
        candidate=_side_loss(check.candidate),
    )


def _side_loss(side: core.SideLoss) -> SideLoss:
    return SideLoss(
        runs=side.num_runs,
        first=_number(side.first),
        last=_number(side.last),
        runs_not_finite=side.num_not_finite,
        not_finite_step=side.not_finite_step,
    )


def _numerics(check: core.NumericsCheck) -> Numerics:
    return Numerics(
        verdict=check.verdict,
        because=check.because,
        tolerance=check.tolerance,
        deterministic=check.is_deterministic,
        loss=_gap(check.loss),
        grad_norm=_gap(check.grad_norm),
        parameter_norm=_gap(check.parameter_norm),
        loss_floor=_gap(check.loss_floor),
        grad_norm_floor=_gap(check.grad_norm_floor),
        parameter_norm_floor=_gap(check.parameter_norm_floor),
        parameters_equal=check.num_parameters_equal,
        parameters_compared=check.num_parameters_compared,
    )


def _gap(gap: core.Gap) -> Gap:
    return Gap(
        steps=gap.num,
        largest=_number(gap.largest),
        is_number=gap.largest is None or math.isfinite(gap.largest),
        at_step=gap.at_step,
        first_step=gap.first_step,
    )


def _prediction(prediction: core.Prediction) -> Prediction:
    return Prediction(
        value=prediction.value,
        low=prediction.low,
        high=prediction.high,
        source=prediction.source,
        verdict=prediction.verdict,
    )


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _ms(ns: float | None) -> float | None:
    return None if ns is None else ns / 1e6
