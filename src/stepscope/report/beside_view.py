"""What other tools recorded, in the terminal and as JSON: advice first, then each recording's own figures."""

from __future__ import annotations

from stepscope.core.beside import Advice
from stepscope.core.contract import diagnosis as document
from stepscope.core.contract.diagnosis import RecordingLine, RecordingTable
from stepscope.core.diagnosis import Diagnosis
from stepscope.core.recording import Recording, Table
from stepscope.report.sheet import Column, Sheet
from stepscope.report.units import percent

MAX_ADVICE = 12
MAX_ROWS = 12


def draw_beside(sheet: Sheet, diagnosis: Diagnosis) -> None:
    """Nothing where nothing was given."""
    _draw_advice(sheet, diagnosis.advice, has_trace=bool(diagnosis.facts.ranks))
    beside = diagnosis.facts.beside
    for recording in () if beside is None else beside.recordings:
        _draw_recording(sheet, recording)


def weight_words(advice: Advice) -> str:
    """`34 % of the step`; empty where nothing tells it."""
    return "" if advice.weight is None else f"{percent(advice.weight)} of {advice.weight_of}".strip()


def recording_contract(recording: Recording) -> document.Recording:
    """One of the key `recordings` of the JSON."""
    return document.Recording(
        format=recording.format,
        paths=recording.paths,
        lines=tuple(RecordingLine(name=name, value=value) for name, value in recording.lines),
        tables=tuple(map(_table_contract, recording.tables)),
        notes=recording.notes,
    )


def _table_contract(table: Table) -> RecordingTable:
    return RecordingTable(title=table.title, columns=table.columns, rows=table.rows)


def _draw_advice(sheet: Sheet, advice: tuple[Advice, ...], *, has_trace: bool) -> None:
    if not advice:
        return
    why = "no gain is predicted for these: no replayed step shows them"
    sheet.heading("Beside the trace" if has_trace else "What the recordings show", why)
    for at, one in enumerate(advice[:MAX_ADVICE], 1):
        weight = weight_words(one)
        sheet.prose(sheet.clean(f"{one.code}{'  ' + weight if weight else ''}"), indent=5, lead=f"  {at}.", style="bold")
        sheet.prose(sheet.clean(one.summary), indent=5)
        for line in one.evidence[:3]:
            sheet.prose(sheet.clean(line), indent=5, style="dim")
        sheet.prose(sheet.clean(one.action), indent=8, lead="     ->")
    if len(advice) > MAX_ADVICE:
        sheet.prose(f"and {len(advice) - MAX_ADVICE} more (--format json has them all)", indent=5, style="dim")


def _draw_recording(sheet: Sheet, recording: Recording) -> None:
    names = recording.paths[0] if len(recording.paths) == 1 else f"{recording.paths[0]} and {len(recording.paths) - 1} more"
    sheet.heading(recording.format, names)
    width = max((len(name) for name, _ in recording.lines), default=0)
    for name, value in recording.lines:
        sheet.prose(sheet.clean(value), indent=width + 4, lead=f"  {sheet.clean(name)}")
    for table in recording.tables:
        _draw_table(sheet, table)
    for note in recording.notes[:MAX_ADVICE]:
        sheet.prose(sheet.clean(note), indent=4, lead="  -", style="dim")


def _draw_table(sheet: Sheet, table: Table) -> None:
    sheet.blank()
    sheet.prose(sheet.clean(table.title), indent=2, style="bold")
    widths = [max((len(row[place]) for row in table.rows[:MAX_ROWS]), default=0) for place in range(len(table.columns))]
    widest = widths.index(max(widths))
    columns = tuple(
        Column(title=title, right=place in table.right, shrinks=place == widest) for place, title in enumerate(table.columns)
    )
    sheet.table(columns, [tuple(sheet.clean(cell) for cell in row) for row in table.rows[:MAX_ROWS]])
    if len(table.rows) > MAX_ROWS:
        sheet.prose(f"and {len(table.rows) - MAX_ROWS} more", indent=4, style="dim")
