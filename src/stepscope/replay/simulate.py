"""Plays a graph: when each task would begin and end."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import CDLL

import numpy as np
from msgspec import Struct, structs

from stepscope.analyses.grouping import distinct, median
from stepscope.analyses.intervals import union
from stepscope.core.compiled import call, library
from stepscope.core.timings import stage
from stepscope.core.trace import NONE, Float64, Int64
from stepscope.replay.graph import Columns, Graph

MAX_KEPT = 24
"""Plays of a graph, and of those it was changed to, that are remembered."""
LONG_STRETCH = 1000
"""Calls from one wait to the next from which it is faster to look at them together."""
IDLE_NS = -1e18
"""When an idle stream came free."""


class Played(Struct, frozen=True, kw_only=True):
    """One run of the graph."""

    end_ns: Float64
    """End of each task."""
    step_end_ns: Float64
    """End of each step's last task; NaN for a step without any."""
    steady_ns: float | None = None
    """The step of a run that goes on, where that is known without playing one."""

    @property
    def step_interval_ns(self) -> float:
        """The step of a run that goes on."""
        return self.played_interval_ns if self.steady_ns is None else self.steady_ns

    @property
    def played_interval_ns(self) -> float:
        """The median distance between the ends of consecutive steps' work, as few as they are."""
        ends = np.maximum.accumulate(self.step_end_ns[~np.isnan(self.step_end_ns)])
        return median(np.diff(ends)) if len(ends) > 1 else float("nan")


@stage("replay")
def play(graph: Graph, *, backlog_ns: float = 0.0) -> Played:
    """Simulate: the host goes from call to call;
    tasks begin when launched, their stream free and what they wait for done.

    The device is idle at first, or busy for `backlog_ns`: a backlog can hide a slow host for the
    few steps of a recording, and in no run that goes on.

    Many changes come to the same graph: one that was played before is not played again.
    """
    call_ns = graph.call_ns
    columns = (
        *(call_ns, graph.call_wait, graph.call_tail_ns, graph.call_first),
        *(graph.task_stream, graph.task_ns, graph.task_latency_ns, graph.task_gap_ns),
        *(graph.task_after, graph.task_lag_ns, np.array([graph.num_streams, backlog_ns])),
    )
    end_ns = next((ends for before, ends in graph.plays if _is_same(columns, before)), None)
    if end_ns is None:
        end_ns = ends_of(graph, call_ns, backlog_ns)
        graph.plays.append((columns, end_ns))
        del graph.plays[:-MAX_KEPT]
    steady = None if backlog_ns else steady_ns(graph, call_ns)
    return structs.replace(played_of(graph, end_ns), steady_ns=steady)


def played_of(graph: Graph, end_ns: Float64) -> Played:
    """What tasks that end so make of the steps."""
    step_end = np.full(graph.num_steps, np.nan)
    np.fmax.at(step_end, graph.task_step, end_ns)
    return Played(end_ns=end_ns, step_end_ns=step_end)


def steady_ns(graph: Graph, call_ns: Float64) -> float | None:
    """The step of a run that goes on, where the host never waits for the device: whichever of the
    two takes longer. The few steps of a recording begin with an idle device, and a host that is
    only a little faster needs many to get ahead of it."""
    if graph.num_streams != 1 or graph.num_steps < 2 or (graph.call_wait != NONE).any():
        return None
    # From the last launch of one step to the last of the next: what the host does after it, as
    # waiting for a batch, is the next step's.
    call_of = np.repeat(np.arange(len(graph.call_event)), np.diff(graph.call_first))
    last = np.full(graph.num_steps, NONE)
    np.maximum.at(last, graph.task_step, call_of)
    called = np.append(0.0, np.cumsum(call_ns))
    host = np.diff(called[last[last != NONE]])
    device = np.bincount(
        graph.task_step, graph.task_ns + graph.task_gap_ns, minlength=graph.num_steps
    )
    return float(max(median(host), median(device[1:])))


def busy_share(graph: Graph) -> float:
    """Share of the played steps after the first in which any stream has work."""
    played = play(graph)
    ends = played.step_end_ns[~np.isnan(played.step_end_ns)]
    low, high = float(ends.min()), float(ends.max())
    start = np.clip(played.end_ns - graph.task_ns, low, high).astype(np.int64)
    busy = union(start, np.clip(played.end_ns, low, high).astype(np.int64)).total
    return busy / (high - low) if high > low else 0.0


def ends_of(graph: Graph, call_ns: Float64, backlog_ns: float) -> Float64:
    """When each task ends, by what is fastest here: all give the same."""
    compiled = library()
    if compiled is not None:
        return ends_compiled(compiled, graph, call_ns, backlog_ns)
    num_waits = int((graph.call_wait != NONE).sum())
    if num_waits * LONG_STRETCH < len(graph.call_event) and (graph.task_after == NONE).all():
        return ends_by_stretch(graph, backlog_ns)
    return np.array(ends_by_call(graph, backlog_ns))


def ends_compiled(compiled: CDLL, graph: Graph, call_ns: Float64, backlog_ns: float) -> Float64:
    """Play by simulate.c, call by call."""
    ends = np.empty(len(graph))
    free = np.full(graph.num_streams, backlog_ns or IDLE_NS)
    calls = (
        *(_floats(call_ns), _integers(graph.call_wait)),
        *(_floats(graph.call_tail_ns), _integers(graph.call_first)),
    )
    tasks = (
        *(_integers(graph.task_stream), _floats(graph.task_ns), _floats(graph.task_latency_ns)),
        *(_floats(graph.task_gap_ns), _integers(graph.task_after), _floats(graph.task_lag_ns)),
    )
    sizes = len(graph.call_event), len(graph), graph.num_streams
    is_done = call(
        compiled, "stepscope_play", sizes[0], *calls, sizes[1], *tasks, sizes[2], free, ends
    )
    assert is_done, "a graph that points outside of itself"
    return ends


def _floats(column: Float64) -> Float64:
    return np.ascontiguousarray(column, np.float64)


def _integers(column: Int64) -> Int64:
    return np.ascontiguousarray(column, np.int64)


def _is_same(columns: Columns, before: Columns) -> bool:
    return all(a is b or np.array_equal(a, b) for a, b in zip(columns, before, strict=True))


def ends_by_stretch(graph: Graph, backlog_ns: float) -> Float64:
    """When each task ends, where none waits for another stream's: from one wait of the host to the
    next all launches are known at once, and the streams run by themselves."""
    ends = np.zeros(len(graph))
    free = [backlog_ns or IDLE_NS] * graph.num_streams
    spent, now, begin = graph.call_ns, 0.0, 0
    call_of = np.repeat(np.arange(len(spent)), np.diff(graph.call_first))
    stops = np.append(np.flatnonzero(graph.call_wait != NONE), len(spent) - 1)
    for stop in distinct(stops).tolist():
        called = np.add.accumulate(np.append(now, spent[begin:stop]))
        tasks = np.arange(graph.call_first[begin], graph.call_first[stop + 1])
        launched = called[call_of[tasks] - begin] + graph.task_latency_ns[tasks]
        for queue in range(graph.num_streams):
            own = graph.task_stream[tasks] == queue
            mine = tasks[own]
            if len(mine):
                ends[mine] = _queued(
                    launched[own], graph.task_gap_ns[mine], graph.task_ns[mine], free[queue]
                )
                free[queue] = float(ends[mine[-1]])
        now, awaited, begin = float(called[-1]), int(graph.call_wait[stop]), stop + 1
        if awaited != NONE:
            now = max(float(ends[awaited]), now) + float(graph.call_tail_ns[stop])
        now += float(spent[stop])
    return ends


def _queued(launched: Float64, gap: Float64, length: Float64, end: float) -> list[float]:
    """When tasks of one stream end, the one before them at `end`."""
    ends: list[float] = []
    for ready, pause, ns in zip(launched.tolist(), gap.tolist(), length.tolist(), strict=True):
        end += pause
        if ready > end:
            end = ready
        end += ns
        ends.append(end)
    return ends


def ends_by_call(graph: Graph, backlog_ns: float) -> list[float]:
    """When each task ends, the host going from call to call."""
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
    free = [backlog_ns or IDLE_NS] * graph.num_streams
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


def bisect(
    is_too_low: Callable[[float], bool],
    low: float,
    high: float,
    num_rounds: int,
    *,
    is_geometric: bool = False,
) -> tuple[float, float]:
    """The bounds halved so often, around where `is_too_low` turns false;
    by ratio where they span magnitudes."""
    for _ in range(num_rounds):
        middle = (low * high) ** 0.5 if is_geometric else (low + high) / 2
        if is_too_low(middle):
            low = middle
        else:
            high = middle
    return low, high
