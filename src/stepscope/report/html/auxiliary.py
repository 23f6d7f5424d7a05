"""What other tools recorded, in the HTML report: advice, and each recording's lines and tables.

Recordings are strangers' files: what is shown of each is bounded, and what is left out is counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from stepscope.core.contract import diagnosis as document
from stepscope.core.contract.codec import filled
from stepscope.core.contract.diagnosis import DiagnosisContract
from stepscope.core.contract.nccl import Nccl, NcclLinks
from stepscope.core.diagnosis import Diagnosis
from stepscope.core.recordings.auxiliary import Advice
from stepscope.core.recordings.nccl import NcclConnection, NcclLog
from stepscope.errors import UsageError
from stepscope.readers.formats import BY_NAME
from stepscope.report.diagnosis.nccl import nccl_recording
from stepscope.report.recording_text import RecordingText, Table, recording_texts
from stepscope.rules.explanation import explain

MOST = {
    "advice": 100,
    "evidence": 20,
    "recordings": 64,
    "paths": 4,
    "lines": 64,
    "tables": 32,
    "columns": 24,
    "rows": 200,
    "characters": 120,
}
"""Of each that is shown; of a cell its characters, and all of them are what its title says."""
MAX_CHANNELS = 64
"""Between two ranks; NCCL has no more."""
NCCL_WORDS = {
    "nccl": "what NCCL wrote of itself (NCCL_DEBUG)",
    "rccl": "what RCCL wrote of itself (NCCL_DEBUG)",
}
NUMBER = re.compile(r"[<~]?[-+]?\d")
"""How a number begins."""
NOT_MEASURED = ("", "-")


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
        "most": MOST,
    }


def auxiliary_of(diagnosis: Diagnosis) -> dict[str, Any] | None:
    """Of a diagnosis just made."""
    recordings, nccl = diagnosis.facts.auxiliary, diagnosis.facts.nccl
    log = () if nccl is None else (nccl_recording(nccl),)
    return auxiliary_page(
        diagnosis.advice, (*log, *recording_texts(recordings)), is_alone=not diagnosis.facts.ranks
    )


def auxiliary_of_contract(contract: DiagnosisContract) -> dict[str, Any] | None:
    """Of a diagnosis that was kept as JSON."""
    recordings = [_recording_text(recording) for recording in contract.recordings or ()]
    log = [_nccl_text(contract.nccl)] if contract.nccl else []
    return auxiliary_page(contract.advice or (), [*log, *recordings], is_alone=not contract.ranks)


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


def _recording_text(recording: document.Recording) -> RecordingText:
    return filled(
        RecordingText,
        recording,
        lines=tuple((line.name, line.value) for line in recording.lines),
        tables=tuple(map(_recorded_table, recording.tables)),
    )


def _nccl_text(contract: Nccl) -> RecordingText:
    """The document counts the connections of each pair of ranks, and has the notes in words."""
    names = set(NcclLog.__struct_fields__) & set(contract.__struct_fields__)
    same: dict[str, Any] = {name: getattr(contract, name) for name in names}
    log = NcclLog(**same | {"connections": tuple(_connections(contract.connections))})
    return replace(nccl_recording(log), notes=contract.notes)


def _connections(links: Iterable[NcclLinks]) -> Iterator[NcclConnection]:
    for link in links:
        for channel in range(min(link.channels, MAX_CHANNELS)):
            yield filled(NcclConnection, link, channel=channel)


def _recorded_table(table: document.RecordingTable) -> Table:
    """The document does not say which columns are numbers: those after the first in which nothing
    else stands."""
    cells = [[row[i] for row in table.rows if i < len(row)] for i in range(len(table.columns))]
    right = tuple(i for i in range(1, len(cells)) if _are_numbers(cells[i]))
    return filled(Table, table, right=right)


def _are_numbers(cells: Iterable[str]) -> bool:
    measured = [cell for cell in cells if cell not in NOT_MEASURED]
    return bool(measured) and all(NUMBER.match(cell) for cell in measured)
