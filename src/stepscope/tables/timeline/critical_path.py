"""The chain of work that made the recorded steps as long as they were.

The graph is played as in simulate.py, and for each task it is kept what it waited for last: its
launch, the work before it on its stream, or work of another stream; for each of the host's calls
whether the one before was waiting for a task. From the last task to end, that chain leads back to
the beginning. Shortening anything that is not on it would not have shortened these steps.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from stepscope.core.trace import NONE, Float64, Int64, Trace
from stepscope.replay.graph import HOST_PARTS, Graph
from stepscope.tables.timeline.tracks import Spans

BACKLOG = -2
"""Mark of a task that waited for work from before the recording."""


class CriticalPath(Struct, frozen=True, kw_only=True):
    """Chain of links, from the first to the last."""

    task: Int64
    """The graph's task; NONE where the host is what everything waits for."""
    call: Int64
    """The host's call, from whose start to the next the chain runs; NONE for a task."""
    start_ns: Float64
    end_ns: Float64
    """End as played, the pause before a task counted to it; each begins where the one before
    ends."""

    def __len__(self) -> int:
        return len(self.task)


class _Timing(Struct, frozen=True, kw_only=True):
    """A played graph, and what each of its tasks and calls waited for."""

    end: list[float]
    by: list[int]
    """Task that each task waited for, NONE for its launch, or BACKLOG."""
    launched_in: list[int]
    call_at: list[float]
    """When the host came to each call, and to the end of the last."""
    waited: list[bool]
    """Whether the host left each call when the task ended that it waits for."""


def critical_path(graph: Graph, *, backlog_ns: float = 0.0) -> CriticalPath:
    """The chain that leads to the last task to end."""
    timing = _play(graph, backlog_ns)
    links: list[tuple[int, int, float, float]] = []
    task = int(np.argmax(timing.end)) if timing.end else NONE
    while task >= 0:
        by, begin = timing.by[task], 0.0
        if by == NONE:
            begin = timing.call_at[timing.launched_in[task]]
        elif by != BACKLOG:
            begin = timing.end[by]
        links.append((task, NONE, begin, timing.end[task]))
        if by != NONE:
            task = by
            continue
        call, task = timing.launched_in[task] - 1, NONE
        while call >= 0:
            awaited = int(graph.call_wait[call]) if timing.waited[call] else NONE
            left = timing.call_at[call] if awaited == NONE else timing.end[awaited]
            links.append((NONE, call, left, timing.call_at[call + 1]))
            if awaited != NONE:
                task = awaited
                break
            call -= 1
    table = np.array(links[::-1], np.float64).reshape(-1, 4)
    return CriticalPath(
        task=table[:, 0].astype(np.int64),
        call=table[:, 1].astype(np.int64),
        start_ns=table[:, 2],
        end_ns=table[:, 3],
    )


def call_part(graph: Graph) -> Int64:
    """Index of the part of HOST_PARTS that took most of the host's time from each call to the
    next."""
    most: Int64 = np.argmax(np.stack([graph.call_parts[part] for part in HOST_PARTS]), axis=0)
    return most


def _play(graph: Graph, backlog_ns: float) -> _Timing:
    wait, tail, first = (
        graph.call_wait.tolist(),
        graph.call_tail_ns.tolist(),
        graph.call_first.tolist(),
    )
    stream, length, lag = (
        graph.task_stream.tolist(),
        graph.task_ns.tolist(),
        graph.task_lag_ns.tolist(),
    )
    latency, gap, after = (
        graph.task_latency_ns.tolist(),
        graph.task_gap_ns.tolist(),
        graph.task_after.tolist(),
    )
    free, last = [backlog_ns or -1e18] * graph.num_streams, [BACKLOG] * graph.num_streams
    timing = _Timing(
        end=[0.0] * len(length),
        by=[NONE] * len(length),
        launched_in=[0] * len(length),
        call_at=[0.0],
        waited=[],
    )
    for call, spent in enumerate(graph.call_ns.tolist()):
        now = timing.call_at[-1]
        for task in range(first[call], first[call + 1]):
            queue, begin, by, other = stream[task], now + latency[task], NONE, after[task]
            if free[queue] + gap[task] > begin:
                begin, by = free[queue] + gap[task], last[queue]
            if other != NONE and timing.end[other] + lag[task] > begin:
                begin, by = timing.end[other] + lag[task], other
            free[queue] = timing.end[task] = begin + length[task]
            timing.by[task], timing.launched_in[task], last[queue] = by, call, task
        waits = wait[call] != NONE
        timing.waited.append(waits and timing.end[wait[call]] >= now)
        if waits:
            now = max(timing.end[wait[call]], now) + tail[call]
        timing.call_at.append(now + spent)
    return timing


def recorded_spans(graph: Graph, path: CriticalPath, trace: Trace) -> Spans:
    """The chain where it lies in the recording:
    a task by its event, the host by what took most of its time.

    Played and recorded times differ a little:
    where two links would overlap, the later one gives way.
    """
    names = (*trace.names, *(f"host: {part}" for part in HOST_PARTS))
    on_host = path.task == NONE
    task, call = np.maximum(path.task, 0), np.maximum(path.call, 0)
    name = np.where(
        on_host, len(trace.names) + call_part(graph)[call], trace.name[graph.task_event[task]]
    )
    if graph.on_host:
        begin, end = (
            graph.call_start_ns[task],
            graph.call_start_ns[task] + graph.task_ns[task].astype(np.int64),
        )
    else:
        begin, end = trace.start_ns[graph.task_event[task]], trace.end_ns[graph.task_event[task]]
    start: Int64 = np.where(on_host, graph.call_start_ns[call], begin)
    stop: Int64 = np.where(on_host, graph.call_end_ns[call], end)
    # Calls that follow one another on the chain are one stretch of the host.
    fresh = np.ones(len(path), np.bool_)
    fresh[1:] = ~(on_host[1:] & on_host[:-1] & (name[1:] == name[:-1]))
    first = np.flatnonzero(fresh)
    start, name = start[first], name[first]
    stop = np.maximum.reduceat(stop, first) if len(first) else stop
    reach = np.maximum.accumulate(stop)
    start[1:] = np.maximum(start[1:], reach[:-1])
    kept = stop > start
    return Spans(
        start_ns=start[kept], end_ns=stop[kept], name=name[kept].astype(np.int64), names=names
    )
