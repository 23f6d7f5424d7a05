"""What scanning fills: a chunk's columns, the tables their codes point into, and the count of what
could not be read.

The shapes a trace event decodes into, and nothing else.

One struct per phase, distinguished by `ph`. Fields we do not use are skipped by the decoder without
being built. Defaults stand for "not there": NONE for numbers, an empty Raw for text kept as it is.
"""

from __future__ import annotations

import mmap
from functools import reduce
from operator import or_
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
from msgspec import Raw, Struct, field
from numpy.typing import NDArray

from stepscope.core.trace import NONE, Int64, Trace
from stepscope.readers.trace.categories import OTHER_PHASES, SILENT_PHASES, ns_from_text

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
"""Rows of the arrays that many chunks are put together in."""
HUGE_ROWS = 1 << 18
"""Rows from which they get huge pages, where the system has them: fewer to be made. One for each
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
        """Buffers still on small pages."""
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


Number = int | str | None
EMPTY = Raw(b"")


class Args(Struct, gc=False, frozen=True):
    """The arguments of a complete event, of whatever category. In the order they are written in:
    the decoder then looks once."""

    external: Number = msgspec.field(default=NONE, name="External id")
    sequence: Number = msgspec.field(default=NONE, name="Sequence number")
    fwd_thread: Number = msgspec.field(default=NONE, name="Fwd thread id")
    concrete: Raw = msgspec.field(default=EMPTY, name="Concrete Inputs")
    types: Raw = msgspec.field(default=EMPTY, name="Input type")
    strides: Raw = msgspec.field(default=EMPTY, name="Input Strides")
    dims: Raw = msgspec.field(default=EMPTY, name="Input Dims")
    correlation: Number = NONE
    device: Number = NONE
    stream: Number = NONE
    bytes: Number = NONE
    grid: Raw = EMPTY
    block: Raw = EMPTY
    registers: Raw = msgspec.field(default=EMPTY, name="registers per thread")
    shared: Raw = msgspec.field(default=EMPTY, name="shared memory")
    occupancy: Raw = msgspec.field(default=EMPTY, name="est. achieved occupancy %")
    size: Number = NONE
    coll_name: Raw = msgspec.field(default=EMPTY, name="Collective name")
    coll_group: Raw = msgspec.field(default=EMPTY, name="Process Group Name")
    coll_id: Raw = msgspec.field(default=EMPTY, name="Process Group ID")
    coll_desc: Raw = msgspec.field(default=EMPTY, name="Process Group Description")
    coll_ranks: Raw = msgspec.field(default=EMPTY, name="Process Group Ranks")
    coll_size: Raw = msgspec.field(default=EMPTY, name="Group size")
    coll_dtype: Raw = msgspec.field(default=EMPTY, name="dtype")
    coll_in: Raw = msgspec.field(default=EMPTY, name="In msg nelems")
    coll_out: Raw = msgspec.field(default=EMPTY, name="Out msg nelems")
    coll_in_split: Raw = msgspec.field(default=EMPTY, name="In split size")
    coll_out_split: Raw = msgspec.field(default=EMPTY, name="Out split size")
    coll_seq: Raw = msgspec.field(default=EMPTY, name="Seq")
    coll_src: Raw = msgspec.field(default=EMPTY, name="Src Rank")
    coll_dst: Raw = msgspec.field(default=EMPTY, name="Dst Rank")


NO_ARGS = Args()


class _Named(Struct, gc=False):
    cat: str = ""
    name: str = ""
    pid: int | str = ""
    tid: int | str = ""


class Complete(_Named, tag_field="ph", tag="X", gc=False):
    """An event with a start and a duration, in microseconds as doubles."""

    ts: float = float("nan")
    dur: float = float("nan")
    args: Args = NO_ARGS


class CompleteText(_Named, tag_field="ph", tag="X", gc=False):
    """The same with its times as text, for files whose times a double cannot hold."""

    ts: Raw = EMPTY
    dur: Raw = EMPTY
    args: Args = NO_ARGS


class MetaArgs(Struct, gc=False):
    name: Raw = EMPTY
    labels: Raw = EMPTY


class Meta(Struct, tag_field="ph", tag="M", gc=False):
    """A name for a process or a thread."""

    name: str = ""
    pid: int | str = ""
    tid: int | str = ""
    args: MetaArgs | None = None


class InstantArgs(Struct, gc=False):
    bytes: Number = msgspec.field(default=NONE, name="Bytes")
    address: Number = msgspec.field(default=NONE, name="Addr")
    allocated: Number = msgspec.field(default=NONE, name="Total Allocated")
    reserved: Number = msgspec.field(default=NONE, name="Total Reserved")
    device_type: Number = msgspec.field(default=NONE, name="Device Type")
    device: Number = msgspec.field(default=NONE, name="Device Id")


class Instant(Struct, tag_field="ph", tag="i", gc=False):
    """A moment; the allocator's events are written as these."""

    cat: str = ""
    name: str = ""
    ts: Raw = EMPTY
    args: InstantArgs | None = None


class Begin(_Named, tag_field="ph", tag="B", gc=False):
    """The start of a range, in traces that write starts and ends apart."""

    ts: Raw = EMPTY
    args: Args = NO_ARGS


class End(Struct, tag_field="ph", tag="E", gc=False):
    pid: int | str = ""
    tid: int | str = ""
    ts: Raw = EMPTY


def _phase(phase: str) -> type[Struct]:
    return msgspec.defstruct(f"Phase{ord(phase)}", [], tag_field="ph", tag=phase, gc=False)


SILENT = tuple(map(_phase, sorted(SILENT_PHASES - {"M", "i"})))
COUNTED = {_phase(phase): phase for phase in OTHER_PHASES}
KEPT = frozenset((Meta, Instant, Begin, End, *COUNTED))
"""What is looked at besides complete events."""

REST: tuple[type[Struct], ...] = (Meta, Instant, Begin, End, *SILENT, *COUNTED)
_any_rest: Any = reduce(or_, REST)
ANY_EVENT = Complete | _any_rest
ANY_EVENT_TEXT = CompleteText | _any_rest


MAX_OPEN = 100_000
"""Ranges open at once, over all threads; real programs nest some hundred deep."""


class RangePairs(Struct):
    """The ranges still open, per thread; an end closes the one opened last on its thread."""

    _open: dict[tuple[int | str, int | str], list[tuple[Begin, int | None]]] = field(
        default_factory=dict
    )
    _num_open: int = 0

    def take(self, edge: Begin | End, tally: Tally) -> tuple[CompleteText, int, int] | None:
        """The complete event that `edge` ends, with its start and duration; None when it ends none.
        Oddities are counted."""
        at = ns_from_text(bytes(edge.ts).decode("utf-8", "replace"))
        place = (edge.pid, edge.tid)
        if isinstance(edge, Begin):
            if self._num_open >= MAX_OPEN:
                tally.count_unknown("phase B without its E")
                return None
            self._open.setdefault(place, []).append((_owned(edge), at))
            self._num_open += 1
            return None
        stack = self._open.get(place)
        if not stack:
            tally.count_unknown("phase E without its B")
            return None
        begin, start = stack.pop()
        self._num_open -= 1
        if start is None or at is None:
            tally.no_time += 1
            return None
        if at < start:
            tally.negative_duration += 1
        event = CompleteText(
            cat=begin.cat, name=begin.name, pid=begin.pid, tid=begin.tid, args=begin.args
        )
        return event, start, max(at - start, 0)

    def count_open(self, tally: Tally) -> None:
        """Count the ranges that never ended: none is given a guessed end."""
        if self._num_open:
            tally.count_unknown("phase B without its E", self._num_open)


def _owned(begin: Begin) -> Begin:
    """The same with no part of it pointing into its chunk, which would otherwise stay in memory as
    long as the range is open."""
    begin.ts = Raw(b"")
    if begin.args is not NO_ARGS:
        parts: dict[str, Any] = {name: getattr(begin.args, name) for name in Args.__struct_fields__}
        parts = {
            name: part.copy() if isinstance(part, Raw) else part for name, part in parts.items()
        }
        begin.args = Args(**parts)
    return begin
