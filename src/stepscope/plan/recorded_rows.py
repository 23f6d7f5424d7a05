"""The plan's estimate of memory compared with what a recording measured.

part          planned    at the peak   most ever
weights       571 MB     571 MB        571 MB
gradients     571 MB     0             571 MB       the peak was before backward made them
"""

from __future__ import annotations

from stepscope.core.recordings.memory import (
    ACTIVATIONS,
    GRADIENTS,
    INPUTS,
    OPTIMIZER,
    UNKNOWN,
    WEIGHTS,
    MemoryRecord,
    MemoryReport,
)
from stepscope.plan.contract.plan import RecordedMemoryRow

PARTS = (WEIGHTS, GRADIENTS, OPTIMIZER, ACTIVATIONS)
OTHERS, TOTAL = "others", "total"
SURE_SHARE = 0.9
"""Of the peak whose purpose is known:
below, a part may be larger than was seen, and no ratio is given."""


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
