"""A search as JSON: the document `stepscope.tuning/1`."""

from __future__ import annotations

import math

from stepscope.core.contract.codec import encode
from stepscope.core.contract.tuning import (
    Budget,
    Knob,
    NumericsVerdict,
    Trial,
    TuningContract,
    Winner,
)
from stepscope.core.experiments.tuning import Spent, Tried, Tuning
from stepscope.report.verify.json import verified_contract


def tuning_json(tuning: Tuning) -> str:
    """The document as indented text."""
    return encode(tuning_contract(tuning))


def tuning_contract(tuning: Tuning) -> TuningContract:
    """What was not measured is null, never 0."""
    return TuningContract(
        command=tuning.command,
        verdict=tuning.verdict,
        because=tuning.because,
        per=tuning.per,
        knobs=tuple(Knob(name=knob.name, values=knob.words, way=knob.way) for knob in tuning.knobs),
        settings_in_space=tuning.size,
        baseline=_trial(tuning.baseline),
        winner=_winner(tuning),
        trials=tuple(map(_trial, tuning.trials)),
        importance=tuning.importance,
        numerics=_numerics(tuning),
        verification=None if tuning.verified is None else verified_contract(tuning.verified),
        ended=tuning.ended,
        wall_s=tuning.wall_s,
        budget=None if tuning.spent is None else _budget(tuning.spent),
        device=tuning.setup.device,
        versions=tuning.setup.versions,
        notes=tuning.notes,
    )


def _winner(tuning: Tuning) -> Winner | None:
    winner = tuning.winner
    if winner is None:
        return None
    return Winner(
        settings=winner.settings,
        ms=_ms(winner.ns),
        trial_speedup=winner.speedup,
        proven=tuning.is_proven,
        words=winner.words,
    )


def _numerics(tuning: Tuning) -> NumericsVerdict | None:
    check = tuning.check
    return None if check is None else NumericsVerdict(verdict=check.verdict, because=check.because)


def _budget(spent: Spent) -> Budget:
    return Budget(
        total_s=spent.total_s,
        kept_for_proof_s=spent.kept_s,
        rounds_kept=spent.num_rounds,
        run_s=spent.run_s,
        search_s=spent.search_s,
        proof_s=spent.proof_s,
    )


def _trial(tried: Tried) -> Trial:
    return Trial(
        number=tried.number,
        settings=tried.settings,
        state=tried.state,
        ms=_ms(tried.ns),
        step_ms=_ms(tried.step_ns),
        steps=tried.num_steps,
        wall_s=tried.wall_s,
        why=tried.why,
        origin=tried.origin,
        host=tried.host,
        not_taken=tried.not_taken,
    )


def _ms(ns: float | None) -> float | None:
    return None if ns is None or not math.isfinite(ns) else ns / 1e6
