"""Plays a graph: when each task would begin and end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.core.timings import stage
from stepscope.core.trace import NONE, Float64
from stepscope.replay.graph import Graph


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One run of the graph."""

    end_ns: Float64
    """Per task."""
    step_end_ns: Float64
    """Per step, the end of its last task; NaN for a step without any."""

    @property
    def step_interval_ns(self) -> float:
        """The median distance between the ends of consecutive steps' work."""
        ends = np.maximum.accumulate(self.step_end_ns[~np.isnan(self.step_end_ns)])
        return float(np.median(np.diff(ends))) if len(ends) > 1 else float("nan")


@stage("replay")
def play(graph: Graph, *, backlog_ns: float = 0.0) -> Played:
    """Simulate: the host goes from call to call;
    tasks begin when launched, their stream free and what they wait for done.

    The device is idle at first, or busy for `backlog_ns`: a backlog can hide a slow host for the
    few steps of a recording, and in no run that goes on.
    """
    host_ns = graph.call_ns.tolist()
    wait, tail, first = (
        graph.call_wait.tolist(),
        graph.call_tail_ns.tolist(),
        graph.call_first.tolist(),
    )
    stream, length = graph.task_stream.tolist(), graph.task_ns.tolist()
    latency, gap, after = (
        graph.task_latency_ns.tolist(),
        graph.task_gap_ns.tolist(),
        graph.task_after.tolist(),
    )
    lag = graph.task_lag_ns.tolist()
    free = [backlog_ns or -1e18] * graph.num_streams
    ends = [0.0] * len(length)
    now = 0.0
    for call, spent in enumerate(host_ns):
        for task in range(first[call], first[call + 1]):
            queue = stream[task]
            begin = now + latency[task]
            other = free[queue] + gap[task]
            if other > begin:
                begin = other
            if after[task] != NONE and ends[after[task]] + lag[task] > begin:
                begin = ends[after[task]] + lag[task]
            free[queue] = ends[task] = begin + length[task]
        if wait[call] != NONE:
            done = ends[wait[call]]
            now = max(done, now) + tail[call]
        now += spent
    end_ns = np.array(ends)
    step_end = np.full(graph.num_steps, np.nan)
    np.fmax.at(step_end, graph.task_step, end_ns)
    return Played(end_ns=end_ns, step_end_ns=step_end)
