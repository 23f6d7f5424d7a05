"""The diagnosis as JSON: the document `stepscope.diagnosis/1`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from stepscope.core.codec import decode, plain, plain_by_item
from stepscope.core.diagnosis import Diagnosis, DiagnosisDocument
from stepscope.protocol.json_text import finite, json_text, not_finite
from stepscope.report.recording_text import recording_texts

if TYPE_CHECKING:
    from stepscope.core.gate import Gate

MAX_NAMED = 6
"""Numbers that are not finite, named in the note."""


def to_json(diagnosis: Diagnosis, gate: Gate | None = None) -> str:
    """Write as indented text. What was not measured is null, never 0; so is what is not finite."""
    values = plain_by_item(_document(diagnosis, gate))
    lost = _lost(values)
    return json_text(_finite(values, lost) if lost else values, indent=2)


def document_of(diagnosis: Diagnosis) -> DiagnosisDocument:
    """The document that the JSON is of: every number in it is finite."""
    document = _document(diagnosis, None)
    values = plain(document)
    lost = _lost(values)
    if not lost:
        return document
    return decode(json_text(_finite(values, lost)), DiagnosisDocument, "this diagnosis")


def _lost(values: dict[str, Any]) -> list[str]:
    return sorted(set(not_finite(values)))


def _finite(values: dict[str, Any], lost: list[str]) -> dict[str, Any]:
    named = ", ".join(lost[:MAX_NAMED])
    if len(lost) > MAX_NAMED:
        named += f" and {len(lost) - MAX_NAMED} more"
    note = f"not measured, for what was recorded gives no finite number: {named}"
    return {key: finite(value) for key, value in values.items()} | {
        "notes": [*values["notes"], note]
    }


def _document(diagnosis: Diagnosis, gate: Gate | None) -> DiagnosisDocument:
    """The diagnosis without its facts, with other tools' recordings in words."""
    auxiliary = diagnosis.facts.auxiliary
    same = {name: getattr(diagnosis, name) for name in DiagnosisDocument.__struct_fields__}
    of_tools = auxiliary is not None
    words = {
        "advice": diagnosis.advice if of_tools or diagnosis.advice else UNSET,
        "recordings": recording_texts(auxiliary) if of_tools else UNSET,
        "gate": UNSET if gate is None else gate,
    }
    return DiagnosisDocument(**same | words)
