"""A job's graph: the graphs of several ranks, their collectives tied together,
fitted to the unprofiled step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from stepscope.analyses.grouping import distinct, is_among
from stepscope.analyses.intervals import Intervals, lengths_in
from stepscope.core.comms import CollectiveRecords, Matched
from stepscope.core.trace import NONE
from stepscope.replay.changes import with_part_ns, without_host_parts, without_tasks
from stepscope.replay.graph import Graph
from stepscope.replay.host_graph import SCALE_RANGE, with_pace
from stepscope.replay.profiler_cost import DEVICE_BOUND, likely_pace, usual_cost_ns, without_cost
from stepscope.replay.resources import FREE, TaskKinds, counted_once
from stepscope.replay.simulate import bisect
from stepscope.replay.simulate_job import JobGraph, RankGraph, moving_ns, play_job

CLOSE = 0.005
MAX_MOVING = 3.0
"""Times the time from the last arrival to the end that moving the bytes may be taken to need."""
PROBE = 1.1
TIE = 0.1
"""Share of the step that is added to waiting. Waiting is the others' side of what holds one rank
up, and where both are about as large it is the ranks' waiting that is told: what the late one does
is its finding."""
MAX_OF_IT = 0.75
"""Share of what a rank's own work accounts for from which it is one rank's: the others wait for
it."""
OF_ONE_RANK = ("data", "host", "transfer", "compute", "memory")
MIN_SLOPE = 0.5
"""Fraction of a collective's longer time that the step must grow by: else it is not the collectives
that it waits for."""
MIN_COST = 0.5
"""Times the usual cost of recording, down to which it is looked for: that of nine of ten hosts is
more."""
MAX_STRETCH = 4.0
"""Times the recorded host time, with the profiler's usual cost taken off:
a host slower than that is not what was recorded."""


def job_graph_of(
    graphs: Sequence[Graph], rank_records: Sequence[CollectiveRecords], matched: Matched
) -> JobGraph:
    """Tie the graphs' tasks together by the collectives they are part of."""
    from stepscope.analyses.collectives.waits import until_all_came

    parts = []
    members = np.zeros(matched.num, np.int64)
    for graph, records in zip(graphs, rank_records, strict=True):
        number = dict(zip(records.event.tolist(), matched.of[records.rank].tolist(), strict=True))
        shared = np.array(
            [number.get(event, NONE) for event in graph.task_event.tolist()], np.int64
        )
        members[distinct(shared[shared != NONE])] += 1
        own = _without_host_waits(graph, until_all_came(records, matched))
        parts.append(RankGraph(graph=own, shared=shared))
    single = np.flatnonzero(members == 1)
    parts = [
        replace(part, shared=np.where(is_among(part.shared, single), NONE, part.shared))
        for part in parts
    ]
    return JobGraph(
        parts=tuple(parts),
        moving_ns=moving_ns(parts, rank_records, matched),
        members=members,
        tied_by_hosts=matched.num > 0 and not members.any(),
    )


def _without_host_waits(graph: Graph, waits: Intervals) -> Graph:
    """A host that carries collectives out beside a device waits in them for the last rank, which is
    no time of its own."""
    comms = graph.call_parts["comms"]
    if graph.on_host or not comms.any():
        return graph
    waited = lengths_in(graph.call_start_ns, graph.call_end_ns, waits)
    return with_part_ns(graph, "comms", np.maximum(comms - waited, 0.0))


def with_graphs(job_graph: JobGraph, graphs: Sequence[Graph]) -> JobGraph:
    """The same job with changed graphs."""
    return replace(
        job_graph,
        parts=tuple(
            replace(part, graph=graph) for part, graph in zip(job_graph.parts, graphs, strict=True)
        ),
    )


def calibrated(job_graph: JobGraph, step_interval_ns: float) -> JobGraph:
    """Moving takes as much longer as the step needs to come out, where the step waits for it and
    the ranks' own work does not account for the time: they share a device or a wire, and what that
    costs was spent while the collectives ran."""
    plain, longer = (
        play_job(_with_moving(job_graph, factor)).step_interval_ns for factor in (1.0, PROBE)
    )
    moving = float(job_graph.moving_ns.sum()) / max(job_graph.parts[0].graph.num_steps, 1)
    if plain >= step_interval_ns * (1 - CLOSE) or longer - plain < MIN_SLOPE * (PROBE - 1) * moving:
        return job_graph

    def is_short(factor: float) -> bool:
        return play_job(_with_moving(job_graph, factor)).step_interval_ns <= step_interval_ns

    factor, _ = bisect(is_short, 1.0, MAX_MOVING, 10)
    return _with_moving(job_graph, factor)


def fit_job(recorded: JobGraph, step_ns: float | None) -> JobGraph:
    """The job's graph of the unprofiled run.

    One step time cannot determine two unknowns, the hosts' time and the collectives'. The hosts' is
    known better: the profiler's cost follows from their speed (`usual_cost_ns`). So that is taken
    off first. If the step is still too long, the hosts were faster in the run, as far as it depends
    on them (`host_pace.py`). If it is too short and the step waits for collectives, these took
    longer than the recording shows; else recording cost less, down to MIN_COST.

    A step that takes longer than its recording, though nothing is recorded for free: a recording of
    few steps lets the hosts run ahead on the device's backlog, and hides what they take. Then no
    host is taken to run ahead: each waits for its device once a step, and its time is fitted so.
    """
    usual = _at_cost(recorded, 1.0)
    if step_ns is None:
        return usual
    if play_job(usual).step_interval_ns >= step_ns * (1 - CLOSE):
        pace = likely_pace(
            lambda factor: play_job(_scaled(usual, factor)).step_interval_ns, step_ns
        )
        return _scaled(usual, pace.factor)
    if play_job(_scaled(recorded, 0.0)).step_interval_ns >= step_ns * DEVICE_BOUND:
        # Device and network limit the step, which says nothing about the hosts' time.
        return usual
    if play_job(recorded).step_interval_ns < step_ns:
        return _in_turns(
            with_graphs(usual, [waiting_each_step(part.graph) for part in usual.parts]), step_ns
        )
    slower = calibrated(usual, step_ns)
    if play_job(slower).step_interval_ns >= step_ns * (1 - CLOSE):
        return slower
    return calibrated(_bisected(recorded, step_ns), step_ns)


def scaled_to(job_graph: JobGraph, step_ns: float) -> JobGraph:
    """All that hosts without a device do, longer or shorter by one factor: their threads move the
    bytes too, and are as slow at it while they are recorded."""

    def scaled(factor: float) -> JobGraph:
        graphs = [with_pace(part.graph, factor) for part in job_graph.parts]
        return _with_moving(with_graphs(job_graph, graphs), factor)

    def is_short(factor: float) -> bool:
        return play_job(scaled(factor)).step_interval_ns <= step_ns

    factor, _ = bisect(is_short, *SCALE_RANGE, 14, is_geometric=True)
    return scaled(factor)


def waiting_each_step(graph: Graph) -> Graph:
    """The host waits at the end of each step until the work it launched last is done."""
    wait = graph.call_wait.copy()
    for step in range(graph.num_steps):
        calls = np.flatnonzero((graph.call_step == step) & (np.diff(graph.call_first) > 0))
        if len(calls):
            wait[calls[-1]] = graph.call_first[calls[-1] + 1] - 1
    return replace(graph, call_wait=wait)


def _at_cost(job_graph: JobGraph, factor: float) -> JobGraph:
    """Recording cost every host so many times its usual."""
    return with_graphs(
        job_graph,
        [without_cost(part.graph, factor * usual_cost_ns(part.graph)) for part in job_graph.parts],
    )


def _with_moving(job_graph: JobGraph, factor: float) -> JobGraph:
    return replace(job_graph, moving_ns=job_graph.moving_ns * factor)


def _bisected(job_graph: JobGraph, step_ns: float) -> JobGraph:
    """Recording cost less than usual: as much as the step is met with, where any is."""

    def is_cheap(factor: float) -> bool:
        return play_job(_at_cost(job_graph, factor)).step_interval_ns > step_ns

    _, factor = bisect(is_cheap, MIN_COST, 1.0, 10)
    return _at_cost(job_graph, factor)


def _in_turns(job_graph: JobGraph, step_ns: float) -> JobGraph:
    """All hosts' time scaled alike until the step is met, as far as MAX_STRETCH allows."""

    def is_short(factor: float) -> bool:
        return play_job(_scaled(job_graph, factor)).step_interval_ns <= step_ns

    factor, _ = bisect(is_short, 0.0, MAX_STRETCH, 12)
    return _scaled(job_graph, factor)


def _scaled(job_graph: JobGraph, factor: float) -> JobGraph:
    graphs = [
        replace(p.graph, call_parts={k: v * factor for k, v in p.graph.call_parts.items()})
        for p in job_graph.parts
    ]
    return with_graphs(job_graph, graphs)


def alone(job_graph: JobGraph) -> list[float]:
    """Step of each rank if it never had to wait for another: collectives only move their bytes."""
    step_intervals = []
    for part in job_graph.parts:
        mine = replace(job_graph, parts=(part,), members=np.ones_like(job_graph.members))
        step_intervals.append(play_job(mine).step_interval_ns)
    return step_intervals


def job_shares(job_graph: JobGraph, kinds: Sequence[TaskKinds]) -> dict[str, float]:
    """Share by which the job's step is shorter without each resource on all ranks; imbalance is
    waiting for one another.

    A rank that its loader holds up is waited for: what two resources both account for is counted
    with the larger, and the shares sum to one at most.
    """
    whole = play_job(job_graph).step_interval_ns
    if not whole > 0:
        return {}
    names = ("data", "host", "transfer", "compute", "memory", "comms", "imbalance")
    own = {name: _less(job_graph, kinds, [name], whole) for name in names}
    own_first = own | {"imbalance": own["imbalance"] + TIE}
    largest = max(own[name] for name in OF_ONE_RANK)
    if own["imbalance"] >= MAX_OF_IT * largest:
        own_first["imbalance"] = max(own_first["imbalance"], largest)
    order = sorted(names, key=lambda name: (-own_first[name], name != "imbalance"))
    return counted_once(own, order, lambda gone: _less(job_graph, kinds, gone, whole))


def _less(
    job_graph: JobGraph, kinds: Sequence[TaskKinds], names: Sequence[str], whole: float
) -> float:
    """How much shorter the job's step is without all of these resources."""
    graphs = []
    for part, kind in zip(job_graph.parts, kinds, strict=True):
        graph = part.graph
        for name in names:
            if name == "comms":
                # What ranks carry out together stays, and moves its bytes at once.
                mine = kind.comms & (part.shared == NONE)
                graph = without_host_parts(without_tasks(graph, mine), "comms")
            elif name != "imbalance":
                graph = FREE[name](graph, kind)
        graphs.append(graph)
    changed = with_graphs(job_graph, graphs)
    if "comms" in names:
        changed = replace(changed, moving_ns=np.zeros_like(job_graph.moving_ns))
    if "imbalance" in names:
        step_intervals = sorted(alone(changed))
        step_ns = step_intervals[(len(step_intervals) - 1) // 2]
    else:
        step_ns = play_job(changed).step_interval_ns
    return max(0.0, 1.0 - step_ns / whole)
