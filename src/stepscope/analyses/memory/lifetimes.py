"""Every allocation on this rank's device: its bytes, and from when to when it was held."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from stepscope.analyses.grouping import distinct
from stepscope.analyses.links import Links
from stepscope.analyses.rank_context import RankContext
from stepscope.core.trace import NONE, Bool, Int64, Kind, Trace

HOST = 0
"""The recorder's device type of host memory."""
MAX_BYTES = 1 << 50
"""More is no device's."""
NEVER = int(np.iinfo(np.int64).max)


class DeviceEvents(Struct, frozen=True, kw_only=True):
    """The allocator's events on one device, by time."""

    time_ns: Int64
    size_bytes: Int64
    """Bytes of the event; below zero where they are given back."""
    address: Int64
    allocated: Int64
    """Bytes that tensors hold after it."""
    reserved: Int64

    @property
    def base_bytes(self) -> int:
        """Held when the recording began."""
        return max(int(self.allocated[0] - self.size_bytes[0]), 0)


class Lifetimes(Struct, frozen=True, kw_only=True):
    """One entry for each allocation that was seen to begin or to end."""

    size: Int64
    start_ns: Int64
    """`-1` of what was held when the recording began."""
    end_ns: Int64
    """NEVER: held to its end."""

    @property
    def is_made(self) -> Bool:
        made: Bool = self.start_ns >= 0
        return made

    def alive_at(self, moment: int) -> Bool:
        alive: Bool = (self.start_ns <= moment) & (self.end_ns > moment)
        return alive


def device_events(context: RankContext) -> DeviceEvents | None:
    """None where none were recorded."""
    events, device = context.trace.memory, context.device
    if events is None:
        return None
    own = (events.device_type != HOST) & (events.allocated_bytes >= 0) & (events.reserved_bytes > 0)
    own &= (np.abs(events.size_bytes) < MAX_BYTES) & (events.reserved_bytes < MAX_BYTES)
    own &= (events.allocated_bytes < MAX_BYTES) & (events.device >= 0)
    if device is not None:
        own &= events.device == device.index
    elif own.any():
        devices, counts = np.unique(events.device[own], return_counts=True)
        own &= events.device == devices[counts.argmax()]
    if not own.any():
        return None
    return DeviceEvents(
        time_ns=events.time_ns[own],
        size_bytes=events.size_bytes[own],
        address=events.address[own],
        allocated=events.allocated_bytes[own],
        reserved=events.reserved_bytes[own],
    )


def lifetimes(events: DeviceEvents) -> Lifetimes:
    """Each allocation with the next event at its address, which frees it.

    A free without one before it is of what was held when the recording began.
    """
    order = np.lexsort((np.arange(len(events.address)), events.address))
    address, size, time = events.address[order], events.size_bytes[order], events.time_ns[order]
    follows = np.zeros(len(order), np.bool_)
    follows[1:] = (address[1:] == address[:-1]) & (size[1:] < 0) & (size[:-1] > 0)
    end = np.full(len(order), NEVER, np.int64)
    end[:-1][follows[1:]] = time[1:][follows[1:]]
    made, before = size > 0, (size < 0) & ~follows
    return Lifetimes(
        size=np.concatenate([size[made], -size[before]]),
        start_ns=np.concatenate([time[made], np.full(int(before.sum()), NONE, np.int64)]),
        end_ns=np.concatenate([end[made], time[before]]),
    )


def open_ranges(trace: Trace, links: Links, moments: Int64) -> Int64:
    """The innermost host range that was open at each moment; of several threads', the one that
    began last: while autograd's thread works, the main one waits for it."""
    innermost = np.full(len(moments), NONE, np.int64)
    ranges = np.flatnonzero(trace.is_kind(Kind.OP, Kind.MARK, Kind.PYTHON))
    has_ops = distinct(trace.thread[trace.is_kind(Kind.OP)])
    for thread in has_ops.tolist():
        mine = ranges[trace.thread[ranges] == thread]
        before = np.searchsorted(trace.start_ns[mine], moments, side="right") - 1
        event = np.where(before >= 0, mine[np.maximum(before, 0)], NONE)
        while (over := (event != NONE) & (trace.end_ns[event] < moments)).any():
            event[over] = links.parent[event[over]]
        later = (event != NONE) & (
            (innermost == NONE) | (trace.start_ns[event] > trace.start_ns[innermost])
        )
        innermost = np.where(later, event, innermost)
    return innermost
