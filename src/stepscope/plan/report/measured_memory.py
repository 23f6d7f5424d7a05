"""A plan's memory compared with what a recording measured: as a section."""

from __future__ import annotations

from stepscope.plan.contract.plan import RecordedMemory, RecordedMemoryRow
from stepscope.plan.report.words import gib
from stepscope.report.document.blocks import Block, Column, Items, Section, Table, numbers

PART_WORDS = {
    "activations": "activations, logits",
    "others": "others",
    "peak": "all tensors, peak",
    "reserved": "reserved",
}
"""What is not here is called as it is."""
UNKNOWN = "-"


def measured_memory_section(measured: RecordedMemory) -> Section:
    columns = (Column(), *numbers("planned", "recorded", "at the peak", "planned/recorded"))
    rows = tuple((_word(row), *_sizes(row), _ratio(row)) for row in measured.rows)
    blocks: list[Block] = [Table(columns=columns, rows=rows)]
    if measured.notes:
        blocks.append(Items(measured.notes))
    return Section(
        title="Compared with the recording", aside=_aside(measured), blocks=tuple(blocks)
    )


def _aside(measured: RecordedMemory) -> str:
    files = ", ".join(measured.recordings)
    return f"{measured.layout or 'nothing planned, as no layout fits'}; {files}"


def _word(row: RecordedMemoryRow) -> str:
    return PART_WORDS.get(row.part, row.part)


def _sizes(row: RecordedMemoryRow) -> tuple[str, str, str]:
    planned, most, at_peak = (
        UNKNOWN if size is None else gib(size)
        for size in (row.planned_bytes, row.most_bytes, row.at_peak_bytes)
    )
    return planned, most, at_peak


def _ratio(row: RecordedMemoryRow) -> str:
    return UNKNOWN if row.ratio is None else f"{row.ratio:.2f}x"
