"""A search as JSON: the document `stepscope.tuning/1`."""

from __future__ import annotations

import math

from stepscope.core.contract.codec import encode, filled
from stepscope.report.verify.json import verified_contract
from stepscope.tune.contract.tuning import NumericsVerdict, Trial, TuningContract, Winner
from stepscope.tune.shapes.tuning import Tried, Tuning


def tuning_json(tuning: Tuning) -> str:
    """The document as indented text."""
    return encode(tuning_contract(tuning))


def tuning_contract(tuning: Tuning) -> TuningContract:
    """What was not measured is null, never 0."""
    check = tuning.check
    return filled(
        TuningContract,
        tuning,
        settings_in_space=tuning.size,
        baseline=_trial(tuning.baseline),
        winner=_winner(tuning),
        trials=tuple(map(_trial, tuning.trials)),
        numerics=None if check is None else filled(NumericsVerdict, check),
        verification=None if tuning.verified is None else verified_contract(tuning.verified),
        budget=tuning.spent,
        device=tuning.setup.device,
        versions=tuning.setup.versions,
    )


def _winner(tuning: Tuning) -> Winner | None:
    winner = tuning.winner
    if winner is None:
        return None
    return filled(
        Winner,
        winner,
        ms=_ms(winner.ns),
        trial_speedup=winner.speedup,
        proven=tuning.is_proven,
    )


def _trial(tried: Tried) -> Trial:
    return filled(Trial, tried, ms=_ms(tried.ns), step_ms=_ms(tried.step_ns), steps=tried.num_steps)


def _ms(ns: float | None) -> float | None:
    return None if ns is None or not math.isfinite(ns) else ns / 1e6
