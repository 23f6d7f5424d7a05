"""What `torch.cuda.memory_summary()` prints, one table or several: the allocator's own counters.

    |                  PyTorch CUDA memory summary, device ID 0                 |
    |            CUDA OOMs: 0            |        cudaMalloc retries: 12        |
    |        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  |
    | Allocated memory      |  40960 MiB |  50000 MiB | 900000 MiB | 859040 MiB |

Several tables of one device are looks at it one after the other. The table may stand anywhere in a
job's output.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from stepscope.api import FormatError, MemoryRecord, Reader, Source, TextLines
from stepscope.core.recordings.memory import MemoryReport, memory_recording
from stepscope.protocol.untrusted import finite_text
from stepscope.recordings.memory.stats import NO_SIZE, growth_note, with_looks

FORMAT = "memory-summary"
TITLE = re.compile(r"\|\s{0,40}PyTorch CUDA memory summary, device ID (\d{1,4})\s{0,40}\|")
TITLE_BYTES = re.compile(rb"\|\s{0,40}PyTorch CUDA memory summary, device ID \d")
TROUBLE = re.compile(r"\|\s*CUDA OOMs: (\d{1,12})\s*\|\s*cudaMalloc retries: (\d{1,12})\s*\|")
ROW = re.compile(r"\|\s?(\S[^|]{0,40}?)\s*\|([^|]{1,20})\|([^|]{1,20})\|[^|]{1,20}\|[^|]{1,20}\|")
SIZE = re.compile(r"\s*(\d{1,15})\s*([KMGTP]?)i?(B?)\s*")
SCALE = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50}
ALLOCATED, RESERVED, SPLIT = "Allocated memory", "GPU reserved memory", "Non-releasable memory"
MAX_TABLES = 10_000
HINT = "print(torch.cuda.memory_summary()) writes what is read"


@dataclass(slots=True)
class SummaryTable:
    device: int
    num_ooms: int | None = None
    num_retries: int | None = None
    sizes: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Bytes now and at the peak, by the metric."""

    def record(self, label: str) -> MemoryRecord:
        held, peak = self.sizes[ALLOCATED]
        reserved = self.sizes.get(RESERVED)
        split = self.sizes.get(SPLIT)
        return MemoryRecord(
            format=FORMAT,
            label=label,
            device=self.device,
            peak_bytes=peak,
            held_bytes=held,
            reserved_bytes=None if reserved is None else reserved[1],
            reserved_now_bytes=None if reserved is None else reserved[0],
            split_bytes=None if split is None else split[1],
            num_retries=self.num_retries,
            num_ooms=self.num_ooms,
        )


def is_mine(head: bytes, _name: str) -> bool:
    return TITLE_BYTES.search(head) is not None


def read(sources: Sequence[Source]) -> MemoryReport:
    """A recording for each device of each file."""
    recordings = []
    for source in sources:
        lines = TextLines(source)
        by_device: dict[int, list[SummaryTable]] = {}
        for table in _tables(lines):
            by_device.setdefault(table.device, []).append(table)
        if not by_device:
            raise FormatError(f"{source.label}: no whole table of the allocator in it; {HINT}")
        for tables in by_device.values():
            looks = [table.record(source.label) for table in tables]
            record = with_looks(looks)
            record.self_check()
            notes = [*lines.notes, *growth_note(looks), NO_SIZE]
            recordings.append(memory_recording(record, notes))
    return MemoryReport(recordings=tuple(recordings))


def _tables(lines: TextLines) -> Iterator[SummaryTable]:
    """Tables that say what tensors hold."""
    table: SummaryTable | None = None
    num = 0
    for line in lines:
        title = TITLE.search(line)
        if title is not None:
            if table is not None and ALLOCATED in table.sizes:
                yield table
            num += 1
            table = SummaryTable(device=int(title[1])) if num <= MAX_TABLES else None
        elif table is not None:
            _take(table, line)
    if table is not None and ALLOCATED in table.sizes:
        yield table


def _take(table: SummaryTable, line: str) -> None:
    trouble, row = TROUBLE.search(line), ROW.search(line)
    if trouble is not None:
        table.num_ooms, table.num_retries = int(trouble[1]), int(trouble[2])
    elif row is not None and row[1] not in table.sizes:
        now, peak = _bytes(row[2]), _bytes(row[3])
        if now is not None and peak is not None:
            table.sizes[row[1]] = now, peak


def _bytes(cell: str) -> int | None:
    match = SIZE.fullmatch(cell)
    number = None if match is None else finite_text(match[1], 0, 1e15)
    return None if match is None or number is None else int(number) * SCALE[match[2]]


READER = Reader(is_mine=is_mine, read_together=read)
