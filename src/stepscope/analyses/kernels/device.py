"""The device's time over the whole trace, by category."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from stepscope.analyses.intervals import Intervals, intersect, join, time_of
from stepscope.core.facts import DeviceTotals
from stepscope.core.trace import Bool, Kind, Trace


class DeviceSets(Struct, frozen=True, kw_only=True):
    """When the device was doing what. The sets overlap where streams ran side by side."""

    compute: Intervals
    comms: Intervals
    copy: Intervals
    busy: Intervals
    span_ns: int
    """From the first start of device work to its last end, events of no length included."""


def device_sets(trace: Trace, collective: Bool) -> DeviceSets:
    """The unions of compute kernels, collectives, and copies and sets."""
    compute = time_of(trace, trace.is_kind(Kind.KERNEL) & ~collective)
    comms = time_of(trace, collective)
    copy = time_of(trace, trace.is_kind(Kind.MEMCPY, Kind.MEMSET))
    work = np.flatnonzero(trace.device_work)
    span = int(trace.end_ns[work].max() - trace.start_ns[work].min()) if len(work) else 0
    return DeviceSets(
        compute=compute, comms=comms, copy=copy, busy=join(compute, comms, copy), span_ns=span
    )


def device_totals(sets: DeviceSets) -> DeviceTotals:
    """Lengths of the unions, exact."""
    return DeviceTotals(
        span=sets.span_ns,
        busy=sets.busy.total,
        compute=sets.compute.total,
        comms=sets.comms.total,
        copy=sets.copy.total,
        comms_under_compute=intersect(sets.comms, sets.compute).total,
    )
