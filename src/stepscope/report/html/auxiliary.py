"""What other tools recorded, in the HTML report: advice, and each recording's lines and tables.

Recordings are strangers' files: what is shown of each is bounded, and what is left out is counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stepscope.core.diagnosis import DiagnosisDocument
from stepscope.core.recordings.auxiliary import Advice
from stepscope.core.recordings.recording import RecordingText
from stepscope.errors import UsageError
from stepscope.readers.formats import BY_NAME
from stepscope.report.diagnosis.nccl import nccl_recording
from stepscope.rules.explanation import explain

MAX_SHOWN = {
    "advice": 100, "evidence": 20, "recordings": 64, "paths": 4, "lines": 64, "tables": 32,
    "columns": 24, "rows": 200, "characters": 120,
}  # fmt: skip
"""Entries that are shown of each; of a cell its characters, and all of them are what its title
says."""
NCCL_WORDS = {
    "nccl": "what NCCL wrote of itself (NCCL_DEBUG)",
    "rccl": "what RCCL wrote of itself (NCCL_DEBUG)",
}


def auxiliary_page(
    advice: Sequence[Advice], recordings: Sequence[RecordingText], *, is_alone: bool
) -> dict[str, Any] | None:
    """The section; None where there is nothing to show. `is_alone`: there is no trace, and the
    tables stand open."""
    if not advice and not recordings:
        return None
    return {
        "is_alone": is_alone,
        "advice": advice,
        "recordings": recordings,
        "most": MAX_SHOWN,
    }


def auxiliary_of(diagnosis: DiagnosisDocument) -> dict[str, Any] | None:
    log = (nccl_recording(diagnosis.nccl),) if diagnosis.nccl else ()
    return auxiliary_page(
        diagnosis.advice or (), (*log, *(diagnosis.recordings or ())), is_alone=not diagnosis.ranks
    )


def explained(code: str) -> list[str]:
    """The paragraphs that `stepscope explain` has for a code; none for that of an older or newer
    version."""
    try:
        text = explain(code).partition("\n\n")[2]
    except UsageError:
        return []
    return [" ".join(paragraph.split()) for paragraph in text.split("\n\n") if paragraph.strip()]


def format_words(recording: RecordingText) -> str:
    spec = BY_NAME.get(recording.format)
    return NCCL_WORDS.get(recording.format, "") if spec is None else spec.words
