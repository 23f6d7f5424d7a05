"""Ranks replayed as one: a collective waits for the last, and what one rank loses all lose."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.core.compiled import has, load
from stepscope.core.trace import NONE, Float64
from stepscope.replay.changes import without_host_parts
from stepscope.replay.graph import HOST_PARTS, Graph
from stepscope.replay.job import alone, job_shares
from stepscope.replay.resources import TaskKinds
from stepscope.replay.simulate_job import (
    JobGraph,
    RankGraph,
    play_job,
    played_compiled,
    played_in_turns,
)
from tests.rules.job_cases import Fleet, ddp

US = 1_000


def graph_of(work: list[list[tuple[float, int]]]) -> tuple[Graph, np.ndarray]:
    """Steps of tasks (microseconds, number of the collective or NONE), each launched by its own
    call in no time."""
    flat = [(step, us, number) for step, tasks in enumerate(work) for us, number in tasks]
    n = len(flat)
    zero, none = np.zeros(n), np.full(n, NONE, np.int64)
    graph = Graph(
        call_event=np.arange(n),
        call_step=np.array([step for step, _, _ in flat], np.int64),
        call_start_ns=np.arange(n),
        call_end_ns=np.arange(1, n + 1),
        call_parts=dict.fromkeys(HOST_PARTS, zero),
        call_events=dict.fromkeys(HOST_PARTS, np.zeros(n, np.int64)),
        call_wait=none,
        call_tail_ns=zero,
        call_first=np.arange(n + 1),
        task_event=np.arange(n),
        task_step=np.array([step for step, _, _ in flat], np.int64),
        task_stream=np.zeros(n, np.int64),
        task_ns=np.array([us * US for _, us, _ in flat], np.float64),
        task_latency_ns=zero,
        task_gap_ns=zero,
        task_after=none,
        task_lag_ns=zero,
        backlog_ns=0.0,
        num_streams=1,
        num_steps=len(work),
    )
    graph.self_check()
    return graph, np.array([number for _, _, number in flat], np.int64)


def job_graph(*ranks: list[list[tuple[float, int]]], moving_us: float = 10.0) -> JobGraph:
    made = [graph_of(work) for work in ranks]
    num = 1 + max(int(shared.max()) for _, shared in made)
    members = sum(np.bincount(shared[shared != NONE], minlength=num) for _, shared in made)
    parts = tuple(RankGraph(graph=graph, shared=shared) for graph, shared in made)
    return JobGraph(
        parts=parts, moving_ns=np.full(num, moving_us * US), members=np.asarray(members, np.int64)
    )


def steps(us: float, num: int = 3) -> list[list[tuple[float, int]]]:
    return [[(us, NONE), (10.0, step)] for step in range(num)]


def test_a_collective_starts_when_the_last_arrives() -> None:
    played = play_job(job_graph(steps(100), steps(300)))
    assert played.num_forced == 0
    assert [rank.end_ns[1] for rank in played.ranks] == [310 * US, 310 * US]
    assert played.waited_ns[0][1] == 200 * US
    assert played.waited_ns[1][1] == 0
    assert played.step_interval_ns == 310 * US


def test_a_change_on_one_rank_moves_all() -> None:
    slow = job_graph(steps(100), steps(300))
    part = slow.parts[1]
    faster = replace(
        slow,
        parts=(
            slow.parts[0],
            replace(part, graph=replace(part.graph, task_ns=part.graph.task_ns / 3)),
        ),
    )
    assert [rank.step_interval_ns for rank in play_job(faster).ranks] == [110 * US, 110 * US]


def test_alone_nobody_waits() -> None:
    assert alone(job_graph(steps(100), steps(300))) == [110 * US, 310 * US]


def test_work_that_is_mostly_one_ranks_is_told_as_imbalance() -> None:
    """Without its kernels of 500 us the step is 98 % shorter, and with those of the others 78 %."""
    uneven = job_graph(steps(100), steps(100), steps(500))
    even = job_graph(steps(400), steps(400), steps(500))
    kinds = [
        TaskKinds(
            transfer=part.shared < NONE,
            comms=part.shared != NONE,
            arithmetic=part.shared < NONE,
            memory=part.shared == NONE,
        )
        for part in uneven.parts
    ]
    shares = job_shares(uneven, kinds)
    assert shares["imbalance"] == pytest.approx(1 - 110 / 510)
    assert shares["imbalance"] > shares["memory"]
    assert job_shares(even, kinds)["memory"] > 0.9


def test_collectives_of_some_ranks_do_not_hold_the_others_up() -> None:
    work = [[(100.0, NONE)] for _ in range(3)]
    made = job_graph(steps(100), steps(300), work)
    assert play_job(made).ranks[2].step_interval_ns == 100 * US


def test_crossed_orders_do_not_hang() -> None:
    one = [[(10.0, NONE), (5.0, 0), (5.0, 1)] for _ in range(1)]
    other = [[(10.0, NONE), (5.0, 1), (5.0, 0)] for _ in range(1)]
    played = play_job(job_graph(one, other))
    assert played.num_forced > 0
    assert all(np.isfinite(rank.end_ns).all() for rank in played.ranks)


def test_a_rank_that_stops_early_does_not_hang_the_rest() -> None:
    made = job_graph(steps(100), steps(100, num=2))
    made = replace(made, members=np.full_like(made.members, 2))
    played = play_job(made)
    assert played.num_forced == 1
    assert len(played.ranks[0].end_ns) == 6


@given(st.lists(st.lists(st.floats(1, 500), min_size=4, max_size=4), min_size=2, max_size=4))
@settings(max_examples=40, deadline=None)
def test_every_step_lasts_as_long_as_its_slowest_rank(work: list[list[float]]) -> None:
    made = job_graph(
        *[[[(us, NONE), (10.0, step)] for step, us in enumerate(rank)] for rank in work]
    )
    played = play_job(made)
    slowest = np.max(np.array(work), axis=0) + 10.0
    for rank in played.ranks:
        assert rank.step_end_ns == pytest.approx(np.cumsum(slowest) * US)


def test_an_unchanged_replay_gives_the_recorded_step() -> None:
    job = ddp(us=[100, 140], steps=5).job()
    recorded = [case.facts.steps.step_interval_ns or 0.0 for case in job.cases]
    parts = tuple(
        replace(p, graph=c.recorded)
        for p, c in zip(job.job_graph.parts, job.cases, strict=True)
        if c.recorded is not None
    )
    assert play_job(replace(job.job_graph, parts=parts)).step_interval_ns == pytest.approx(
        np.median(recorded), rel=0.03
    )


def test_the_late_ranks_host_holds_both_up() -> None:
    fleet = Fleet()
    for _ in range(4):
        fleet.host([10, 3000])
        for _ in range(5):
            fleet.compute(50)
        fleet.collective("all_reduce", 1 << 20, 100)
        fleet.step()
    job = fleet.job()
    graph = without_host_parts(job.job_graph.parts[1].graph, "work")
    freed = replace(
        job.job_graph, parts=(job.job_graph.parts[0], replace(job.job_graph.parts[1], graph=graph))
    )
    assert job.speedup(freed) > 3


@given(
    st.lists(
        st.lists(st.tuples(st.floats(0, 500), st.integers(-1, 5)), min_size=1, max_size=12),
        min_size=2,
        max_size=4,
    ),
    st.integers(0, 2**31),
)
@settings(max_examples=50, deadline=None)
def test_all_ranks_in_one_call_give_what_turns_do(
    work: list[list[tuple[float, int]]], seed: int
) -> None:
    """In whatever order they come to collectives, some of which wait for more ranks than come."""
    random = np.random.default_rng(seed)

    def up_to(most_us: int, num: int) -> Float64:
        return random.integers(0, most_us, num).astype(np.float64) * US

    parts = []
    for rank in [[(1.0, 5), *own] for own in work]:
        graph, shared = graph_of([rank[::2], rank[1::2]])
        num = len(graph)
        waits = np.where(random.random(num) < 0.3, np.arange(num), NONE)
        after = np.where(random.random(num) < 0.3, random.integers(-1, np.arange(num)), NONE)
        busy = replace(
            graph,
            call_parts=graph.call_parts | {"work": up_to(90, num)},
            call_wait=waits,
            call_tail_ns=up_to(9, num),
            task_stream=random.integers(0, 2, num),
            task_latency_ns=up_to(9, num),
            task_gap_ns=up_to(9, num),
            task_after=after,
            task_lag_ns=up_to(9, num),
            num_streams=2,
        )
        parts.append(RankGraph(graph=busy, shared=shared))
    made = JobGraph(
        parts=tuple(parts),
        moving_ns=up_to(99, 6) + US,
        members=random.integers(1, 5, 6),
    )
    turns = played_in_turns(made)
    compiled = load()
    if compiled is None or not has(compiled, "stepscope_play_job"):
        return
    once = played_compiled(compiled, made)
    assert once.num_forced == turns.num_forced
    for one, other in zip(once.ranks, turns.ranks, strict=True):
        assert one.end_ns.tolist() == other.end_ns.tolist()
        assert one.step_end_ns == pytest.approx(other.step_end_ns, nan_ok=True)
    for waited, expected in zip(once.waited_ns, turns.waited_ns, strict=True):
        assert waited.tolist() == expected.tolist()
