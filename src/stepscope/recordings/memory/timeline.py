"""`export_memory_timeline` of torch.profiler, one or many: bytes by category over time.

.raw.json.gz    [[time_ns, action, bytes, category], ...]       each change; -1 is the time of what
was there before .json           [[time_us, ...], [[0, bytes of each category], ...]] .html
a picture, with no numbers in it: refused
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from stepscope.api import FormatError, MemoryRecord, Reader, Source
from stepscope.core.codec import decode_with
from stepscope.core.recordings.memory import (
    ACTIVATIONS,
    AUTOGRAD,
    GRADIENTS,
    INPUTS,
    OPTIMIZER,
    TEMPORARY,
    UNKNOWN,
    WEIGHTS,
    MemoryRecording,
    MemoryReport,
    memory_recording,
)
from stepscope.readers.whole_file import whole_text

FORMAT = "memory-timeline"
ORDER = (WEIGHTS, OPTIMIZER, INPUTS, TEMPORARY, ACTIVATIONS, GRADIENTS, AUTOGRAD, UNKNOWN)
"""The profiler's numbers for categories (torch/profiler/_memory_profiler.py,
_CATEGORY_TO_INDEX)."""
MAX_BYTES = 96 << 20
"""Five million changes."""
MAX_SIZE = 1 << 50
RAW = re.compile(
    rb"[\s\xef\xbb\xbf]*\[\s*\[\s*-?\d{1,20}\s*,\s*[1-4]\s*,\s*-?\d{1,18}\s*,\s*[0-7]\s*\]"
)
TIMES = re.compile(
    rb"[\s\xef\xbb\xbf]*\[\s*\[\s*-?\d{1,20}\s*(?:,\s*-?\d{1,20}\s*)*(?:,?\s*-?\d{0,20}\Z|\]\s*,\s*(?:\Z|\[))"
)
PICTURE = re.compile(rb"\s*<html>.{0,200}Memory Timeline", re.DOTALL)
INSTEAD = "prof.export_memory_timeline('memory.raw.json.gz') writes what is read"
Rows = list[tuple[int, int, int, int]]
Table = tuple[list[int], list[list[int]]]
_ROWS: msgspec.json.Decoder[Rows] = msgspec.json.Decoder(Rows)
_TABLE: msgspec.json.Decoder[Table] = msgspec.json.Decoder(Table)


def is_mine(head: bytes, name: str) -> bool:  # noqa: ARG001
    return any(shape.match(head) is not None for shape in (RAW, TIMES, PICTURE))


def read(sources: Sequence[Source]) -> MemoryReport:
    recordings: list[MemoryRecording] = []
    for source in sources:
        text, problem = whole_text(source, MAX_BYTES, "record fewer steps")
        if PICTURE.match(text):
            raise FormatError(
                f"{source.label}: a timeline saved as HTML is a picture, with no numbers to read; "
                f"{INSTEAD}"
            )
        record, notes = _record(source.label, text, problem)
        record.self_check()
        recordings.append(memory_recording(record, notes))
    return MemoryReport(recordings=tuple(recordings))


def _record(label: str, text: bytes, problem: str | None) -> tuple[MemoryRecord, list[str]]:
    try:
        if RAW.match(text):
            sizes = _raw(decode_with(_ROWS, text), label)
        else:
            sizes = _table(decode_with(_TABLE, text), label)
    except (ValueError, OverflowError) as wrong:
        raise FormatError(
            f"{label}: not a memory timeline that can be read ({problem or wrong}); {INSTEAD}"
        ) from None
    total = sizes.sum(axis=1)
    peak = int(total.argmax())
    at_peak = {name: int(size) for name, size in zip(ORDER, sizes[peak], strict=True)}
    below = {name: size for name, size in at_peak.items() if size < 0}
    held = {name: size for name, size in at_peak.items() if size > 0}
    record = MemoryRecord(
        format=FORMAT,
        label=label,
        peak_bytes=sum(held.values()),
        held_bytes=max(0, int(total[-1])),
        held=held,
        most={
            name: int(most) for name, most in zip(ORDER, sizes.max(axis=0), strict=True) if most > 0
        },
    )
    return record, list(_notes(below, problem))


def _notes(below: dict[str, int], problem: str | None) -> Iterator[str]:
    yield (
        "the profiler's own categories; what the allocator reserved, and who made a tensor, is "
        "not in a timeline"
    )
    if below:
        names = ", ".join(sorted(below))
        yield (
            f"more was freed than made for {names}: recording began in the middle, and the peak "
            "counts these as nothing"
        )
    if problem:
        yield problem


def _raw(rows: Rows, label: str) -> Any:
    """Bytes by category after each change. A new version of a tensor is two rows, out of
    one category and into one."""
    import numpy as np

    if not rows:
        raise FormatError(f"{label}: the timeline is empty; {INSTEAD}")
    changes = np.array(rows, dtype=np.int64)
    categories, deltas = changes[:, 3], changes[:, 2]
    if (
        categories.min() < 0
        or categories.max() >= len(ORDER)
        or np.abs(deltas.astype(float)).max() > MAX_SIZE
    ):
        raise FormatError(f"{label}: a row names a category or a size that cannot be; {INSTEAD}")
    sizes = np.zeros((len(rows), len(ORDER)), dtype=np.int64)
    sizes[np.arange(len(rows)), categories] = deltas
    return sizes.cumsum(axis=0)


def _table(table: Table, label: str) -> Any:
    """Bytes by category at each time."""
    import numpy as np

    times, rows = table
    if not times or len(times) != len(rows) or any(len(row) != len(ORDER) + 1 for row in rows):
        raise FormatError(
            f"{label}: {len(times)} times and {len(rows)} rows of sizes; each time has one row of "
            f"{len(ORDER) + 1}. {INSTEAD}"
        )
    sizes = np.array(rows, dtype=np.int64)[:, 1:]
    if np.abs(sizes.astype(float)).max() > MAX_SIZE:
        raise FormatError(f"{label}: a size that cannot be; {INSTEAD}")
    return sizes


READER = Reader(is_mine=is_mine, read_together=read)
