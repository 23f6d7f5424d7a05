"""A search as JSON: the contract `stepscope.tuning/1`, in docs/tuning.schema.json."""

from __future__ import annotations

import math
from typing import Any

from stepscope.core.tuning import Spent, Tried, Tuning, Winner
from stepscope.protocol.json_text import json_text

SCHEMA = "stepscope.tuning/1"


def tuning_json(tuning: Tuning) -> str:
    """The contract as indented text."""
    return json_text(tuning_contract(tuning), indent=2)


def tuning_contract(tuning: Tuning) -> dict[str, Any]:
    """The contract as plain values. What was not measured is null, never 0."""
    from stepscope.report.verify.json import verified_contract

    return {
        "schema": SCHEMA,
        "command": list(tuning.command),
        "verdict": tuning.verdict,
        "because": tuning.because,
        "per": tuning.per,
        "knobs": [{"name": knob.name, "values": knob.words, "way": knob.way} for knob in tuning.knobs],
        "settings_in_space": tuning.size,
        "baseline": _tried(tuning.baseline),
        "winner": None if tuning.winner is None else _winner(tuning.winner, proven=tuning.is_proven),
        "trials": [_tried(tried) for tried in tuning.trials],
        "importance": None if tuning.importance is None else dict(tuning.importance),
        "numerics": None if tuning.check is None else {"verdict": tuning.check.verdict, "because": tuning.check.because},
        "verification": None if tuning.verified is None else verified_contract(tuning.verified),
        "ended": tuning.ended,
        "wall_s": tuning.wall_s,
        "budget": None if tuning.spent is None else _spent(tuning.spent),
        "device": tuning.setup.device,
        "versions": dict(tuning.setup.versions),
        "notes": list(tuning.notes),
    }


def _winner(winner: Winner, *, proven: bool) -> dict[str, Any]:
    return {
        "settings": dict(winner.settings),
        "ms": _ms(winner.ns),
        "trial_speedup": winner.speedup,
        "proven": proven,
        "words": list(winner.words),
    }


def _spent(spent: Spent) -> dict[str, Any]:
    return {
        "total_s": spent.total_s,
        "kept_for_proof_s": spent.kept_s,
        "rounds_kept": spent.num_rounds,
        "run_s": spent.run_s,
        "search_s": spent.search_s,
        "proof_s": spent.proof_s,
    }


def _tried(tried: Tried) -> dict[str, Any]:
    return {
        "number": tried.number,
        "settings": dict(tried.settings),
        "state": tried.state,
        "ms": _ms(tried.ns),
        "step_ms": _ms(tried.step_ns),
        "steps": tried.num_steps,
        "wall_s": tried.wall_s,
        "why": tried.why,
        "origin": tried.origin,
        "host": tried.host,
        "not_taken": list(tried.not_taken),
    }


def _ms(ns: float | None) -> float | None:
    return None if ns is None or not math.isfinite(ns) else ns / 1e6
