"""What verify proved, as JSON: the document `stepscope.verification/1`."""

from __future__ import annotations

import math

from stepscope.core.contract.codec import encode, filled
from stepscope.core.contract.verification import (
    Change,
    Difference,
    Interval,
    Run,
    Side,
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
    return filled(
        VerificationContract,
        verified,
        speedup=_interval(verified.speedup),
        smallest_shown=_number(verified.smallest),
        unit="sample" if verified.per_sample else "step",
        baseline=_side(verified, core.BASELINE, verified.baseline),
        candidate=_side(verified, core.CANDIDATE, verified.candidate),
        rounds=verified.num_rounds,
        looks=verified.num_looks,
        interrupted=verified.is_interrupted,
        so_far=_so_far_sides(verified),
        differences=tuple(
            filled(Difference, difference, allowed=difference.is_allowed)
            for difference in verified.differences
        ),
        numerics=verified.check,
        runs=tuple(map(_run, verified.runs)),
    )


def _side(verified: core.Verified, side: core.Side, summary: core.SideSummary) -> Side:
    return filled(
        Side,
        summary,
        command=verified.commands.get(side),
        change=filled(Change, verified.changes.get(side, TrialChange())),
        runs=summary.num_runs,
        ms=_ms(summary.step_ns),
        mean_ms=_ms(summary.mean_ns),
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
    return filled(
        Run,
        trial,
        side=run.side,
        round=run.round,
        steps=len(trial.step_ns),
        ms=_ms(run.step_ns),
    )


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _ms(ns: float | None) -> float | None:
    return None if ns is None else ns / 1e6
