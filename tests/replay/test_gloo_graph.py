"""Jobs without a device: a gap that ends with a collective is a wait for it, any other gap is the
host's own."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.analyses.collectives.matching import match
from stepscope.analyses.collectives.records import collective_records_of
from stepscope.analyses.rank_context import build_context
from stepscope.core.trace import NONE, Trace
from stepscope.replay.host_graph import build_host, host_kinds
from stepscope.replay.job import alone, job_graph_of, job_shares
from stepscope.replay.simulate_job import JobGraph, play_job
from tests.tracing import Event, kernel, mark, op, trace_of

MS = 1_000_000


def gloo_steps(sleep_ms: int, wait_ms: int, *, steps: int = 4) -> Trace:
    """5 ms forward, a sleep, 5 ms backward that hands the gradients over, a wait for them, 1 ms of
    update."""
    events: list[Event] = []
    now = 0
    for step in range(steps):
        began = now
        events.append(op("aten::linear", now, now + 5 * MS))
        now += (5 + sleep_ms) * MS
        events.append(op("aten::mm", now, now + 5 * MS))
        now += 5 * MS
        events.append(op("c10d::allreduce_", now, now + MS // 10))
        end = now + wait_ms * MS
        events.append(op("gloo:all_reduce", now + MS // 20, end, thread="worker"))
        now = end + MS // 100
        events.append(op("aten::add_", now, now + MS))
        now += MS
        events.append(mark(f"ProfilerStep#{step}", began, now))
        now += 1_000
    return trace_of(*events)


def test_a_collective_longer_than_any_step_does_not_hide_the_thread_that_drives() -> None:
    events: list[Event] = []
    for step in range(3):
        now = step * 20 * MS
        events += [
            op("aten::mm", now, now + 5 * MS),
            op("c10d::allreduce_", now + 5 * MS, now + 5 * MS + 1000),
        ]
        late = 24 if step == 2 else 12
        events.append(mark("gloo:all_reduce", now + 6 * MS, now + (6 + late) * MS, thread="worker"))
        events += [
            op("aten::add_", now + 18 * MS + 1000, now + 19 * MS),
            mark(f"ProfilerStep#{step}", now, now + 20 * MS - 1000),
        ]
    found = build_context(trace_of(*events), None)
    driving = {
        found.trace.names[found.trace.name[i]] for i in found.host.driving.nonzero()[0].tolist()
    }
    assert "aten::mm" in driving
    assert "gloo:all_reduce" not in driving


def joined(*traces: Trace) -> JobGraph:
    found = [build_context(trace, None) for trace in traces]
    graphs = [graph for one in found if (graph := build_host(one)) is not None]
    rank_records = [collective_records_of(one, rank) for rank, one in enumerate(found)]
    return job_graph_of(graphs, rank_records, match(rank_records))


def test_the_gap_before_a_collectives_end_is_a_wait_and_the_sleep_is_not() -> None:
    graph = build_host(build_context(gloo_steps(sleep_ms=30, wait_ms=8), None))
    assert graph is not None
    graph.self_check()
    assert int((graph.call_wait != NONE).sum()) == 4
    assert graph.call_ns.sum() == pytest.approx((3 * 41 + 1) * MS, rel=0.01), (
        "all from the first call on but the waits"
    )
    assert host_kinds(graph).comms.all()


def test_the_job_waits_for_the_rank_that_sleeps() -> None:
    job_graph = joined(gloo_steps(sleep_ms=0, wait_ms=38), gloo_steps(sleep_ms=30, wait_ms=8))
    assert play_job(job_graph).step_interval_ns == pytest.approx(49 * MS, rel=0.02)
    quick, slow = alone(job_graph)
    assert quick == pytest.approx(19 * MS, rel=0.03)
    assert slow == pytest.approx(49 * MS, rel=0.02)
    assert np.median(job_graph.moving_ns) == pytest.approx(8 * MS, rel=0.02)


def test_even_ranks_share_nothing_but_their_bytes() -> None:
    job_graph = joined(gloo_steps(sleep_ms=0, wait_ms=8), gloo_steps(sleep_ms=0, wait_ms=8))
    shares = job_shares(job_graph, [host_kinds(part.graph) for part in job_graph.parts])
    assert shares["imbalance"] == pytest.approx(0, abs=0.01)
    assert shares["comms"] == pytest.approx(8 / 19, rel=0.05)


def test_a_job_with_a_device_has_another_graph() -> None:
    events = [
        op("aten::mm", 0, MS),
        kernel("gemm", 10, MS),
        mark("ProfilerStep#0", 0, MS),
        mark("ProfilerStep#1", MS, 2 * MS),
    ]
    assert build_host(build_context(trace_of(*events), None)) is None


def test_one_step_or_no_collective_is_no_graph() -> None:
    assert build_host(build_context(gloo_steps(0, 8, steps=1), None)) is None
    assert (
        build_host(
            build_context(trace_of(op("aten::mm", 0, MS), mark("ProfilerStep#0", 0, MS)), None)
        )
        is None
    )
