"""What other tools recorded: advice first, then each recording's own
figures."""

from __future__ import annotations

from collections.abc import Iterator

from stepscope.core.diagnosis import Diagnosis
from stepscope.core.recordings.auxiliary import Advice
from stepscope.core.recordings.recording import RecordingText
from stepscope.core.recordings.recording import Table as Recorded
from stepscope.report.document.blocks import (
    Action,
    Block,
    Card,
    Column,
    Facts,
    Items,
    Prose,
    Section,
    Table,
)
from stepscope.report.recording_text import recording_texts
from stepscope.report.words import percent

MAX_ADVICE = 12
MAX_EVIDENCE = 3
MAX_ROWS = 12


def auxiliary_sections(diagnosis: Diagnosis) -> Iterator[Section]:
    """Nothing where nothing was given."""
    if diagnosis.advice:
        yield Section(
            title=_title(diagnosis),
            aside="no gain is predicted for these: no replayed step shows them",
            blocks=tuple(_advice_blocks(diagnosis.advice)),
        )
    for recording in recording_texts(diagnosis.facts.auxiliary):
        paths = recording.paths
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        blocks = tuple(_recording_blocks(recording))
        yield Section(
            title=recording.format, aside=f"{paths[0]}{more}", blocks=blocks, is_folded=True
        )


def _title(diagnosis: Diagnosis) -> str:
    is_beside = diagnosis.facts.ranks and diagnosis.facts.auxiliary is not None
    return "Auxiliary recordings" if is_beside else "What the recordings show"


def weight_words(advice: Advice) -> str:
    """`34 % of the step`; empty where nothing tells it."""
    if advice.weight is None:
        return ""
    return f"{percent(advice.weight)} of {advice.weight_of}".strip()


def _advice_blocks(advice: tuple[Advice, ...]) -> Iterator[Block]:
    for number, each in enumerate(advice[:MAX_ADVICE], 1):
        evidence = (Prose(line, "quiet") for line in each.evidence[:MAX_EVIDENCE])
        yield Card(
            number=number,
            code=each.code,
            title=weight_words(each),
            blocks=(Prose(each.summary), *evidence, Action(each.action)),
        )
    if len(advice) > MAX_ADVICE:
        yield Prose(f"and {len(advice) - MAX_ADVICE} more (--format json has them all)", "quiet")


def _recording_blocks(recording: RecordingText) -> Iterator[Block]:
    if recording.lines:
        yield Facts(recording.pairs)
    for table in recording.tables:
        yield from _table_blocks(table)
    if recording.notes:
        yield Items(recording.notes[:MAX_ADVICE])


def _table_blocks(table: Recorded) -> Iterator[Block]:
    rows = table.rows[:MAX_ROWS]
    widths = [max((len(row[at]) for row in rows), default=0) for at in range(len(table.columns))]
    widest = widths.index(max(widths))
    columns = tuple(
        Column(title=title, right=at in table.right, fit="shorten" if at == widest else "whole")
        for at, title in enumerate(table.columns)
    )
    yield Table(caption=table.title, columns=columns, rows=rows)
    if len(table.rows) > MAX_ROWS:
        yield Prose(f"and {len(table.rows) - MAX_ROWS} more", "quiet")
