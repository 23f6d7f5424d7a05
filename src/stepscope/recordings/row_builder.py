"""Rows gathered from a recording of AMD's tools, and the Trace they become.

The tools write integer nanoseconds, kernel by kernel and call by call. A row is eleven whole
numbers in one flat array: 88 bytes, however many rows there are.
"""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from stepscope.core.numbers import first_few, true_notes
from stepscope.core.trace import DEVICE_WORK, NONE, DeviceProperties, Int64, Kind, Trace, TraceMeta
from stepscope.readers.format import Source
from stepscope.readers.kineto.event_decoder import SEPARATOR, Scanner
from stepscope.readers.trace.assemble import assemble
from stepscope.readers.trace.categories import LIMIT_NS
from stepscope.readers.trace.columns import Columns

MAX_NAME = 4096
"""Characters kept of a name: kernels of templates have a thousand or two."""
MAX_ROWS = 200_000_000
"""18 GB of rows: what is beyond is counted."""
LARGEST_ID = 2**62
COPIES = {
    "HOST_TO_HOST": "HtoH",
    "HOST_TO_DEVICE": "HtoD",
    "DEVICE_TO_HOST": "DtoH",
    "DEVICE_TO_DEVICE": "DtoD",
}
"""Directions as traces of torch.profiler write them: what looks at copies knows these."""
WIDTH = 11
NO_HOST = (
    "no host calls were recorded (--hip-trace or --sys-trace): what the host did between kernels "
    "is not known"
)
NO_MARKS = (
    "no ROCTx ranges were recorded (--marker-trace): steps are told by the kernels' own pattern, "
    "where they have one"
)
MAX_DEVICE = 2**15 - 1


@dataclass(slots=True)
class RowTraceBuilder:
    """What a reader fills, row by row."""

    scanner: Scanner = field(default_factory=Scanner)
    devices: list[DeviceProperties] = field(default_factory=list)
    has_shapes: bool = False
    notes: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    least_ns: int = 1
    """The earliest start that is a time: AMD's tools write 0 where they have none."""
    wall_ns: int = 0
    """What the wall clock showed when the rows' clock was 0, where that is told."""
    num_left_out: int = 0
    """Rows with no readable time."""
    num_backwards: int = 0
    num_beyond: int = 0
    counts: Counter[Kind] = field(default_factory=Counter)
    """Rows of each kind."""
    _launches: dict[tuple[object, ...], int] = field(default_factory=dict)
    _rows: array[int] = field(default_factory=lambda: array("q"))

    def __len__(self) -> int:
        return len(self._rows) // WIDTH

    def add(
        self,
        kind: Kind,
        name: str,
        start_ns: int,
        end_ns: int,
        *,
        pid: int | str,
        tid: int | str,
        device: int = NONE,
        stream: int = NONE,
        correlation: int = NONE,
        size_bytes: int = NONE,
        detail: int = NONE,
        owner: int = NONE,
    ) -> None:
        """One row. `owner` is the process it is of, where a file may hold several."""
        self.scanner.tally.raw_events += 1
        if not self.least_ns <= start_ns < LIMIT_NS or not 0 <= end_ns < LIMIT_NS:
            self.num_left_out += 1
            return
        if len(self._rows) >= MAX_ROWS * WIDTH:
            self.num_beyond += 1
            return
        if end_ns < start_ns:
            self.num_backwards += 1
            end_ns = start_ns
        name_code, thread = self.scanner.names[name[:MAX_NAME]], self.scanner.threads[pid, tid]
        self.counts[kind] += 1
        self._rows.extend(
            (
                start_ns,
                end_ns - start_ns,
                kind,
                name_code,
                thread,
                device if NONE < device <= MAX_DEVICE else min(max(device, NONE), MAX_DEVICE),
                stream if NONE < stream <= LARGEST_ID else NONE,
                correlation if NONE < correlation <= LARGEST_ID else NONE,
                size_bytes if NONE < size_bytes <= LARGEST_ID else NONE,
                detail,
                owner if NONE < owner <= LARGEST_ID else NONE,
            )
        )

    def keep_busiest(self) -> tuple[int, list[int]]:
        """Keep of several processes with device work the one with the most, with what is nobody's;
        its number, and the others'. Their correlation numbers, streams and devices are counted
        alike: read as one, a kernel would get another's launch.

        Their correlation numbers, streams and devices are counted alike: read as one, a kernel
        would get another's launch.
        """
        work = self.work()
        if len(work) < 2:
            return NONE, []
        busiest = max(work, key=lambda owner: work[owner][0])
        table = self._table()
        kept = table[np.isin(table[:, 10], (busiest, NONE))]
        self.counts = Counter(
            {Kind(kind): count for kind, count in zip(*_counted(kept[:, 2]), strict=True)}
        )
        del table
        self._rows = array("q", kept.tobytes())
        return busiest, [owner for owner in work if owner != busiest]

    def work(self) -> dict[int, tuple[float, bool]]:
        """Nanoseconds of work on devices by owner, and whether there are kernels in it."""
        table = self._table()
        work = table[
            np.isin(table[:, 2], [int(kind) for kind in DEVICE_WORK]) & (table[:, 10] != NONE)
        ]
        owners, owner_index = np.unique(work[:, 10], return_inverse=True)
        total_ns = np.bincount(owner_index, work[:, 1].astype(np.float64), minlength=len(owners))
        kernels = (
            np.bincount(owner_index, work[:, 2] == int(Kind.KERNEL), minlength=len(owners)) > 0
        )
        return dict(
            zip(owners.tolist(), zip(total_ns.tolist(), kernels.tolist(), strict=True), strict=True)
        )

    def _table(self) -> Int64:
        if self._rows:
            return np.frombuffer(self._rows, np.int64).reshape(-1, WIDTH)
        return np.empty((0, WIDTH), np.int64)

    def launch(
        self,
        items: tuple[int, int, int],
        group: tuple[int, int, int],
        registers: int | None,
        shared_bytes: int | None,
    ) -> int:
        """The number of a kernel's geometry. AMD counts a grid in work items; a trace counts it in
        groups of them."""
        key = (items, group, registers, shared_bytes)
        code = self._launches.get(key)
        if code is None:
            grid = [
                -(-total // size) if size > 0 else total
                for total, size in zip(items, group, strict=True)
            ]
            parts = (_json(grid), _json(list(group)), _json(registers), _json(shared_bytes), b"")
            code = self._launches[key] = self.scanner.details[SEPARATOR.join(parts)]
        return code

    def trace(self, source: Source, text_bytes: int, problem: str | None = None) -> Trace:
        """All rows as a Trace. The rows are given away on the way."""
        table = self._table()
        base = int(table[:, 0].min()) if len(table) else 0
        columns = Columns.blank(table[:, 0] - base, table[:, 1].copy())
        columns.kind = table[:, 2].astype(np.uint8)
        columns.name, columns.thread = table[:, 3].astype(np.int32), table[:, 4].astype(np.int32)
        columns.device, columns.stream = table[:, 5].astype(np.int16), table[:, 6].copy()
        columns.correlation, columns.size_bytes = table[:, 7].copy(), table[:, 8].copy()
        columns.detail = table[:, 9].astype(np.int32)
        del table
        self._rows = array("q")
        meta = TraceMeta(
            path=source.label,
            rank=source.rank,
            rank_source=source.rank_source,
            devices=tuple(self.devices),
            base_ns=base + self.wall_ns,
            has_shapes=self.has_shapes,
            versions=dict(self.versions),
            size_bytes=text_bytes,
        )
        troubles = true_notes(
            (problem, f"the file was read only in part: {problem}"),
            (self.num_left_out, "{n} row(s) without a readable time were left out"),
            (self.num_backwards, "{n} row(s) that end before they start count as 0 long"),
            (self.num_beyond, f"{{n}} row(s) past the first {MAX_ROWS} were left out"),
        )
        return assemble([columns], self.scanner, meta, [*self.notes, *troubles])

    def missing_kinds(self) -> tuple[tuple[bool, str], ...]:
        """What is said where kernels came without the calls, or the ranges, around them."""
        has_kernels = bool(self.counts[Kind.KERNEL])
        return (
            (has_kernels and not self.counts[Kind.RUNTIME], NO_HOST),
            (has_kernels and not self.counts[Kind.MARK], NO_MARKS),
        )


def copy_name(operation: str) -> str:
    """`MEMORY_COPY_HOST_TO_DEVICE` as `Memcpy HtoD`: whether the host's memory was pinned is not
    recorded."""
    direction = next(
        (short for long, short in COPIES.items() if operation.upper().endswith(long)), None
    )
    return f"Memcpy {direction}" if direction else operation or "Memcpy"


def several(read: int, others: list[int], how: str) -> str:
    return (
        f"{len(others) + 1} processes have device work in the file: process {read} was read, and "
        f"not {first_few(others)} ({how})"
    )


def _counted(values: Int64) -> tuple[list[int], list[int]]:
    kinds, counts = np.unique(values, return_counts=True)
    return kinds.tolist(), counts.tolist()


def _json(value: list[int] | int | None) -> bytes:
    return b"" if value is None else str(value).encode()
