"""The diagnosis as JSON: the contract `stepscope.diagnosis/1`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import msgspec

from stepscope.core.diagnosis import Diagnosis
from stepscope.core.facts import PARTS, RankFacts

SCHEMA = "stepscope.diagnosis/1"


def to_json(diagnosis: Diagnosis) -> str:
    """The contract as indented text."""
    return msgspec.json.format(msgspec.json.encode(contract(diagnosis)), indent=2).decode()


def contract(diagnosis: Diagnosis) -> dict[str, Any]:
    """The contract as plain values. What was not measured is null, never 0."""
    return {
        "schema": SCHEMA,
        "verdict": asdict(diagnosis.verdict),
        "step": asdict(diagnosis.step),
        "replay": None if diagnosis.replay is None else asdict(diagnosis.replay),
        "ranks": [_rank(facts) for facts in diagnosis.facts.ranks],
        "findings": [asdict(finding) for finding in diagnosis.findings],
        "notes": list(diagnosis.notes),
        "unknown_events": diagnosis.unknown_events,
    }


def _rank(facts: RankFacts) -> dict[str, Any]:
    middle = facts.steps.median_window
    return {
        "rank": facts.rank,
        "partition_ms": None if facts.partition is None or middle is None else _partition(facts, middle),
        "gpu_busy_ms": None if middle is None or facts.steps.where != "device" else facts.busy_ns[middle] / 1e6,
        "mfu": facts.roofline.mfu,
        "device_ns": asdict(facts.device),
    }


def _partition(facts: RankFacts, window: int) -> dict[str, float | None]:
    assert facts.partition is not None
    parts: dict[str, float | None] = {part: facts.partition.parts[part][window] / 1e6 for part in PARTS}
    if not facts.partition.waits_split and parts["comms_transfer"]:
        parts["comms_wait"] = None
    return parts
