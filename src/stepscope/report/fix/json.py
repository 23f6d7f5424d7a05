"""What became of a run's findings, as JSON: the contract `stepscope.fix/1`."""

from __future__ import annotations

from typing import Any

from stepscope.core.mended import Attempt, Mended
from stepscope.json_text import json_text
from stepscope.report.verify.json import verified_contract

SCHEMA = "stepscope.fix/1"


def mended_json(mended: Mended) -> str:
    """The contract as indented text."""
    return json_text(mended_contract(mended), indent=2)


def mended_contract(mended: Mended) -> dict[str, Any]:
    """The contract as plain values. What was not measured is null, never 0."""
    whole = None if mended.whole is None else verified_contract(mended.whole)
    return {
        "schema": SCHEMA,
        "command": list(mended.command),
        "before_ms": mended.before_ms,
        "speedup": None if whole is None else whole["speedup"],
        "kept": dict(mended.kept.knobs),
        "findings": [_attempt(one) for one in mended.attempts],
        "whole": whole,
        "left": list(mended.left),
        "notes": list(mended.notes),
        "folder": mended.folder,
    }


def _attempt(one: Attempt) -> dict[str, Any]:
    return {
        "code": one.code,
        "summary": one.summary,
        "action": one.action,
        "outcome": one.outcome,
        "why": one.why,
        "predicted": {"value": one.predicted.value, "low": one.predicted.low, "high": one.predicted.high},
        "knobs": dict(one.knobs),
        "verification": None if one.verified is None else verified_contract(one.verified),
    }
