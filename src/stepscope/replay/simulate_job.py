"""Plays the graphs of several ranks at once:
a collective moves its bytes when the last rank has arrived."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from msgspec import Struct

from stepscope.analyses.grouping import median
from stepscope.core.timings import stage
from stepscope.core.trace import NONE, Float64, Int64
from stepscope.replay.graph import Graph
from stepscope.replay.simulate import Played


@dataclass(frozen=True, slots=True, kw_only=True)
class RankGraph:
    """One rank: its graph, and for each task the number
    of the collective it is part of (NONE: of none)."""

    graph: Graph
    shared: Int64


@dataclass(frozen=True, slots=True, kw_only=True)
class JobGraph:
    """Ranks that work together.
    A collective's time is that of moving its bytes, once all have arrived."""

    parts: tuple[RankGraph, ...]
    moving_ns: Float64
    """Per collective."""
    members: Int64
    """Per collective, how many of these ranks take part."""
    tied_by_hosts: bool = False
    """Hosts carry all collectives out beside their devices: no task of these is part of one."""


class PlayedJob(Struct, frozen=True, kw_only=True):
    ranks: tuple[Played, ...]
    waited_ns: tuple[Float64, ...]
    """Per rank and task, how long it waited for the last rank."""
    num_forced: int
    """Collectives that could not wait for all their ranks:
    the ranks launch them in orders that no run could follow."""
    tied_by_hosts: bool = False

    @property
    def step_interval_ns(self) -> float:
        """Of the job: the median over its ranks, which in step with one another have the same.
        Where their hosts exchange the data, they wait for the slowest."""
        of_ranks = [rank.step_interval_ns for rank in self.ranks]
        return max(of_ranks) if self.tied_by_hosts else median(of_ranks)


Simulation = Generator[tuple[int, float], float, Played]


def _simulate(part: RankGraph, begins: Float64) -> Simulation:
    """As `play`, but at each shared task it says which and when it arrived (noted in `begins`),
    and receives when it ends."""
    graph = part.graph
    host_ns, shared = graph.call_ns.tolist(), part.shared.tolist()
    wait, tail, first = (
        graph.call_wait.tolist(),
        graph.call_tail_ns.tolist(),
        graph.call_first.tolist(),
    )
    stream, length = graph.task_stream.tolist(), graph.task_ns.tolist()
    latency, gap = graph.task_latency_ns.tolist(), graph.task_gap_ns.tolist()
    after, lag = graph.task_after.tolist(), graph.task_lag_ns.tolist()
    free = [-1e18] * graph.num_streams
    ends = [0.0] * len(length)
    now = 0.0
    for call, spent in enumerate(host_ns):
        for task in range(first[call], first[call + 1]):
            begin = max(now + latency[task], free[stream[task]] + gap[task])
            if after[task] != NONE:
                begin = max(begin, ends[after[task]] + lag[task])
            if shared[task] == NONE or length[task] <= 0:
                end = begin + length[task]
            else:
                begins[task] = begin
                end = yield shared[task], begin
            free[stream[task]] = ends[task] = end
        if wait[call] != NONE:
            now = max(ends[wait[call]], now) + tail[call]
        now += spent
    step_end = np.full(graph.num_steps, np.nan)
    end_ns = np.array(ends)
    np.fmax.at(step_end, graph.task_step, end_ns)
    return Played(end_ns=end_ns, step_end_ns=step_end)


@stage("replay")
def play_job(job_graph: JobGraph) -> PlayedJob:
    """Run every rank until it needs an end that another
    rank has not brought about yet, in turns."""
    begins = [np.full(len(part.graph), np.nan) for part in job_graph.parts]
    runs: list[Simulation] = [
        _simulate(part, b) for part, b in zip(job_graph.parts, begins, strict=True)
    ]
    results: dict[int, Played] = {}
    arrived: dict[int, dict[int, float]] = {}
    pending: dict[int, int] = {}
    num_forced = 0

    def advance(rank: int, value: float | None) -> None:
        try:
            number, begin = runs[rank].send(value) if value is not None else next(runs[rank])
        except StopIteration as stop:
            results[rank] = stop.value
            pending.pop(rank, None)
            return
        pending[rank] = number
        arrived.setdefault(number, {})[rank] = begin

    for rank in range(len(runs)):
        advance(rank, None)
    while pending:
        ready = {
            number
            for number in pending.values()
            if len(arrived[number]) >= int(job_graph.members[number])
        }
        if not ready:
            earliest = min(pending.values(), key=lambda number: max(arrived[number].values()))
            ready, num_forced = {earliest}, num_forced + 1
        for rank, number in [(r, n) for r, n in pending.items() if n in ready]:
            advance(rank, max(arrived[number].values()) + float(job_graph.moving_ns[number]))
    ranks = tuple(results[rank] for rank in range(len(runs)))
    return PlayedJob(
        ranks=ranks,
        waited_ns=_waits(job_graph, arrived, begins),
        num_forced=num_forced,
        tied_by_hosts=job_graph.tied_by_hosts,
    )


def _waits(
    job_graph: JobGraph, arrived: Mapping[int, Mapping[int, float]], begins: Sequence[Float64]
) -> tuple[Float64, ...]:
    """Per rank and task, from its arrival to the last one's."""
    out = []
    for part, begin in zip(job_graph.parts, begins, strict=True):
        waited = np.zeros(len(part.graph))
        for task in np.flatnonzero(~np.isnan(begin)).tolist():
            waited[task] = max(arrived[int(part.shared[task])].values()) - begin[task]
        out.append(waited)
    return tuple(out)
