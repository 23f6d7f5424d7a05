"""Changes: edits of a graph that stand for a fix.
Calls and tasks keep their numbers: changes compose, masks stay valid."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from stepscope.analyses.grouping import median
from stepscope.analyses.intervals import Intervals, lengths_in
from stepscope.core.trace import NONE, Bool, Float64, Int64
from stepscope.replay.graph import Graph

Change = Callable[[Graph], Graph]


def without_tasks(graph: Graph, mask: Bool) -> Graph:
    """The masked tasks take no time. Their launches stay: see `without_host_ranges`."""
    return replace(
        graph,
        task_ns=np.where(mask, 0.0, graph.task_ns),
        task_gap_ns=np.where(mask, 0.0, graph.task_gap_ns),
    )


def with_task_ns(graph: Graph, mask: Bool, task_ns: Float64) -> Graph:
    """The masked tasks take `task_ns` (one entry per task of the graph),
    where that is less than now."""
    return replace(graph, task_ns=np.where(mask, np.minimum(graph.task_ns, task_ns), graph.task_ns))


def without_host_parts(graph: Graph, *parts: str) -> Graph:
    """Drop these parts of the host's time (of HOST_PARTS)."""
    return replace(
        graph,
        call_parts=graph.call_parts
        | {part: np.zeros_like(graph.call_parts[part]) for part in parts},
    )


def with_part_ns(graph: Graph, part: str, ns: Float64) -> Graph:
    """Set this part of the host's time to `ns` (one entry per call)."""
    return replace(graph, call_parts=graph.call_parts | {part: ns})


def on_own_stream(graph: Graph, mask: Bool, *, early: bool) -> Graph:
    """The masked tasks run on a stream of their own;
    what followed each on its old stream waits for it there.

    With `early` they were asked for a step before they are needed, so nobody waits:
    they only have to fit into the step.
    """
    after = graph.task_after if early else _after_moved(graph, mask)
    usual = median(graph.task_gap_ns) if len(graph) else 0.0
    return replace(
        graph,
        task_stream=np.where(mask, graph.num_streams, graph.task_stream),
        task_gap_ns=np.where(mask, np.minimum(graph.task_gap_ns, usual), graph.task_gap_ns),
        task_after=after,
        num_streams=graph.num_streams + 1,
    )


def _after_moved(graph: Graph, mask: Bool) -> Int64:
    """What each task waits for when the masked ones have left its stream:
    the last of them before it, too."""
    after: Int64 = graph.task_after.copy()
    waiting: dict[int, int] = {}
    for task in np.flatnonzero(np.isin(graph.task_stream, graph.task_stream[mask])).tolist():
        stream = int(graph.task_stream[task])
        if mask[task]:
            waiting[stream] = task
        elif stream in waiting:
            after[task] = max(int(after[task]), waiting.pop(stream))
    return after


def without_waits(graph: Graph, mask: Bool) -> Graph:
    """The masked calls (one entry per call) no longer wait for the device."""
    return replace(
        graph,
        call_wait=np.where(mask, NONE, graph.call_wait),
        call_tail_ns=np.where(mask, 0.0, graph.call_tail_ns),
    )


def without_host_ranges(graph: Graph, gone: Intervals, share: float = 1.0) -> Graph:
    """The host no longer spends `share` of the time it was
    recorded to spend inside `gone` (recorded times)."""
    length = np.maximum(graph.call_end_ns - graph.call_start_ns, 1)
    inside = lengths_in(graph.call_start_ns, graph.call_end_ns, gone)
    left = np.clip(1.0 - share * inside / length, 0.0, 1.0)
    return replace(graph, call_parts=graph.call_parts | {"work": graph.call_parts["work"] * left})


def captured_in_pieces(
    graph: Graph, mask: Bool, piece: Int64, *, launch_ns: float, per_task_ns: float, gap_ns: float
) -> Graph:
    """The masked calls of each piece (one number per
    call) become one graph launch, as in `captured`."""
    calls = np.flatnonzero(mask)
    if len(calls) == 0:
        return graph
    tasks_of = np.diff(graph.call_first)
    _, first, inverse = np.unique(piece[calls], return_index=True, return_inverse=True)
    sizes = np.bincount(inverse, weights=tasks_of[calls])
    work = np.where(mask, 0.0, graph.call_parts["work"])
    work[calls[first]] += launch_ns + per_task_ns * sizes
    inside = np.repeat(mask, tasks_of)
    gap = np.where(inside, np.minimum(graph.task_gap_ns, gap_ns), graph.task_gap_ns)
    return replace(
        without_waits(graph, mask), call_parts=graph.call_parts | {"work": work}, task_gap_ns=gap
    )
