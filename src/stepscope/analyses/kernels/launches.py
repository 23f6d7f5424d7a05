"""How far the host runs ahead of the device."""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct

from stepscope.analyses.graph_replays import in_capture
from stepscope.analyses.grouping import distinct, matching, median
from stepscope.analyses.host.activity import SHORT_GAP_NS, HostActivity, close_gaps
from stepscope.analyses.intervals import (
    Intervals,
    complement,
    contains,
    intersect,
    join,
    subtract,
    time_of,
)
from stepscope.analyses.links import Links
from stepscope.core.facts import DeviceTotals, Launches
from stepscope.core.trace import NONE, Bool, Int64, Kind, Trace


class DeviceSets(Struct, frozen=True, kw_only=True):
    """When the device was doing what. The sets overlap where streams ran side by side."""

    compute: Intervals
    comms: Intervals
    copy: Intervals
    busy: Intervals
    span_ns: int
    """Time from the first start of device work to its last end, events of no length included."""


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


Window = tuple[int, int]


LAUNCH_CALL = re.compile(r"^(cu|cuda|hip)\w*(LaunchKernel|GraphLaunch)")
"""Calls that always put work on the device."""


def launch_facts(
    trace: Trace, links: Links, busy: Intervals, work: Int64, host: HostActivity, window: Window
) -> Launches | None:
    """Delay, queue depth and starvation over the given device work; None when there is none."""
    if len(work) == 0:
        return None
    silent_share = _silent_share(trace, host, complement(busy, *window))
    linked = work[links.launch[work] != NONE]
    call = links.launch[linked]
    median_depth, starved_share = _queue(trace, linked, call, busy)
    shared = links.shared[linked]
    kernels = work[trace.kind[work] == Kind.KERNEL]
    return Launches(
        num_device_events=len(work),
        num_unlinked=len(work) - len(linked),
        num_graph_launches=len(distinct(call[shared])),
        num_in_graphs=int(shared.sum()),
        num_lost=num_lost(trace, links, work),
        cut_share=_cut_share(trace, links) if trace.is_cut else 0.0,
        median_delay_ns=_median(trace.start_ns[linked] - trace.start_ns[call]),
        median_queue_depth=median_depth,
        starved_share=starved_share,
        median_call_ns=_median(trace.dur_ns[call]),
        median_kernel_ns=_median(trace.dur_ns[kernels]),
        silent_share=silent_share,
    )


def _queue(
    trace: Trace, linked: Int64, call: Int64, busy: Intervals
) -> tuple[float | None, float | None]:
    """Work in the queue at a launch, and the share of launches that find the device idle."""
    if not len(call):
        return None, None
    launched = np.sort(trace.start_ns[call])
    moments = launched[np.concatenate([[True], np.diff(np.sort(call)) != 0])]
    depth = np.searchsorted(launched, moments, side="left")
    depth -= np.searchsorted(np.sort(trace.start_ns[linked]), moments, side="right")
    starved = (depth <= 0) & ~contains(busy, moments)
    return median(np.maximum(depth, 0)), float(starved.mean())


def num_lost(trace: Trace, links: Links, work: Int64) -> int:
    """Work without its call and calls without their work,
    between the first launch of this work and its last."""
    call = links.launch[work]
    by_call = (call != NONE) & (trace.kind[np.maximum(call, 0)] == Kind.RUNTIME)
    calls = call[by_call]
    if len(calls) == 0:
        return 0
    idle = _without_work(trace, links)
    return int((~by_call).sum()) + int(idle[calls.min() : calls.max() + 1].sum())


def _cut_share(trace: Trace, links: Links) -> float:
    """A file has the host's operators first, then calls and device work, thread by thread: where it
    ends early, operators of some threads are followed by no call of theirs, or calls by no
    work."""
    operators = np.flatnonzero(trace.is_kind(Kind.OP))
    calls = np.flatnonzero(trace.is_kind(Kind.RUNTIME))
    if not len(operators):
        return 0.0
    last = np.full(len(trace.threads), NONE, np.int64)
    np.maximum.at(last, trace.thread[calls], trace.start_ns[calls])
    without_call = trace.start_ns[operators] > last[trace.thread[operators]]
    launching = _launching_calls(trace)
    without_work = float(_without_work(trace, links).sum()) / max(float(launching.sum()), 1.0)
    return max(float(without_call.mean()), without_work)


def _launching_calls(trace: Trace) -> Bool:
    return trace.is_kind(Kind.RUNTIME) & matching(trace, LAUNCH_CALL) & ~in_capture(trace)


def _without_work(trace: Trace, links: Links) -> Bool:
    """Calls that launch, of whose work nothing was recorded."""
    idle = _launching_calls(trace)
    idle[links.launch[links.launch != NONE]] = False
    return idle


def _silent_share(trace: Trace, host: HostActivity, idle: Intervals) -> float | None:
    """Share of the idle time in stretches of the host with no runtime call that are longer than
    Python between two."""
    total = int((idle.end - idle.start).sum())
    calls = trace.is_kind(Kind.RUNTIME) & host.driving
    speaking = close_gaps(time_of(trace, calls), SHORT_GAP_NS)
    silent = subtract(idle, speaking)
    return int((silent.end - silent.start).sum()) / total if total else None


def _median(values: Int64) -> int | None:
    return int(median(values)) if len(values) else None
