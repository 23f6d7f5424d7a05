"""What other tools recorded, as plain values of the HTML report: advice, and each recording's lines
and tables.

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
from stepscope.report.action_code import action_code
from stepscope.report.diagnosis.auxiliary import weight_words
from stepscope.report.diagnosis.nccl import nccl_recording
from stepscope.report.names import clean, shorten
from stepscope.report.recordings.text import RecordingText, Table, recording_texts
from stepscope.rules.explanation import explain

MAX_ADVICE = 100
MAX_EVIDENCE = 20
MAX_RECORDINGS = 64
MAX_PATHS = 4
MAX_LINES = 64
MAX_TABLES = 32
MAX_COLUMNS = 24
MAX_ROWS = 200
MAX_CELL = 120
"""Characters of a cell; the whole of it is what its title says."""
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
        "advice": [_card(number, entry) for number, entry in enumerate(advice[:MAX_ADVICE], 1)],
        "num_advice_left_out": max(0, len(advice) - MAX_ADVICE),
        "recordings": [_recording(recording) for recording in recordings[:MAX_RECORDINGS]],
        "num_recordings_left_out": max(0, len(recordings) - MAX_RECORDINGS),
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


def _card(number: int, advice: Advice) -> dict[str, Any]:
    return {
        "number": number,
        "code": advice.code,
        "bound": advice.bound,
        "weight": weight_words(advice),
        "summary": advice.summary,
        "copied": action_code(advice.action)[0],
        "action": action_code(advice.action)[1],
        "evidence": list(advice.evidence[:MAX_EVIDENCE]),
        "num_evidence_left_out": max(0, len(advice.evidence) - MAX_EVIDENCE),
        "explain": explained(advice.code),
    }


def _recording(recording: RecordingText) -> dict[str, Any]:
    spec = BY_NAME.get(recording.format)
    return {
        "format": recording.format,
        "words": NCCL_WORDS.get(recording.format, "") if spec is None else spec.words,
        "paths": list(recording.paths[:MAX_PATHS]),
        "num_paths_left_out": max(0, len(recording.paths) - MAX_PATHS),
        "lines": [{"word": word, "value": value} for word, value in recording.lines[:MAX_LINES]],
        "num_lines_left_out": max(0, len(recording.lines) - MAX_LINES),
        "tables": [_table(table) for table in recording.tables[:MAX_TABLES]],
        "num_tables_left_out": max(0, len(recording.tables) - MAX_TABLES),
        "notes": list(recording.notes[:MAX_LINES]),
        "num_notes_left_out": max(0, len(recording.notes) - MAX_LINES),
    }


def _table(table: Table) -> dict[str, Any]:
    columns = table.columns[:MAX_COLUMNS]
    return {
        "title": table.title,
        "columns": [
            {"title": title, "is_number": column in table.right}
            for column, title in enumerate(columns)
        ],
        "rows": [
            [
                _cell(row[column] if column < len(row) else "", column in table.right)
                for column in range(len(columns))
            ]
            for row in table.rows[:MAX_ROWS]
        ],
        "num_columns_left_out": len(table.columns) - len(columns),
        "num_rows_left_out": max(0, len(table.rows) - MAX_ROWS),
    }


def _cell(text: str, is_number: bool) -> dict[str, Any]:
    text = clean(text)
    short = shorten(text, MAX_CELL)
    return {"text": short, "full": "" if short == text else text, "is_number": is_number}


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
