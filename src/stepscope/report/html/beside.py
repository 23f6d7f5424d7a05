"""What other tools recorded, as plain values of the HTML report: advice, and each recording's lines and tables.

Recordings are strangers' files: what is shown of each is bounded, and what is left out is counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from stepscope.core.auxiliary import Advice
from stepscope.core.diagnosis import Diagnosis
from stepscope.core.nccl import NcclLog
from stepscope.errors import UsageError
from stepscope.readers.formats import BY_NAME
from stepscope.report.beside_view import weight_words
from stepscope.report.names import clean, shorten
from stepscope.report.nccl_view import nccl_recording
from stepscope.report.recordings.text import RecordingText, Table, recording_texts
from stepscope.rules.explanation import explain

Contract = Mapping[str, Any]
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
NCCL_WORDS = {"nccl": "what NCCL wrote of itself (NCCL_DEBUG)", "rccl": "what RCCL wrote of itself (NCCL_DEBUG)"}
NUMBER = re.compile(r"[<~]?[-+]?\d")
"""How a number begins."""
NOT_TOLD = ("", "-")


def beside_page(advice: Sequence[Advice], recordings: Sequence[RecordingText], *, is_alone: bool) -> dict[str, Any] | None:
    """The section; None where there is nothing to show. `is_alone`: there is no trace, and the tables stand open."""
    if not advice and not recordings:
        return None
    return {
        "is_alone": is_alone,
        "advice": [_card(place, one) for place, one in enumerate(advice[:MAX_ADVICE], 1)],
        "num_advice_left_out": max(0, len(advice) - MAX_ADVICE),
        "recordings": [_recording(one) for one in recordings[:MAX_RECORDINGS]],
        "num_recordings_left_out": max(0, len(recordings) - MAX_RECORDINGS),
    }


def beside_of(diagnosis: Diagnosis) -> dict[str, Any] | None:
    """Of a diagnosis just made."""
    beside, nccl = diagnosis.facts.beside, diagnosis.facts.nccl
    log = () if nccl is None else (nccl_recording(nccl),)
    return beside_page(diagnosis.advice, (*log, *recording_texts(beside)), is_alone=not diagnosis.facts.ranks)


def beside_of_contract(told: Contract) -> dict[str, Any] | None:
    """Of a diagnosis that was kept as JSON. TypeError, KeyError or ValueError where it is damaged."""
    advice = [_told_advice(one) for one in _list(told.get("advice", []))]
    recordings = [_told_recording(one) for one in _list(told.get("recordings", []))]
    log = [_told_nccl(told["nccl"])] if "nccl" in told else []
    return beside_page(advice, [*log, *recordings], is_alone=not told["ranks"])


def explained(code: str) -> list[str]:
    """The paragraphs that `stepscope explain` has for a code; none for that of an older or newer version."""
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
        "columns": [{"title": title, "is_number": place in told.right} for place, title in enumerate(columns)],
        "rows": [
            [_cell(row[place] if place < len(row) else "", place in told.right) for place in range(len(columns))]
            for row in told.rows[:MAX_ROWS]
        ],
        "num_columns_left_out": len(told.columns) - len(columns),
        "num_rows_left_out": max(0, len(told.rows) - MAX_ROWS),
    }


def _cell(text: str, is_number: bool) -> dict[str, Any]:
    text = clean(text)
    short = shorten(text, MAX_CELL)
    return {"text": short, "full": "" if short == text else text, "is_number": is_number}


def _told_advice(told: Contract) -> Advice:
    weight = told["weight"]
    if weight is not None and (isinstance(weight, bool) or not isinstance(weight, int | float)):
        raise TypeError("a weight is a number")
    return Advice(
        code=_text(told["code"]),
        bound=_text(told["bound"]),
        summary=_text(told["summary"]),
        action=_text(told["action"]),
        evidence=_texts(told["evidence"]),
        weight=weight,
        weight_of=_text(told["weight_of"]),
    )


def _told_recording(told: Contract) -> RecordingText:
    return RecordingText(
        format=_text(told["format"]),
        paths=_texts(told["paths"]),
        lines=tuple((_text(line["name"]), _text(line["value"])) for line in _list(told["lines"])),
        tables=tuple(_told_table(table) for table in _list(told["tables"])),
        notes=_texts(told["notes"]),
    )


def _told_nccl(told: Contract) -> RecordingText:
    """The contract counts the connections of each pair of ranks, and has the notes in words."""
    import msgspec

    links = [
        {name: link[name] for name in ("communicator", "rank", "peer", "via", "received_via")} | {"channel": channel}
        for link in _list(told["connections"])
        for channel in range(min(link["channels"], MAX_CHANNELS))
    ]
    try:
        log = msgspec.convert({**told, "connections": links}, NcclLog)
    except msgspec.ValidationError as problem:
        raise ValueError(f"what is told of {told['library']}: {problem}") from None
    return replace(nccl_recording(log), notes=_texts(told["notes"]))


def _told_table(told: Contract) -> Table:
    """The contract does not say which columns are numbers: those after the first in which nothing else stands."""
    columns, rows = _texts(told["columns"]), tuple(_texts(row) for row in _list(told["rows"]))
    right = tuple(place for place in range(1, len(columns)) if _are_numbers(row[place] for row in rows if place < len(row)))
    return Table(title=_text(told["title"]), columns=columns, rows=rows, right=right)


def _are_numbers(cells: Iterable[str]) -> bool:
    told = [cell for cell in cells if cell not in NOT_TOLD]
    return bool(told) and all(NUMBER.match(cell) for cell in told)


def _list(value: Any) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise TypeError("a list is wanted in what is told of recordings")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("text is wanted in what is told of recordings")
    return value


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(_text(one) for one in _list(value))
