"""Plays a graph: when each task would begin and end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.core.trace import NONE, Float64
from stepscope.replay.graph import Columns, Graph

MAX_KEPT = 24
"""Plays of a graph, and of those it was changed to, that are remembered."""


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


def play(graph: Graph, *, backlog_ns: float = 0.0) -> Played:
    """Simulate: the host goes from call to call;
    tasks begin when launched, their stream free and what they wait for done.

    The device is idle at first, or busy for `backlog_ns`: a backlog can hide a slow host for the
    few steps of a recording, and in no run that goes on.

    Many changes come to the same graph: one that was played before is not played again.
    """
    columns = (
        *(graph.call_ns, graph.call_wait, graph.call_tail_ns, graph.call_first),
        *(graph.task_stream, graph.task_ns, graph.task_latency_ns, graph.task_gap_ns),
        *(graph.task_after, graph.task_lag_ns, np.array([graph.num_streams, backlog_ns])),
    )
    end_ns = next((ends for before, ends in graph.plays if _is_same(columns, before)), None)
    if end_ns is None:
        end_ns = np.array(_task_ends(graph, backlog_ns))
        graph.plays.append((columns, end_ns))
        del graph.plays[:-MAX_KEPT]
    step_end = np.full(graph.num_steps, np.nan)
    np.fmax.at(step_end, graph.task_step, end_ns)
    return Played(end_ns=end_ns, step_end_ns=step_end)


def _is_same(columns: Columns, before: Columns) -> bool:
    return all(a is b or np.array_equal(a, b) for a, b in zip(columns, before, strict=True))


def _task_ends(graph: Graph, backlog_ns: float) -> list[float]:
    """When each task ends."""
    waits, depends = graph.call_wait != NONE, graph.task_after != NONE
    tails = iter(graph.call_tail_ns[waits].tolist())
    lags = iter(graph.task_lag_ns[depends].tolist())
    calls = zip(
        graph.call_ns.tolist(),
        np.diff(graph.call_first).tolist(),
        graph.call_wait.tolist(),
        strict=True,
    )
    tasks = zip(
        graph.task_stream.tolist(),
        graph.task_ns.tolist(),
        graph.task_latency_ns.tolist(),
        graph.task_gap_ns.tolist(),
        graph.task_after.tolist(),
        strict=True,
    )
    free = [backlog_ns or -1e18] * graph.num_streams
    ends: list[float] = []
    now = 0.0
    for spent, num_tasks, awaited in calls:
        while num_tasks:
            queue, length, latency, gap, after = next(tasks)
            begin = now + latency
            other = free[queue] + gap
            if other > begin:
                begin = other
            if after != NONE:
                begin = max(begin, ends[after] + next(lags))
            begin += length
            free[queue] = begin
            ends.append(begin)
            num_tasks -= 1
        if awaited != NONE:
            now = max(ends[awaited], now) + next(tails)
        now += spent
    return ends
