"""What scanning fills: a chunk's columns, the tables their codes point into, and the count of what
could not be read."""

from __future__ import annotations

import mmap
from typing import Any, Generic, TypeVar

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from stepscope.core.trace import NONE, Int64, Trace

K = TypeVar("K")

COLUMN_DTYPES: dict[str, Any] = dict.fromkeys(Trace.COLUMNS, np.int64) | {
    "kind": np.uint8,
    "name": np.int32,
    "thread": np.int32,
    "device": np.int16,
    "detail": np.int32,
    "collective": np.int32,
}
NEVER_NONE = ("kind", "name", "thread")

BLOCK_ROWS = 1 << 22
"""Of the arrays that many chunks are put together in."""
HUGE_ROWS = 1 << 18
"""From here on they get huge pages, where the system has them: fewer to be made. One for each
column would be more than a small trace takes."""
HUGE_PAGES = getattr(mmap, "MADV_HUGEPAGE", None)


class Codes(dict[K, int], Generic[K]):
    """Numbers things in the order they are first seen; the `blanks` are all NONE."""

    def __init__(self, *blanks: K) -> None:
        super().__init__(dict.fromkeys(blanks, NONE))
        self._num_blanks = len(blanks)

    def __missing__(self, key: K) -> int:
        code = self[key] = len(self) - self._num_blanks
        return code

    def table(self) -> list[K]:
        """The things by their number."""
        return list(self)[self._num_blanks :]


class Columns(Struct, kw_only=True):
    """One chunk's complete events as arrays, and what else it held."""

    start_ns: Int64
    dur_ns: Int64
    kind: NDArray[np.uint8]
    name: NDArray[np.int32]
    thread: NDArray[np.int32]
    device: NDArray[np.int16]
    stream: Int64
    correlation: Int64
    external: Int64
    sequence: Int64
    fwd_thread: Int64
    size_bytes: Int64
    detail: NDArray[np.int32]
    collective: NDArray[np.int32]
    memory: Int64 | None = None
    """One row per allocator event: time, then scan.MEMORY_FIELDS."""

    @classmethod
    def blank(cls, start_ns: Int64, dur_ns: Int64) -> Columns:
        """Columns of that many events of which only the times are known."""
        n = len(start_ns)
        others = {
            name: np.full(n, 0 if name in NEVER_NONE else NONE, dtype)
            for name, dtype in COLUMN_DTYPES.items()
            if name not in ("start_ns", "dur_ns")
        }
        return cls(start_ns=start_ns, dur_ns=dur_ns, **others)


class Blocks:
    """The columns of many chunks, put together as they come, in few large arrays.

    Each array is a mapping of its own: what is not filled takes no memory, and what is given up
    goes back to the system, wherever it lies."""

    def __init__(self) -> None:
        self._blocks: list[Columns] = []
        self._room: dict[str, NDArray[Any]] = {}
        self._mappings: list[mmap.mmap] = []
        """Of the rooms that have small pages."""
        self._num = 0
        self._memory: list[Int64] = []

    def add(self, columns: Columns) -> None:
        """Copy a chunk's columns to where the next rows are."""
        num = len(columns.start_ns)
        if num > BLOCK_ROWS - self._num or not self._room:
            self._close()
            for name in Trace.COLUMNS:
                self._make_room(name, max(num, BLOCK_ROWS), getattr(columns, name).dtype)
        for name, room in self._room.items():
            room[self._num : self._num + num] = getattr(columns, name)
        self._num += num
        if self._num > HUGE_ROWS and HUGE_PAGES is not None:
            for mapping in self._mappings:
                mapping.madvise(HUGE_PAGES)
            self._mappings = []
        if columns.memory is not None:
            self._memory.append(columns.memory)

    def take(self) -> list[Columns]:
        """All that was added, in its order."""
        self._close()
        return self._blocks

    def _close(self) -> None:
        if self._room:
            filled = {name: room[: self._num] for name, room in self._room.items()}
            memory = np.concatenate(self._memory) if self._memory else None
            self._blocks.append(Columns(**filled, memory=memory))
        self._room, self._mappings, self._num, self._memory = {}, [], 0, []

    def _make_room(self, name: str, num: int, dtype: np.dtype[Any]) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        mapping = mmap.mmap(-1, num * dtype.itemsize, flags=flags)
        self._mappings.append(mapping)
        self._room[name] = np.frombuffer(mapping, dtype)


class Tally(Struct):
    """What a scan could not turn into plain rows, by kind of trouble."""

    raw_events: int = 0
    no_time: int = 0
    no_duration: int = 0
    negative_duration: int = 0
    rescued: int = 0
    malformed: int = 0
    unknown: dict[str, int] = field(default_factory=dict)

    def count_unknown(self, label: str, number: int = 1) -> None:
        self.unknown[label] = self.unknown.get(label, 0) + number
