"""`torch.cuda.memory_stats()` as JSON, one or many: the allocator's own counters, flat or nested,
of one device or several.

    {"allocated_bytes.all.peak": 4499450368, "reserved_bytes.all.peak": ..., "num_ooms": 0, ...}

A list of looks at one device, one after the other, says whether it grows: its peaks never fall.
`total_memory`, which torch.cuda.get_device_properties() has, may be added to them: then it is
known how full the device was.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from msgspec.structs import replace

from stepscope.api import FormatError, MemoryRecord, Reader, Source
from stepscope.core.numbers import size_words
from stepscope.core.recordings.memory import MemoryRecording, MemoryReport, Step, memory_recording
from stepscope.readers.whole_file import whole_json

NO_SIZE = (
    "it does not say how large the device is; with nvidia-smi's log next to it, how full the "
    "device was is judged too"
)
FORMAT = "memory-stats"
MAX_BYTES = 16 << 20
"""A device has 5 KiB."""
MAX_DEVICES = 1024
MAX_COUNT = 1 << 62
MAX_LOOKS = 100_000
MIN_LOOKS = 3
"""Looks from which a list is taken for looks at one device."""
RISING = ("allocated_bytes.all.allocated", "allocation.all.allocated", "allocated_bytes.all.peak")
"""Counters that never fall in a process, the ones first that rise with every allocation."""
MARK = re.compile(
    rb'"(?:allocated|reserved)_bytes(?:\.all\.(?:current|peak|allocated|freed)"|"\s*:\s*\{\s*"(?:all|large_pool|small_pool)")'
)
JSON_START = re.compile(rb"[\s\xef\xbb\xbf]*[\[{]")
NUMBERED = re.compile(r"(?:cuda:?|gpu|device)?[ _]?(\d{1,4})", re.IGNORECASE)
INSTEAD = "json.dump(torch.cuda.memory_stats(), file) writes what is read"


def is_mine(head: bytes, name: str) -> bool:  # noqa: ARG001
    return (
        JSON_START.match(head) is not None
        and b'"traceEvents"' not in head
        and MARK.search(head) is not None
    )


def read(sources: Sequence[Source]) -> MemoryReport:
    recordings: list[MemoryRecording] = []
    for source in sources:
        document, _ = whole_json(source, MAX_BYTES, INSTEAD)
        devices = list(_devices(document))
        if not devices:
            raise FormatError(f"{source.label}: no allocated_bytes.all.peak in it; {INSTEAD}")
        if isinstance(document, list) and _is_one_device([stats for _, stats in devices]):
            looks = [_record(source.label, None, stats) for _, stats in devices[:MAX_LOOKS]]
            notes = [*growth_note(looks), *_notes(devices[-1][1])]
            recordings.append(memory_recording(with_looks(looks), notes))
            continue
        for device, stats in devices[:MAX_DEVICES]:
            record = _record(source.label, device if len(devices) > 1 else None, stats)
            record.self_check()
            recordings.append(memory_recording(record, _notes(stats)))
    return MemoryReport(recordings=tuple(recordings))


def _devices(document: Any) -> Iterator[tuple[int, dict[str, Any]]]:
    """The counters of each device: alone, in a list, or under each one's name."""
    if isinstance(document, dict):
        if _count(document, "allocated_bytes.all.peak") is not None:
            yield 0, document
            return
        named = [(NUMBERED.fullmatch(name), stats) for name, stats in document.items()]
        if all(number for number, _ in named):
            for number, stats in named:
                if (
                    number
                    and isinstance(stats, dict)
                    and _count(stats, "allocated_bytes.all.peak") is not None
                ):
                    yield int(number[1]), stats
            return
        document = list(document.values())
    if isinstance(document, list):
        for device, stats in enumerate(document):
            if isinstance(stats, dict) and _count(stats, "allocated_bytes.all.peak") is not None:
                yield device, stats


def _is_one_device(looks: Sequence[dict[str, Any]]) -> bool:
    """Whether a counter that cannot fall rises from each to the next; between devices it falls
    somewhere."""
    for name in RISING:
        counts = [_count(stats, name) for stats in looks]
        known = [count for count in counts if count is not None]
        if len(known) == len(counts) and len(counts) >= MIN_LOOKS:
            return all(before < after for before, after in pairwise(known))
    return False


def with_looks(looks: Sequence[MemoryRecord]) -> MemoryRecord:
    """The last look, with what all of them held: a look stands for a step."""
    held = [look.held_bytes for look in looks]
    steps = [Step(floor_bytes=size) for size in held if size is not None]
    return replace(looks[-1], steps=tuple(steps) if 1 < len(steps) == len(held) else ())


def growth_note(looks: Sequence[MemoryRecord]) -> Iterator[str]:
    if len(looks) > 1:
        yield (
            f"{len(looks):,} looks at one device: for what grows they are taken for steps, each "
            "at the same place of one"
        )


def _record(label: str, device: int | None, stats: dict[str, Any]) -> MemoryRecord:
    peak = _count(stats, "allocated_bytes.all.peak")
    assert peak is not None
    return MemoryRecord(
        format=FORMAT,
        label=label,
        device=device,
        peak_bytes=peak,
        held_bytes=_count(stats, "allocated_bytes.all.current"),
        reserved_bytes=_count(stats, "reserved_bytes.all.peak"),
        reserved_now_bytes=_count(stats, "reserved_bytes.all.current"),
        capacity_bytes=_count(stats, "total_memory") or None,
        split_bytes=_count(stats, "inactive_split_bytes.all.peak"),
        num_retries=_count(stats, "num_alloc_retries"),
        num_ooms=_count(stats, "num_ooms"),
    )


def _notes(stats: dict[str, Any]) -> Iterator[str]:
    current = _count(stats, "allocated_bytes.all.current")
    reserved = _count(stats, "reserved_bytes.all.current")
    split = _count(stats, "inactive_split_bytes.all.current")
    if current is not None and reserved:
        remainder = "" if split is None else f", {size_words(split)} of that between used blocks"
        yield (
            f"when it was written, {size_words(reserved)} were reserved and "
            f"{size_words(reserved - current)} of it free{remainder}"
        )
    if not _count(stats, "total_memory"):
        yield f"{NO_SIZE} (or with total_memory among the counters)"
    yield (
        "counters do not say what holds the peak, nor what was reserved at it; a memory snapshot "
        "does"
    )


def _count(stats: dict[str, Any], name: str) -> int | None:
    """A counter, by its flat name or down the nested one."""
    value: Any = stats.get(name)
    if value is None:
        value = stats
        for part in name.split("."):
            value = value.get(part) if isinstance(value, dict) else None
    return value if type(value) is int and 0 <= value < MAX_COUNT else None


READER = Reader(is_mine=is_mine, read_together=read)
