"""What other tools recorded, as plain values of the HTML report: advice, and each recording's lines
and tables.

Recordings are strangers' files: what is shown of each is bounded, and what is left out is counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from stepscope.core.contract import diagnosis as document
from stepscope.core.contract.diagnosis import DiagnosisContract
from stepscope.core.contract.nccl import Nccl, NcclLinks
from stepscope.core.diagnosis import Diagnosis
from stepscope.core.recordings.auxiliary import Advice
from stepscope.core.recordings.nccl import NcclConnection, NcclLog
from stepscope.errors import UsageError
from stepscope.readers.formats import BY_NAME
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
NOT_TOLD = ("", "-")


def auxiliary_page(
    advice: Sequence[Advice], recordings: Sequence[RecordingText], *, is_alone: bool
) -> dict[str, Any] | None:
    """The section; None where there is nothing to show. `is_alone`: there is no trace, and the
    tables stand open."""
    if not advice and not recordings:
        return None
    return {
        "is_alone": is_alone,
        "advice": [_card(place, one) for place, one in enumerate(advice[:MAX_ADVICE], 1)],
        "num_advice_left_out": max(0, len(advice) - MAX_ADVICE),
        "recordings": [_recording(one) for one in recordings[:MAX_RECORDINGS]],
        "num_recordings_left_out": max(0, len(recordings) - MAX_RECORDINGS),
    }


def auxiliary_of(diagnosis: Diagnosis) -> dict[str, Any] | None:
    """Of a diagnosis just made."""
    beside, nccl = diagnosis.facts.beside, diagnosis.facts.nccl
    log = () if nccl is None else (nccl_recording(nccl),)
    return auxiliary_page(
        diagnosis.advice, (*log, *recording_texts(beside)), is_alone=not diagnosis.facts.ranks
    )


def auxiliary_of_contract(told: DiagnosisContract) -> dict[str, Any] | None:
    """Of a diagnosis that was kept as JSON."""
    recordings = [_told_recording(one) for one in told.recordings or ()]
    log = [_told_nccl(told.nccl)] if told.nccl else []
    return auxiliary_page(told.advice or (), [*log, *recordings], is_alone=not told.ranks)


def explained(code: str) -> list[str]:
    """The paragraphs that `stepscope explain` has for a code; none for that of an older or newer
    version."""
    try:
        text = explain(code).partition("\n\n")[2]
    except UsageError:
        return []
    return [" ".join(paragraph.split()) for paragraph in text.split("\n\n") if paragraph.strip()]


def _card(place: int, advice: Advice) -> dict[str, Any]:
    return {
        "place": place,
        "code": advice.code,
        "bound": advice.bound,
        "weight": weight_words(advice),
        "summary": advice.summary,
        "action": advice.action,
        "evidence": list(advice.evidence[:MAX_EVIDENCE]),
        "num_evidence_left_out": max(0, len(advice.evidence) - MAX_EVIDENCE),
        "explain": explained(advice.code),
    }


def _recording(told: RecordingText) -> dict[str, Any]:
    known = BY_NAME.get(told.format)
    return {
        "format": told.format,
        "words": NCCL_WORDS.get(told.format, "") if known is None else known.words,
        "paths": list(told.paths[:MAX_PATHS]),
        "num_paths_left_out": max(0, len(told.paths) - MAX_PATHS),
        "lines": [{"word": word, "value": value} for word, value in told.lines[:MAX_LINES]],
        "num_lines_left_out": max(0, len(told.lines) - MAX_LINES),
        "tables": [_table(table) for table in told.tables[:MAX_TABLES]],
        "num_tables_left_out": max(0, len(told.tables) - MAX_TABLES),
        "notes": list(told.notes[:MAX_LINES]),
        "num_notes_left_out": max(0, len(told.notes) - MAX_LINES),
    }


def _table(told: Table) -> dict[str, Any]:
    columns = told.columns[:MAX_COLUMNS]
    return {
        "title": told.title,
        "columns": [
            {"title": title, "is_number": place in told.right}
            for place, title in enumerate(columns)
        ],
        "rows": [
            [
                _cell(row[place] if place < len(row) else "", place in told.right)
                for place in range(len(columns))
            ]
            for row in told.rows[:MAX_ROWS]
        ],
        "num_columns_left_out": len(told.columns) - len(columns),
        "num_rows_left_out": max(0, len(told.rows) - MAX_ROWS),
    }


def _cell(text: str, is_number: bool) -> dict[str, Any]:
    text = clean(text)
    short = shorten(text, MAX_CELL)
    return {"text": short, "full": "" if short == text else text, "is_number": is_number}


def _told_recording(told: document.Recording) -> RecordingText:
    return RecordingText(
        format=told.format,
        paths=told.paths,
        lines=tuple((line.name, line.value) for line in told.lines),
        tables=tuple(_told_table(table) for table in told.tables),
        notes=told.notes,
    )


def _told_nccl(told: Nccl) -> RecordingText:
    """The document counts the connections of each pair of ranks, and has the notes in words."""
    log = NcclLog(
        library=told.library,
        files=told.files,
        versions=told.versions,
        hosts=told.hosts,
        communicators=told.communicators,
        connections=tuple(_connections(told.connections)),
        topology=told.topology,
        graphs=told.graphs,
        networks=told.networks,
        ib_devices=told.ib_devices,
        interfaces=told.interfaces,
        algorithms=told.algorithms,
        calls=told.calls,
        env=told.env,
        warnings=told.warnings,
    )
    return replace(nccl_recording(log), notes=told.notes)


def _connections(links: Iterable[NcclLinks]) -> Iterator[NcclConnection]:
    for link in links:
        for channel in range(min(link.channels, MAX_CHANNELS)):
            yield NcclConnection(
                communicator=link.communicator,
                channel=channel,
                rank=link.rank,
                peer=link.peer,
                via=link.via,
                received_via=link.received_via,
            )


def _told_table(told: document.RecordingTable) -> Table:
    """The document does not say which columns are numbers: those after the first in which nothing
    else stands."""
    cells = [[row[i] for row in told.rows if i < len(row)] for i in range(len(told.columns))]
    right = tuple(i for i in range(1, len(cells)) if _are_numbers(cells[i]))
    return Table(title=told.title, columns=told.columns, rows=told.rows, right=right)


def _are_numbers(cells: Iterable[str]) -> bool:
    told = [cell for cell in cells if cell not in NOT_TOLD]
    return bool(told) and all(NUMBER.match(cell) for cell in told)
