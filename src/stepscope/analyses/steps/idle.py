"""Why the device stood idle:
each gap charged to what the host was doing when it should have launched the next work."""

from __future__ import annotations

import numpy as np

from stepscope.analyses.host.activity import HostActivity
from stepscope.analyses.intervals import (
    Intervals,
    contains,
    empty,
    intersect,
    join,
    subtract,
    union,
)
from stepscope.analyses.links import Links
from stepscope.core.trace import NONE, Int64, Trace

LAUNCH_LATENCY_NS = 20_000
"""Work launched longer than this before the gap was not late:
the gap is the device's own (inside a CUDA graph, an event)."""


def idle_parts(
    trace: Trace, links: Links, idle: Intervals, host: HostActivity
) -> dict[str, Intervals]:
    """The idle set split by cause; the parts are disjoint and their union is `idle`. A collective
    that the host carries out itself (gloo) is communication, not idling.

    Within a gap the time up to the next launch is charged to the host's activity then, the rest to
    launching. Time that the host spends launching again after a wait that had let the device run
    dry is charged to the wait.
    """
    launched = _next_launch(trace, links, idle)
    due = np.where(launched == NONE, idle.end, np.clip(launched, idle.start, idle.end))
    waiting = union(idle.start, due)
    parts: dict[str, Intervals] = {"comms_transfer": intersect(idle, host.collective)}
    waiting = subtract(waiting, parts["comms_transfer"])
    by_profiler = intersect(waiting, host.profiler)
    left = subtract(waiting, by_profiler)
    for name in ("compile", "allocator", "input", "io", "sync"):
        parts[f"idle_{name}"] = intersect(left, getattr(host, name))
        left = subtract(left, parts[f"idle_{name}"])
    drained = contains(host.sync, idle.start)
    after_sync = intersect(union(idle.start[drained], due[drained]), intersect(left, host.at_work))
    parts["idle_sync"] = join(parts["idle_sync"], after_sync)
    left = subtract(left, after_sync)
    own = (launched != NONE) & (launched < idle.start - LAUNCH_LATENCY_NS)
    in_launch = subtract(union(due[~own], idle.end[~own]), parts["comms_transfer"])
    on_device = subtract(union(due[own], idle.end[own]), parts["comms_transfer"])
    parts["idle_launch"] = join(intersect(left, host.at_work), in_launch)
    parts["idle_other"] = join(subtract(left, host.at_work), on_device, by_profiler)
    return parts


def idle_without_device(idle: Intervals, host: HostActivity) -> dict[str, Intervals]:
    """The same for a trace with no device:
    time with no operator running, by what else was recorded."""
    parts: dict[str, Intervals] = {"idle_launch": empty(), "idle_sync": empty()}
    left = idle
    for name in ("compile", "allocator", "input", "io"):
        parts[f"idle_{name}"] = intersect(left, getattr(host, name))
        left = subtract(left, parts[f"idle_{name}"])
    parts["idle_other"] = left
    return parts


def _next_launch(trace: Trace, links: Links, idle: Intervals) -> Int64:
    """For each gap, when the work that ended it was launched;
    NONE when nothing follows or its launch was not recorded."""
    work = np.flatnonzero(trace.device_work & (trace.dur_ns > 0))
    result = np.full(len(idle), NONE, np.int64)
    if len(work) == 0:
        return result
    following = np.searchsorted(trace.start_ns[work], idle.end, side="left")
    follows = (following < len(work)) & (
        trace.start_ns[work[np.minimum(following, len(work) - 1)]] == idle.end
    )
    launch = links.launch[work[np.minimum(following, len(work) - 1)]]
    is_linked = follows & (launch != NONE)
    result[is_linked] = trace.start_ns[launch[is_linked]]
    return result
