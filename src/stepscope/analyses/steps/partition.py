"""The partition of a step: every nanosecond in exactly one part.

A gap of the device is charged to what the host was doing when it should have launched the next
work.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from stepscope.analyses.grouping import matching
from stepscope.analyses.host.activity import HostActivity
from stepscope.analyses.intervals import (
    Intervals,
    bounds,
    complement,
    contains,
    empty,
    intersect,
    join,
    lengths_in,
    subtract,
    time_of,
    union,
)
from stepscope.analyses.kernels.launches import DeviceSets
from stepscope.analyses.links import Links, host_collectives
from stepscope.analyses.steps.windows import PROFILER_STEP
from stepscope.core.facts import PARTS, Partition, Steps
from stepscope.core.trace import NONE, Int64, Kind, Trace

LAUNCH_LATENCY_NS = 20_000
"""Work launched longer than this before the gap was not late:
the gap is the device's own (inside a CUDA graph, an event)."""


def partition(trace: Trace, steps: Steps, parts: Mapping[str, Intervals]) -> Partition | None:
    """Each window of the steps split into PARTS; None when there is no window, and where neither a
    device's work nor anything of the host's was recorded that could stand for it."""
    if not steps.windows:
        return None
    is_seen = steps.where != "host" or trace.is_kind(Kind.OP).any()
    if not is_seen and not any(len(parts[part].start) for part in parts if part != "idle_other"):
        return None
    windows = bounds(steps.windows)
    lengths = {part: lengths_in(*windows, parts.get(part, empty())) for part in PARTS}
    return Partition(
        parts={part: tuple(values.tolist()) for part, values in lengths.items()},
        totals=steps.step_intervals,
        waits_split=False,
    )


def split_waits(
    parts: Mapping[str, Intervals], waiting: Intervals | None
) -> Mapping[str, Intervals]:
    """The same with what of the exposed comms was waiting for other ranks, where that is known."""
    if waiting is None:
        return parts
    exposed = parts["comms_transfer"]
    return {
        **parts,
        "comms_wait": intersect(exposed, waiting),
        "comms_transfer": subtract(exposed, waiting),
    }


def part_intervals(
    trace: Trace, links: Links, sets: DeviceSets, host: HostActivity, steps: Steps
) -> dict[str, Intervals]:
    """When each part ran, all exposed comms as transfer; empty where there is no window."""
    if not steps.windows:
        return {}
    if steps.where == "host":
        return _parts_on_host(trace, host, steps)
    low, high = steps.windows[0][0], steps.windows[-1][1]
    exposed_comms = subtract(sets.comms, sets.compute)
    transfer = subtract(subtract(sets.copy, sets.compute), sets.comms)
    idle = complement(sets.busy, low, high)
    parts = idle_parts(trace, links, idle, host)
    return parts | {
        "compute": sets.compute,
        "comms_transfer": join(exposed_comms, parts["comms_transfer"]),
        "transfer": transfer,
    }


def _parts_on_host(trace: Trace, host: HostActivity, steps: Steps) -> dict[str, Intervals]:
    """Parts without a device: the operators are the work; those inside the loader are its input,
    and gloo's ranges are comms."""
    low, high = steps.windows[0][0], steps.windows[-1][1]
    work = host_work(trace, host, high - low)
    exposed = subtract(host.collective, work)
    idle = complement(
        union(np.concatenate([work.start, exposed.start]), np.concatenate([work.end, exposed.end])),
        low,
        high,
    )
    return {
        "compute": work,
        "comms_transfer": intersect(exposed, Intervals(np.array([low]), np.array([high]))),
        **idle_without_device(idle, host),
    }


def host_work(trace: Trace, host: HostActivity, span_ns: int) -> Intervals:
    """When operators ran that neither the loader nor a collective did; in a trace without any,
    whatever ranges are shorter than `span_ns` and do not mark the steps."""
    ops = trace.is_kind(Kind.OP)
    if not ops.any():
        ops = trace.is_kind(Kind.MARK, Kind.OTHER) & (trace.dur_ns < max(span_ns, 1))
        ops &= ~matching(trace, PROFILER_STEP)
    ops = ops & ~host_collectives(trace)
    return subtract(time_of(trace, ops), host.input)


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
    """Launch time of the work that ended each gap; NONE when nothing follows or its launch was not
    recorded."""
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
