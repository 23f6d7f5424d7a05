"""The plan's memory compared with a recording: what `plan --recorded-memory` reads, and the table.

The plan's parts of one device add up to its peak of tensors; with the allocator's slack they are
what is reserved.
"""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.core.recordings.memory import (
    ACTIVATIONS,
    GRADIENTS,
    INPUTS,
    OPTIMIZER,
    TEMPORARY,
    UNKNOWN,
    WEIGHTS,
    MemoryRecord,
    MemoryReport,
)
from stepscope.errors import InputError
from stepscope.plan.contract.plan import Account, RecordedMemory, RecordedMemoryRow
from stepscope.plan.job import TrainingJob
from stepscope.plan.memory import state_widths
from stepscope.plan.report.account import Plan
from stepscope.plan.report.words import gib
from stepscope.readers.auxiliary import read_auxiliary
from stepscope.readers.format import MEMORY, Source
from stepscope.readers.formats import BY_NAME
from stepscope.readers.inputs import find_sources
from stepscope.report.words import percent

PEAK, RESERVED = "peak", "reserved"
WANTED = (
    "Give a memory snapshot, memory_stats or a memory timeline (`stepscope formats` says how to "
    "record each)"
)
FULL_WIDTH = 4.0
"""Bytes of a weight in fp32: what a framework keeps beyond them is autocast's copy."""
LATE = 0.5
"""Share of the most gradients that ever were, there at the peak: below it, the peak was before the
backward pass had made them."""


def read_memory(paths: Sequence[str]) -> tuple[MemoryReport, tuple[str, ...]]:
    """All recordings of memory that are named or lie in named folders, and notes on what was not
    read."""
    with find_sources(paths) as inputs:
        sources = (*inputs.sources, *inputs.logs, *inputs.others)
        mine = [source for source in sources if _is_memory(source)]
        strange = [source for source in sources if not _is_memory(source)]
        for source in strange:
            if source.named or not mine:
                raise InputError(
                    f"{source.label} is no recording of memory{_known_as(source)}. {WANTED}."
                )
        recorded = read_auxiliary(mine)
        notes = [] if recorded is None else list(recorded.notes)
        if recorded is None or recorded.memory is None or not recorded.memory.records:
            nothing = f"{', '.join(map(str, paths))}: no memory was recorded there"
            raise InputError(f"{'; '.join(notes) or nothing}. {WANTED}.")
        if strange:
            notes.append(
                f"{len(strange)} other file(s) next to the recordings of memory were not read"
            )
        return recorded.memory, (*inputs.notes, *notes)


def _is_memory(source: Source) -> bool:
    return source.format is not None and BY_NAME[source.format].kind == MEMORY


def _known_as(source: Source) -> str:
    return "" if source.format is None else f": its format is {source.format}"


def compared_memory(
    plan: Plan, report: MemoryReport, read_notes: Sequence[str] = ()
) -> RecordedMemory:
    """The layout that was asked about, or the best one, compared with what was recorded."""
    account = plan.explained or plan.best
    rows = rows_of(account, report)
    return RecordedMemory(
        layout=None if account is None else str(account.layout),
        recordings=tuple(dict.fromkeys(record.label for record in report.records)),
        rows=rows,
        notes=(*notes_of(plan.training, account, report, rows), *read_notes),
    )


def rows_of(account: Account | None, report: MemoryReport) -> tuple[RecordedMemoryRow, ...]:
    """Parts, then the peak of tensors, then what the allocator had of the device."""
    parts = {} if account is None else {name: round(size) for name, size in account.memory.items()}
    planned: dict[str, int | None] = {part: parts.get(part) for part in PARTS}
    if account is not None:
        planned["activations"] = parts["activations"] + parts["logits"]
    sizes = tuple(planned[part] for part in PARTS)
    compared = compare_with_plan(report, *sizes)
    if not compared:
        compared = tuple(memory_row(p, planned[p], None, None) for p in PARTS)
    between = None if account is None else parts["gathered"] + parts["buffers"] + parts["update"]
    rows = [row for row in compared if row.part not in (OTHERS, TOTAL)]
    others = next((row.at_peak_bytes for row in compared if row.part == OTHERS), None)
    rows.append(memory_row(OTHERS, between, others, None))
    held = None if account is None else sum(parts.values()) - parts["slack"] - parts["context"]
    reserved = None if held is None else held + parts["slack"]
    fullest = report.fullest
    assert fullest is not None
    rows.append(memory_row(PEAK, held, fullest.peak_bytes, fullest.peak_bytes))
    most_reserved = max(
        (record.reserved_bytes for record in report.records if record.reserved_bytes is not None),
        default=None,
    )
    rows.append(memory_row(RESERVED, reserved, fullest.reserved_at_peak_bytes, most_reserved))
    return tuple(rows)


def notes_of(
    job: TrainingJob,
    account: Account | None,
    report: MemoryReport,
    rows: Sequence[RecordedMemoryRow],
) -> list[str]:
    """Why parts may differ though nothing is wrong with either side."""
    record = report.detailed
    if record is None or record.held is None:
        return [
            "what the memory was used for is not recorded: a memory snapshot with stacks has it"
        ]
    notes = []
    if report.fullest is not None and report.fullest.label != record.label:
        notes.append(
            f"the parts are those of {record.label}, the peak is that of {report.fullest.label}"
        )
    unknown = record.held.get(UNKNOWN, 0)
    if unknown > (1 - SURE_SHARE) * record.peak_bytes:
        notes.append(
            f"{percent(unknown / record.peak_bytes)} of the recorded peak is of unknown use: parts "
            "may be larger than was seen"
        )
    if account is None:
        return notes
    width = state_widths(job)[0]
    if account.layout.zero_stage < 3 and width > FULL_WIDTH:
        copies = gib(account.memory["weights"] * (1 - FULL_WIDTH / width))
        counted = f"the plan counts autocast's half-precision copies with the weights ({copies})"
        notes.append(f"{counted}; the recording sees them made in the forward pass, as activations")
    if account.memory["logits"] > 0:
        passing = f"{gib(record.held.get(TEMPORARY, 0))} at the peak"
        notes.append(
            "the plan counts the logits' gradient with them; the recording has it among others, "
            f"as temporary ({passing})"
        )
    gradients = next(row for row in rows if row.part == "gradients")
    if gradients.most_bytes and (gradients.at_peak_bytes or 0) < LATE * gradients.most_bytes:
        notes.append(
            "the recorded peak was before the backward pass had made the gradients; "
            + ("the plan adds all parts up" if gradients.planned_bytes else "so is the plan's")
        )
    return notes


PARTS = (WEIGHTS, GRADIENTS, OPTIMIZER, ACTIVATIONS)
OTHERS, TOTAL = "others", "total"
SURE_SHARE = 0.9
"""Share of the peak whose purpose is known: below it, a part may be larger than was seen, and no
ratio is given."""


def compare_with_plan(
    report: MemoryReport,
    weights_bytes: int | None,
    gradients_bytes: int | None,
    optimizer_bytes: int | None,
    activations_bytes: int | None,
) -> tuple[RecordedMemoryRow, ...]:
    """Part by part, then what a plan has no name for, then all;
    empty where no recording says what holds its peak."""
    record = report.detailed
    if record is None or record.held is None:
        return ()
    planned = dict(
        zip(
            PARTS, (weights_bytes, gradients_bytes, optimizer_bytes, activations_bytes), strict=True
        )
    )
    is_sure = record.held.get(UNKNOWN, 0) <= (1 - SURE_SHARE) * record.peak_bytes
    rows = [
        memory_row(part, size, _at_peak(record, part), _most(record, part), is_sure=is_sure)
        for part, size in planned.items()
    ]
    others = record.peak_bytes - sum(row.at_peak_bytes or 0 for row in rows)
    rows.append(memory_row(OTHERS, None, others, None))
    sizes = [size for size in planned.values() if size is not None]
    whole = sum(sizes) if len(sizes) == len(planned) else None
    rows.append(memory_row(TOTAL, whole, record.peak_bytes, record.peak_bytes))
    return tuple(rows)


def memory_row(
    part: str,
    planned: int | None,
    at_peak: int | None,
    most: int | None,
    *,
    is_sure: bool = True,
) -> RecordedMemoryRow:
    """What was planned beside what was recorded; no ratio where it is not sure that both are of
    the same tensors."""
    ratio = planned / most if planned is not None and most and is_sure else None
    return RecordedMemoryRow(
        part=part, planned_bytes=planned, at_peak_bytes=at_peak, most_bytes=most, ratio=ratio
    )


def _at_peak(record: MemoryRecord, part: str) -> int:
    assert record.held is not None
    return record.held.get(part, 0) + (record.held.get(INPUTS, 0) if part == ACTIVATIONS else 0)


def _most(record: MemoryRecord, part: str) -> int | None:
    return None if record.most is None else record.most.get(part, 0)
