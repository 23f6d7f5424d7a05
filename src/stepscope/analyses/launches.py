"""How far the host runs ahead of the device."""

from __future__ import annotations

import numpy as np

from stepscope.analyses.intervals import Intervals, contains
from stepscope.analyses.links import Links
from stepscope.core.facts import Launches
from stepscope.core.trace import NONE, Int64, Kind, Trace


def launch_facts(trace: Trace, links: Links, busy: Intervals, work: Int64) -> Launches | None:
    """Delay, queue depth and starvation over the given device work; None when there is none."""
    if len(work) == 0:
        return None
    linked = work[links.launch[work] != NONE]
    call = links.launch[linked]
    first_of_call = np.concatenate([[True], np.diff(np.sort(call)) != 0]) if len(call) else np.zeros(0, np.bool_)
    launched = np.sort(trace.start_ns[call])
    started = np.sort(trace.start_ns[linked])
    moments = launched[first_of_call] if len(call) else launched
    depth = np.searchsorted(launched, moments, side="left") - np.searchsorted(started, moments, side="right")
    starved = (depth <= 0) & ~contains(busy, moments)
    shared = links.shared[linked]
    kernels = work[trace.kind[work] == Kind.KERNEL]
    return Launches(
        num_device_events=len(work),
        num_unlinked=len(work) - len(linked),
        num_graph_launches=len(np.unique(call[shared])),
        num_in_graphs=int(shared.sum()),
        median_delay_ns=_median(trace.start_ns[linked] - trace.start_ns[call]),
        median_queue_depth=float(np.median(np.maximum(depth, 0))) if len(depth) else None,
        starved_share=float(starved.mean()) if len(starved) else None,
        median_call_ns=_median(trace.dur_ns[call]),
        median_kernel_ns=_median(trace.dur_ns[kernels]),
    )


def _median(values: Int64) -> int | None:
    return int(np.median(values)) if len(values) else None
