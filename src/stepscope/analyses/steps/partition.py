"""The partition of a step: every nanosecond in exactly one part."""

from __future__ import annotations

import numpy as np

from stepscope.analyses.collectives.events import host_collectives
from stepscope.analyses.host.activity import HostActivity
from stepscope.analyses.intervals import Intervals, complement, empty, intersect, join, lengths_in, subtract, union
from stepscope.analyses.kernels.device import DeviceSets
from stepscope.analyses.links import Links
from stepscope.analyses.steps.idle import idle_parts, idle_without_device
from stepscope.core.facts import PARTS, Partition, Steps
from stepscope.core.trace import Kind, Trace


def partition(trace: Trace, links: Links, sets: DeviceSets, host: HostActivity, steps: Steps) -> Partition | None:
    """Each window of the steps split into PARTS; None when there is no window."""
    if not steps.windows:
        return None
    parts = parts_on_device(trace, links, sets, host, steps) if steps.where == "device" else parts_on_host(trace, host, steps)
    start = np.array([window[0] for window in steps.windows], np.int64)
    end = np.array([window[1] for window in steps.windows], np.int64)
    lengths = {part: lengths_in(start, end, parts.get(part, empty())) for part in PARTS}
    return Partition(
        parts={part: tuple(values.tolist()) for part, values in lengths.items()},
        totals=steps.step_intervals,
        waits_split=False,
    )


def parts_on_device(trace: Trace, links: Links, sets: DeviceSets, host: HostActivity, steps: Steps) -> dict[str, Intervals]:
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


def parts_on_host(trace: Trace, host: HostActivity, steps: Steps) -> dict[str, Intervals]:
    """Without a device the operators are the work; those inside the loader are its input, and gloo's ranges are comms."""
    low, high = steps.windows[0][0], steps.windows[-1][1]
    ops = trace.is_kind(Kind.OP)
    if not ops.any():
        ops = trace.is_kind(Kind.MARK, Kind.OTHER) & (trace.dur_ns < max(high - low, 1))
    collective = host_collectives(trace)
    comms = union(trace.start_ns[collective], trace.end_ns[collective])
    work = subtract(union(trace.start_ns[ops & ~collective], trace.end_ns[ops & ~collective]), host.input)
    exposed = subtract(comms, work)
    idle = complement(union(np.concatenate([work.start, exposed.start]), np.concatenate([work.end, exposed.end])), low, high)
    return {
        "compute": work,
        "comms_transfer": intersect(exposed, Intervals(np.array([low]), np.array([high]))),
        **idle_without_device(idle, host),
    }
