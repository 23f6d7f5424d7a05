"""Plays the graphs of several ranks at once:
a collective moves its bytes when the last rank has arrived.

How long a collective takes once every rank is ready for it.

Ready is not begun. A kernel that was launched, whose stream is free and whose inputs are there can
still stand outside: another process has the device (ranks that share one take turns of about 2 ms),
or earlier kernels leave it no room. Its rank is not late then, and a faster host would not begin it
sooner: that time belongs to the collective, in the unprofiled run as in the recording. So each rank
is followed through its recording with its launches and the ends of collectives as they were,
everything else as early as it could be, and the collective's time runs from the last rank that is
ready by that reckoning.

    kernel of rank 0   ....[================]      begun, waits for rank 1 in its own turns
    kernel of rank 1   ....ready     [======]      launched and free, begun a turn later
                           |<-- moving ---->|      not the six of the shorter kernel
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from ctypes import CDLL
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from msgspec import Struct

from stepscope.analyses.grouping import median
from stepscope.core.comms import CollectiveRecords, Matched
from stepscope.core.compiled import call, has, library
from stepscope.core.timings import stage
from stepscope.core.trace import NONE, Float64, Int64
from stepscope.replay.graph import Graph
from stepscope.replay.simulate import IDLE_NS, Played, ends_of, played_of


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
    """Time to move each collective."""
    members: Int64
    """Number of these ranks that take part in each collective."""
    tied_by_hosts: bool = False
    """Hosts carry all collectives out beside their devices: no task of these is part of one."""


class PlayedJob(Struct, frozen=True, kw_only=True):
    ranks: tuple[Played, ...]
    waited_ns: tuple[Float64, ...]
    """Time that each rank and task waited for the last rank."""
    num_forced: int
    """Collectives that could not wait for all their ranks:
    the ranks launch them in orders that no run could follow."""
    tied_by_hosts: bool = False

    @property
    def step_interval_ns(self) -> float:
        """Step interval of the job: the median over its ranks, which in step with one another have
        the same. Where their hosts exchange the data, they wait for the slowest."""
        of_ranks = [rank.step_interval_ns for rank in self.ranks]
        return max(of_ranks) if self.tied_by_hosts else median(of_ranks)


Simulation = Generator[tuple[int, float], float, Played]


def _simulate(part: RankGraph, begins: Float64) -> Simulation:
    """Play as `play`, but at each shared task say which and when it arrived (noted in `begins`),
    and receive when it ends."""
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
    for place, spent in enumerate(host_ns):
        for task in range(first[place], first[place + 1]):
            begin = max(now + latency[task], free[stream[task]] + gap[task])
            if after[task] != NONE:
                begin = max(begin, ends[after[task]] + lag[task])
            if shared[task] == NONE or length[task] <= 0:
                end = begin + length[task]
            else:
                begins[task] = begin
                end = yield shared[task], begin
            free[stream[task]] = ends[task] = end
        if wait[place] != NONE:
            now = max(ends[wait[place]], now) + tail[place]
        now += spent
    return played_of(graph, np.array(ends))


@stage("replay")
def play_job(job_graph: JobGraph) -> PlayedJob:
    """Run every rank until it needs an end that another
    rank has not brought about yet, in turns."""
    if all((part.shared == NONE).all() for part in job_graph.parts):
        return _played_apart(job_graph)
    compiled = library()
    if compiled is not None and has(compiled, "stepscope_play_job"):
        return played_compiled(compiled, job_graph)
    return played_in_turns(job_graph)


def played_in_turns(job_graph: JobGraph) -> PlayedJob:
    """Each rank by itself, as far as it gets."""
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


def played_compiled(compiled: CDLL, job_graph: JobGraph) -> PlayedJob:
    """Play by simulate.c, all ranks in one call."""
    parts = job_graph.parts
    graphs = [part.graph for part in parts]
    num_ranks, num_shared = len(parts), len(job_graph.moving_ns)
    task_at = _starts([len(graph) for graph in graphs])
    begins, ends = np.full(int(task_at[-1]), np.nan), np.zeros(int(task_at[-1]))
    arrival = np.full((num_shared, num_ranks), np.nan)
    streams = _starts([graph.num_streams for graph in graphs])
    num_forced = np.zeros(1, np.int64)
    columns = (
        _floats([graph.call_ns for graph in graphs]),
        _integers([graph.call_wait for graph in graphs]),
        _floats([graph.call_tail_ns for graph in graphs]),
        _integers([graph.call_first for graph in graphs]),
        _integers([graph.task_stream for graph in graphs]),
        _floats([graph.task_ns for graph in graphs]),
        _floats([graph.task_latency_ns for graph in graphs]),
        _floats([graph.task_gap_ns for graph in graphs]),
        _integers([graph.task_after for graph in graphs]),
        _floats([graph.task_lag_ns for graph in graphs]),
        _integers([part.shared for part in parts]),
    )
    is_done = call(
        compiled,
        "stepscope_play_job",
        num_ranks,
        _starts([len(graph.call_event) for graph in graphs]),
        task_at,
        streams,
        *columns,
        num_shared,
        _floats([job_graph.moving_ns]),
        _integers([job_graph.members]),
        np.full(int(streams[-1]), IDLE_NS),
        arrival,
        begins,
        ends,
        np.zeros(2 * num_ranks, np.int64),
        np.zeros(num_ranks),
        np.zeros(2 * num_ranks, np.int64),
        num_forced,
    )
    assert is_done, "a graph that points outside of itself"
    last = np.fmax.reduce(arrival, axis=1, initial=np.nan)
    bounds = list(pairwise(task_at.tolist()))
    waited = []
    for part, (low, high) in zip(parts, bounds, strict=True):
        begin = begins[low:high]
        came = ~np.isnan(begin)
        waited.append(np.where(came, last[np.where(came, part.shared, 0)] - begin, 0.0))
    return PlayedJob(
        ranks=tuple(
            played_of(graph, ends[low:high])
            for graph, (low, high) in zip(graphs, bounds, strict=True)
        ),
        waited_ns=tuple(waited),
        num_forced=int(num_forced[0]),
        tied_by_hosts=job_graph.tied_by_hosts,
    )


def _starts(lengths: list[int]) -> Int64:
    """Where each of them begins, one after the other, and where the last ends."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def _floats(columns: list[Float64]) -> Float64:
    return np.ascontiguousarray(np.concatenate(columns), np.float64)


def _integers(columns: list[Int64]) -> Int64:
    return np.ascontiguousarray(np.concatenate(columns), np.int64)


def _played_apart(job_graph: JobGraph) -> PlayedJob:
    """Ranks that share nothing, as one alone does: none waits for another."""
    ranks = tuple(
        played_of(part.graph, ends_of(part.graph, part.graph.call_ns, 0.0))
        for part in job_graph.parts
    )
    return PlayedJob(
        ranks=ranks,
        waited_ns=tuple(np.zeros(len(part.graph)) for part in job_graph.parts),
        num_forced=0,
        tied_by_hosts=job_graph.tied_by_hosts,
    )


def _waits(
    job_graph: JobGraph, arrived: Mapping[int, Mapping[int, float]], begins: Sequence[Float64]
) -> tuple[Float64, ...]:
    """Wait of each rank and task, from its arrival to the last one's."""
    out = []
    for part, begin in zip(job_graph.parts, begins, strict=True):
        waited = np.zeros(len(part.graph))
        for task in np.flatnonzero(~np.isnan(begin)).tolist():
            waited[task] = max(arrived[int(part.shared[task])].values()) - begin[task]
        out.append(waited)
    return tuple(out)


def moving_ns(
    parts: Sequence[RankGraph], rank_records: Sequence[CollectiveRecords], matched: Matched
) -> Float64:
    """Time of each collective from when the last rank was ready to the end: no less than from the
    last arrival, no more than its longest part took."""
    shortest, longest, early = (
        np.full(matched.num, np.inf),
        np.zeros(matched.num),
        np.full(matched.num, np.inf),
    )
    for part, records in zip(parts, rank_records, strict=True):
        ids = matched.of[records.rank]
        has_id = ids != NONE
        took = (records.end_ns - records.start_ns)[has_id].astype(np.float64)
        np.minimum.at(shortest, ids[has_id], took)
        np.maximum.at(longest, ids[has_id], took)
        delay = start_delay_ns(part, records, matched.num)[ids[has_id]]
        np.minimum.at(early, ids[has_id], matched.wait_ns(records)[has_id] + delay)
    after_last = np.maximum((matched.end_ns - matched.last_ns).astype(np.float64), 0.0)
    least = np.minimum(shortest, after_last)
    moving: Float64 = np.clip(
        after_last + np.where(np.isfinite(early), early, 0.0), least, np.maximum(longest, least)
    )
    return moving


def start_delay_ns(part: RankGraph, records: CollectiveRecords, num: int) -> Float64:
    """Time after it could have begun that each collective began on this rank; 0 where the rank has
    no task in it."""
    graph, shared = part.graph, part.shared.tolist()
    origin = int(graph.call_start_ns[0]) if len(graph.call_start_ns) else 0
    began = dict(zip(records.event.tolist(), (records.start_ns - origin).tolist(), strict=True))
    ended = dict(zip(records.event.tolist(), (records.end_ns - origin).tolist(), strict=True))
    launched = (
        np.repeat((graph.call_start_ns - origin).astype(np.float64), np.diff(graph.call_first))
        + graph.task_latency_ns
    )
    stream, event, length = (
        graph.task_stream.tolist(),
        graph.task_event.tolist(),
        graph.task_ns.tolist(),
    )
    gap, after, lag = (
        graph.task_gap_ns.tolist(),
        graph.task_after.tolist(),
        graph.task_lag_ns.tolist(),
    )
    free, ends, delay = [-1e18] * graph.num_streams, [0.0] * len(event), np.zeros(num)
    for task, earliest in enumerate(launched.tolist()):
        begin = max(earliest, free[stream[task]] + gap[task])
        if after[task] != NONE:
            begin = max(begin, ends[after[task]] + lag[task])
        end = begin + length[task]
        if shared[task] != NONE:
            delay[shared[task]] = max(began[event[task]] - begin, 0.0)
            end = ended[event[task]]
        free[stream[task]] = ends[task] = end
    return delay
