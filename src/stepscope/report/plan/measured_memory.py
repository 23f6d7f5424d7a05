"""A plan's memory compared with what a recording measured: as a section, and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from stepscope.core.contract import plan as document
from stepscope.core.contract.codec import filled
from stepscope.report.document.blocks import Block, Column, Items, Section, Table, numbers
from stepscope.report.plan.words import gib

if TYPE_CHECKING:
    from stepscope.analyses.run.memory_plan import PlanRow

PART_WORDS = {
    "activations": "activations, logits",
    "others": "others",
    "peak": "all tensors, peak",
    "reserved": "reserved",
}
"""What is not here is called as it is."""
UNKNOWN = "-"


class MeasuredMemory(Struct, frozen=True, kw_only=True):
    """One layout's memory and what was recorded, part by part."""

    layout: str | None
    """None where none fits: there is nothing planned then."""
    recordings: tuple[str, ...]
    """Files; strangers' text."""
    rows: tuple[PlanRow, ...]
    notes: tuple[str, ...] = ()
    """Where plan and recording count the same bytes under different names, and what could not be
    read."""


def measured_memory_section(measured: MeasuredMemory) -> Section:
    columns = (Column(), *numbers("planned", "recorded", "at the peak", "planned/recorded"))
    rows = tuple((_word(row), *_sizes(row), _ratio(row)) for row in measured.rows)
    blocks: list[Block] = [Table(columns=columns, rows=rows)]
    if measured.notes:
        blocks.append(Items(measured.notes))
    return Section(
        title="Compared with the recording", aside=_aside(measured), blocks=tuple(blocks)
    )


def measured_memory_contract(measured: MeasuredMemory) -> document.RecordedMemory:
    """The key `recorded_memory` of the JSON."""
    rows = tuple(filled(document.RecordedMemoryRow, row) for row in measured.rows)
    return filled(document.RecordedMemory, measured, rows=rows)


def _aside(measured: MeasuredMemory) -> str:
    files = ", ".join(measured.recordings)
    return f"{measured.layout or 'nothing planned, as no layout fits'}; {files}"


def _word(row: PlanRow) -> str:
    return PART_WORDS.get(row.part, row.part)


def _sizes(row: PlanRow) -> tuple[str, str, str]:
    planned, most, at_peak = (
        UNKNOWN if size is None else gib(size)
        for size in (row.planned_bytes, row.most_bytes, row.at_peak_bytes)
    )
    return planned, most, at_peak


def _ratio(row: PlanRow) -> str:
    return UNKNOWN if row.ratio is None else f"{row.ratio:.2f}x"
