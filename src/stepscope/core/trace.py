"""Trace: one rank's recording as numpy columns."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]
Int32 = NDArray[np.int32]
Int16 = NDArray[np.int16]
UInt8 = NDArray[np.uint8]
Bool = NDArray[np.bool_]

NONE = -1
"""Mark of what was not recorded, in a column of codes, identifiers or sizes."""


class Kind(IntEnum):
    """What an event is, by the category the recorder gave it; never by its name."""

    OP = 0  # a framework operator on the host
    MARK = 1  # a named range on the host (record_function, ProfilerStep, nvtx)
    PYTHON = 2  # a Python frame
    RUNTIME = 3  # a call into the device's runtime or driver
    KERNEL = 4
    MEMCPY = 5
    MEMSET = 6
    SYNC = 7  # the device's own record of a wait: a wait, not work
    DEVICE_MARK = 8  # a host range drawn on the device's timeline: no work of its own
    OVERHEAD = 9  # the profiler's own time
    COMPILE = 10
    OTHER = 11  # a category we do not know: counted and named in `Trace.unknown`


DEVICE_WORK = (Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET)
HOST_RANGES = (Kind.OP, Kind.MARK, Kind.PYTHON, Kind.RUNTIME)


class Thread(Struct, frozen=True, kw_only=True):
    """Where an event happened: a host thread, or a device's stream."""

    pid: str
    tid: str
    name: str | None = None


class OpInputs(Struct, frozen=True, kw_only=True):
    """An operator's recorded inputs, as JSON text exactly as the recorder wrote it; `None` when
    that part was not recorded."""

    dims: str | None
    types: str | None
    strides: str | None
    concrete: str | None


class Launch(Struct, frozen=True, kw_only=True):
    """A kernel's launch geometry."""

    grid: tuple[int, ...] | None
    block: tuple[int, ...] | None
    registers: int | None
    shared_bytes: int | None
    occupancy_pct: float | None


class CollectiveArgs(Struct, frozen=True, kw_only=True):
    """What the recorder wrote about one collective."""

    name: str | None
    group: str | None
    description: str | None
    ranks: str | None
    group_size: int | None
    dtype: str | None
    in_elements: int | None
    out_elements: int | None
    in_split: str | None
    out_split: str | None
    sequence: int | None
    peer: int | None = None
    """The rank a send goes to or a receive comes from, counted in the job."""


Detail = OpInputs | Launch | None


class MemoryEvents(Struct, frozen=True, kw_only=True):
    """The allocator's events (profile_memory=True), by time."""

    time_ns: Int64
    size_bytes: Int64
    address: Int64
    allocated_bytes: Int64
    reserved_bytes: Int64
    device_type: Int16
    device: Int16


ENDS_EARLY = "the file ends before its end"
ENDS_INSIDE = "the file ends inside a packet"
READ_IN_PART = "the file was read only in part"
CUT_NOTES = (ENDS_EARLY, ENDS_INSIDE, READ_IN_PART)
"""How the notes of readers begin on a file that was cut."""
CLOCK_BACK = "the recording's clock ran back"
CLOCKS_DIFFER = "the clocks of host and device disagree"
CLOCK_JUMPED = "the clock jumped"
EVENTS_MISSING = "events are missing"
CLOCK_STOOD = "the device stood still, or its clock jumped"
CLOCK_NOTES = (CLOCK_BACK, CLOCKS_DIFFER, CLOCK_STOOD)
"""How notes begin on times that cannot be right."""


class DeviceProperties(Struct, frozen=True, kw_only=True):
    """A device as the recorder described it."""

    index: int
    name: str
    memory_bytes: int | None
    num_sms: int | None
    compute_capability: tuple[int, int] | None
    warp_size: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceMeta:
    """What is known about the recording besides its events."""

    path: str
    rank: int | None = None
    rank_source: str = "not known"
    world_size: int | None = None
    process_groups: tuple[Mapping[str, Any], ...] = ()
    devices: tuple[DeviceProperties, ...] = ()
    base_ns: int = 0
    has_shapes: bool = False
    has_stacks: bool = False
    versions: Mapping[str, str] = field(default_factory=dict)
    size_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One rank's events as columns, sorted by start and, at one start, the longest first.

    Every column has one entry per event. Times are integer nanoseconds; a wall-clock time is
    `meta.base_ns + start_ns`. Codes point into the tables beside the columns. `detail` points into
    `details`: an OpInputs for an OP, a Launch for a KERNEL.
    """

    start_ns: Int64
    dur_ns: Int64
    kind: UInt8
    name: Int32
    thread: Int32
    device: Int16
    stream: Int64
    correlation: Int64
    external: Int64
    sequence: Int64
    fwd_thread: Int64
    size_bytes: Int64
    detail: Int32
    collective: Int32

    names: tuple[str, ...]
    threads: tuple[Thread, ...]
    details: tuple[Detail, ...]
    collectives: tuple[CollectiveArgs, ...]
    memory: MemoryEvents | None = None
    meta: TraceMeta
    num_raw_events: int
    """Entries the file held, of any phase, whether or not they became rows here."""
    unknown: Mapping[str, int] = field(default_factory=dict)
    """Events whose category or phase we do not understand, by that name."""
    notes: tuple[str, ...] = ()
    _derived: dict[str | re.Pattern[str], NDArray[Any]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """What was worked out of the columns and is asked for often."""

    COLUMNS = (
        "start_ns", "dur_ns", "kind", "name", "thread", "device", "stream", "correlation",
        "external", "sequence", "fwd_thread", "size_bytes", "detail", "collective",
    )  # fmt: skip

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def end_ns(self) -> Int64:
        if "end_ns" not in self._derived:
            self._derived["end_ns"] = self.start_ns + self.dur_ns
        end: Int64 = self._derived["end_ns"]
        return end

    @property
    def is_cut(self) -> bool:
        """Whether its file ends before its end, so that events are missing."""
        return any(note.startswith(CUT_NOTES) for note in self.notes)

    def is_kind(self, *kinds: Kind) -> Bool:
        """Mask of the events of these kinds."""
        # A plain int: numpy would widen the column for the enumeration's member.
        mask: Bool = self.kind == int(kinds[0])
        for kind in kinds[1:]:
            mask |= self.kind == int(kind)
        return mask

    def is_named(self, pattern: re.Pattern[str]) -> Bool:
        """Mask of the entries of `names` that the pattern finds. Tried once, however many ask."""
        if pattern not in self._derived:
            matches = [pattern.search(name) is not None for name in self.names]
            self._derived[pattern] = np.array(matches, np.bool_)
        is_named: Bool = self._derived[pattern]
        return is_named

    @property
    def device_work(self) -> Bool:
        """Mask of kernels, copies and sets: the device's work, by category alone."""
        return self.is_kind(*DEVICE_WORK)

    def first(self, num: int) -> Trace:
        """The events that began first, as views: an index into them is one into the whole."""
        return replace(self, **{column: getattr(self, column)[:num] for column in self.COLUMNS})

    def self_check(self) -> None:
        """Assert what every reader promises: equal columns, sorted, no negative duration, codes
        that point somewhere."""
        for column in self.COLUMNS:
            assert len(getattr(self, column)) == len(self), f"column {column} has another length"
        assert bool((self.dur_ns >= 0).all()), "negative duration"
        later = np.diff(self.start_ns)
        assert bool((later >= 0).all()), "not sorted by start"
        assert bool((np.diff(self.dur_ns)[later == 0] <= 0).all()), (
            "at one start, the longest comes first"
        )
        for column, table in (
            ("name", self.names),
            ("thread", self.threads),
            ("detail", self.details),
            ("collective", self.collectives),
        ):
            codes = getattr(self, column)
            if len(codes):
                low = 0 if column in ("name", "thread") else NONE
                assert int(codes.min()) >= low and int(codes.max()) < len(table), (
                    f"column {column} points outside its table"
                )
