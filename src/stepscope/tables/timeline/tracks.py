"""What a timeline draws besides the recorded events:
the steps, the partition, and counters, as columns over time."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from stepscope.analyses.collectives.waits import waiting
from stepscope.analyses.intervals import Intervals, bounds, empty, intersect, union
from stepscope.analyses.rank_context import RankContext
from stepscope.analyses.steps.partition import split_waits
from stepscope.core.comms import CollectiveRecords, Matched
from stepscope.core.facts import PARTS
from stepscope.core.trace import NONE, Float64, Int64, Kind

CPU = 0
"""The allocator's device type of host memory; the others are devices."""


class Spans(Struct, frozen=True, kw_only=True):
    """Slices that follow one another, by start, each with a name out of a table."""

    start_ns: Int64
    end_ns: Int64
    name: Int64
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.start_ns)

    def self_check(self) -> None:
        assert len(self.start_ns) == len(self.end_ns) == len(self.name)
        assert bool((self.end_ns >= self.start_ns).all())
        assert bool((self.start_ns[1:] >= self.end_ns[:-1]).all()), "slices that overlap"


class Series(Struct, frozen=True, kw_only=True):
    """A figure over time: each value holds until the next."""

    name: str
    unit: str
    time_ns: Int64
    value: Float64

    def __len__(self) -> int:
        return len(self.time_ns)


def step_spans(context: RankContext) -> Spans:
    """The measured windows."""
    start, end = bounds(context.cut.steps.windows)
    names = tuple(f"step {number + 1} of {len(start)}" for number in range(len(start)))
    return Spans(start_ns=start, end_ns=end, name=np.arange(len(start)), names=names)


def partition_spans(
    context: RankContext, records: CollectiveRecords | None = None, matched: Matched | None = None
) -> Spans:
    """Every nanosecond of the measured windows in one of PARTS;
    waits are split off where the ranks were matched."""
    steps = context.cut.steps
    if not steps.windows:
        return Spans(start_ns=_none(), end_ns=_none(), name=_none(), names=PARTS)
    waits = None
    if records is not None and matched is not None and len(records):
        waits = waiting(records, matched)
    parts = split_waits(context.parts, waits)
    measured = union(*bounds(steps.windows))
    cut = [intersect(parts.get(part, empty()), measured) for part in PARTS]
    start = np.concatenate([part_set.start for part_set in cut])
    end = np.concatenate([part_set.end for part_set in cut])
    name = np.repeat(np.arange(len(PARTS)), [len(part_set) for part_set in cut])
    order = np.argsort(start, kind="stable")
    return Spans(start_ns=start[order], end_ns=end[order], name=name[order], names=PARTS)


def queue_depth(context: RankContext) -> Series | None:
    """Device work that was launched and has not begun; None where no launch was recorded."""
    trace, links = context.trace, context.links
    work = np.flatnonzero(trace.device_work & (links.launch != NONE))
    if not len(work):
        return None
    launched = trace.start_ns[links.launch[work]]
    # The recorder's two clocks differ by microseconds:
    # work that seems to begin before its launch waited for nothing.
    begun = np.maximum(trace.start_ns[work], launched)
    time, depth = _running(np.concatenate((launched, begun)), np.repeat([1.0, -1.0], len(work)))
    return Series(name="queue depth", unit="launched, not begun", time_ns=time, value=depth)


def copy_bandwidth(context: RankContext) -> Series | None:
    """Bytes a second of the copies under way; None where no copy's size was recorded."""
    trace = context.trace
    copies = np.flatnonzero(
        trace.is_kind(Kind.MEMCPY) & (trace.size_bytes >= 0) & (trace.dur_ns > 0)
    )
    return _bandwidth(
        "copy bandwidth",
        Intervals(trace.start_ns[copies], trace.end_ns[copies]),
        trace.size_bytes[copies],
    )


def collective_bandwidth(records: CollectiveRecords | None) -> Series | None:
    """Message bytes over the time of the collectives under way, waiting included;
    None where no size was recorded."""
    if records is None or not len(records):
        return None
    kind_bytes = np.array(
        [NONE if kind.bytes is None else kind.bytes for kind in records.kinds], np.int64
    )
    size = kind_bytes[records.kind]
    is_known = np.flatnonzero((size >= 0) & (records.end_ns > records.start_ns))
    return _bandwidth(
        "collective bandwidth",
        Intervals(records.start_ns[is_known], records.end_ns[is_known]),
        size[is_known],
    )


def allocator_memory(context: RankContext) -> list[Series]:
    """What each device's allocator held and had reserved, after each allocation;
    nothing where it was not recorded."""
    memory = context.trace.memory
    if memory is None:
        return []
    series = []
    where = np.stack((memory.device_type.astype(np.int64), memory.device.astype(np.int64)))
    for kind, device in np.unique(where, axis=1).T.tolist():
        mine = (memory.device_type == kind) & (memory.device == device)
        owner = "host" if kind == CPU else "device"
        if kind != CPU and device >= 0:
            owner = f"device {device}"
        for what, column in (
            ("allocated", memory.allocated_bytes),
            ("reserved", memory.reserved_bytes),
        ):
            is_recorded = mine & (column >= 0)
            if is_recorded.any():
                value = column[is_recorded].astype(np.float64)
                series.append(
                    Series(
                        name=f"{owner} memory {what}",
                        unit="bytes",
                        time_ns=memory.time_ns[is_recorded],
                        value=value,
                    )
                )
    return series


def _bandwidth(name: str, when: Intervals, size_bytes: Int64) -> Series | None:
    if not len(when.start):
        return None
    rate = size_bytes * 1e9 / (when.end - when.start)
    time, value = _running(np.concatenate((when.start, when.end)), np.concatenate((rate, -rate)))
    # Nothing under way is nothing,
    # and not what floats leave when the same rates are added and taken away.
    _, under_way = _running(
        np.concatenate((when.start, when.end)), np.repeat([1.0, -1.0], len(when.start))
    )
    return Series(
        name=name, unit="bytes/s", time_ns=time, value=np.where(under_way > 0, value, 0.0)
    )


def _running(time: Int64, change: Float64) -> tuple[Int64, Float64]:
    """The sum of all changes up to each moment, once for each.

    time    change        time    sum
    10      +1            10      2
    10      +1            15      1
    15      -1
    """
    order = np.argsort(time, kind="stable")
    time, total = time[order], np.cumsum(change[order])
    last = np.append(np.diff(time) != 0, True)
    return time[last], total[last]


def _none() -> Int64:
    return np.empty(0, np.int64)
