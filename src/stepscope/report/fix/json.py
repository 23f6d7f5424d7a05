"""What became of a run's findings, as JSON: the contract `stepscope.fix/1`."""

from __future__ import annotations

from typing import Any

from stepscope.core.fixed import Attempt, Fixed
from stepscope.protocol.json_text import json_text
from stepscope.report.verify.json import verified_contract

SCHEMA = "stepscope.fix/1"


def fixed_json(fixed: Fixed) -> str:
    """The contract as indented text."""
    return json_text(fixed_contract(fixed), indent=2)


def fixed_contract(fixed: Fixed) -> dict[str, Any]:
    """The contract as plain values. What was not measured is null, never 0."""
    whole = None if fixed.whole is None else verified_contract(fixed.whole)
    return {
        "schema": SCHEMA,
        "command": list(fixed.command),
        "before_ms": fixed.before_ms,
        "speedup": None if whole is None else whole["speedup"],
        "kept": dict(fixed.kept.knobs),
        "findings": [_attempt(one) for one in fixed.attempts],
        "whole": whole,
        "left": list(fixed.left),
        "notes": list(fixed.notes),
        "folder": fixed.folder,
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
