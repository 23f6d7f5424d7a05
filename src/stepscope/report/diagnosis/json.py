"""The diagnosis as JSON: the document `stepscope.diagnosis/1`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from stepscope.core.contract.codec import decode, filled, plain, plain_by_item
from stepscope.core.contract.diagnosis import DiagnosisContract, Partition, Rank
from stepscope.core.diagnosis import Diagnosis
from stepscope.core.facts import RankFacts
from stepscope.protocol.json_text import finite, json_text, not_finite
from stepscope.report.diagnosis.auxiliary import recording_contract
from stepscope.report.diagnosis.nccl import nccl_contract
from stepscope.report.recording_text import recording_texts

if TYPE_CHECKING:
    from stepscope.core.gate import Gate

MOST_NAMED = 6
"""Numbers that are not finite, named in the note."""


def to_json(diagnosis: Diagnosis, gate: Gate | None = None) -> str:
    """As indented text. What was not measured is null, never 0; so is what is not finite."""
    values = plain_by_item(_document(diagnosis, gate))
    lost = _lost(values)
    return json_text(_finite(values, lost) if lost else values, indent=2)


def diagnosis_contract(diagnosis: Diagnosis) -> DiagnosisContract:
    """The document that the JSON is of: every number in it is finite."""
    document = _document(diagnosis, None)
    values = plain(document)
    lost = _lost(values)
    if not lost:
        return document
    return decode(json_text(_finite(values, lost)), DiagnosisContract, "this diagnosis")


def _lost(values: dict[str, Any]) -> list[str]:
    return sorted(set(not_finite(values)))


def _finite(values: dict[str, Any], lost: list[str]) -> dict[str, Any]:
    named = ", ".join(lost[:MOST_NAMED])
    if len(lost) > MOST_NAMED:
        named += f" and {len(lost) - MOST_NAMED} more"
    note = f"not measured, for what was recorded gives no finite number: {named}"
    return {key: finite(value) for key, value in values.items()} | {
        "notes": [*values["notes"], note]
    }


def _document(diagnosis: Diagnosis, gate: Gate | None) -> DiagnosisContract:
    facts = diagnosis.facts
    auxiliary = facts.auxiliary
    return filled(
        DiagnosisContract,
        diagnosis,
        ranks=tuple(_rank(rank) for rank in facts.ranks),
        peak_waterfall=UNSET if facts.peak_waterfall is None else facts.peak_waterfall,
        run=UNSET if facts.run is None else facts.run,
        whole_run=UNSET if facts.whole_run is None else facts.whole_run,
        memory=facts.memory or UNSET,
        out_of_memory=facts.out_of_memory or UNSET,
        nccl=UNSET if facts.nccl is None else nccl_contract(facts.nccl),
        comms=UNSET if facts.comms is None else facts.comms,
        advice=UNSET if auxiliary is None and not diagnosis.advice else diagnosis.advice,
        recordings=UNSET
        if auxiliary is None
        else tuple(map(recording_contract, recording_texts(auxiliary))),
        hang=UNSET if auxiliary is None or auxiliary.hang is None else auxiliary.hang,
        gate=UNSET if gate is None else gate,
    )


def _rank(facts: RankFacts) -> Rank:
    busy = facts.steps.typical(facts.busy_ns) if facts.steps.where == "device" else None
    return Rank(
        rank=facts.rank,
        partition_ms=_partition(facts),
        gpu_busy_ms=None if busy is None else busy / 1e6,
        mfu=facts.roofline.mfu,
        peak_waterfall=facts.peak_waterfall,
        device_ns=facts.device,
    )


def _partition(facts: RankFacts) -> Partition | None:
    parts = facts.typical_parts_ns
    if parts is None or facts.partition is None:
        return None
    parts_ms: dict[str, Any] = {part: value / 1e6 for part, value in parts.items()}
    if parts["comms_transfer"] > 0 and not facts.partition.waits_split:
        parts_ms["comms_wait"] = None
    return Partition(**parts_ms)
