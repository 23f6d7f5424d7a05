"""The diagnosis as JSON: the contract `stepscope.diagnosis/1`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from stepscope.core.auxiliary import Auxiliary
from stepscope.core.contract import SCHEMA
from stepscope.core.diagnosis import Diagnosis
from stepscope.core.facts import RankFacts
from stepscope.json_text import finite, json_text, not_finite
from stepscope.report.beside_view import advice_contract, recording_contract
from stepscope.report.nccl_view import nccl_contract
from stepscope.report.recordings.text import recording_texts

MOST_NAMED = 6
"""Numbers that are not finite, named in the note."""


def to_json(diagnosis: Diagnosis) -> str:
    """The contract as indented text."""
    return json_text(contract(diagnosis), indent=2)


def contract(diagnosis: Diagnosis) -> dict[str, Any]:
    """The contract as plain values. What was not measured is null, never 0; a number that is not finite was not measured."""
    told = _contract(diagnosis)
    lost = sorted(set(not_finite(told)))
    if not lost:
        return told
    named = ", ".join(lost[:MOST_NAMED]) + (f" and {len(lost) - MOST_NAMED} more" if len(lost) > MOST_NAMED else "")
    note = f"not measured, for what was recorded gives no finite number: {named}"
    return {key: finite(value) for key, value in told.items()} | {"notes": [*told["notes"], note]}


def _contract(diagnosis: Diagnosis) -> dict[str, Any]:
    nccl, comms, beside = diagnosis.facts.nccl, diagnosis.facts.comms, diagnosis.facts.beside
    return (
        {
            "schema": SCHEMA,
            "verdict": asdict(diagnosis.verdict),
            "step": asdict(diagnosis.step),
            "replay": None if diagnosis.replay is None else asdict(diagnosis.replay),
            "ranks": [_rank(facts) for facts in diagnosis.facts.ranks],
            "findings": [asdict(finding) for finding in diagnosis.findings],
            "ladder": list(diagnosis.ladder),
            "abstentions": [asdict(abstention) for abstention in diagnosis.abstentions],
            "notes": list(diagnosis.notes),
            "unknown_events": diagnosis.unknown_events,
        }
        | ({} if diagnosis.facts.run is None else {"run": asdict(diagnosis.facts.run)})
        | ({} if nccl is None else {"nccl": nccl_contract(nccl)})
        | ({} if comms is None else {"comms": asdict(comms)})
        | ({} if beside is None else _beside(diagnosis, beside))
    )


def _beside(diagnosis: Diagnosis, beside: Auxiliary) -> dict[str, Any]:
    return {
        "advice": [advice_contract(one) for one in diagnosis.advice],
        "recordings": [recording_contract(one) for one in recording_texts(beside)],
    }


def median_place(steps_ms: Sequence[float | None]) -> int | None:
    """Of the contract's ranks the one that the report is about: that with the median step, the lower of two; one without steps
    only if none has any."""
    timed = [(round(ms, 9), place) for place, ms in enumerate(steps_ms) if ms is not None]
    return sorted(timed)[(len(timed) - 1) // 2][1] if timed else (0 if steps_ms else None)


def _rank(facts: RankFacts) -> dict[str, Any]:
    busy = facts.steps.typical(facts.busy_ns) if facts.steps.where == "device" else None
    return {
        "rank": facts.rank,
        "partition_ms": _partition(facts),
        "gpu_busy_ms": None if busy is None else busy / 1e6,
        "mfu": facts.roofline.mfu,
        "device_ns": asdict(facts.device),
    }


def _partition(facts: RankFacts) -> dict[str, float | None] | None:
    parts = facts.typical_parts_ns
    if parts is None or facts.partition is None:
        return None
    unsplit = parts["comms_transfer"] > 0 and not facts.partition.waits_split
    return {part: None if part == "comms_wait" and unsplit else value / 1e6 for part, value in parts.items()}
