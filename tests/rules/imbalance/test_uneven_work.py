"""uneven-work: unlike kernels on the ranks; a slow host, an even run and a slow device are
something else."""

from __future__ import annotations

import pytest

from stepscope.core.trace import Trace
from stepscope.rules.imbalance.uneven_work import propose_job
from stepscope.rules.judge import judge
from tests.rules.job_cases import Fleet, ddp, gain
from tests.tracing import Event, inputs, mark, op, trace_of
from tests.wording import mentions

MS = 1_000_000


def test_a_rank_with_three_times_the_work_is_found() -> None:
    job = ddp(us=[100, 300], grid=[100, 300]).job()
    said = propose_job(job)
    assert said is not None
    assert said.ranks == (1,)
    assert gain(job, said) == pytest.approx(1.5, rel=0.1)


def test_work_that_changes_sides_is_everyones() -> None:
    fleet = Fleet()
    for step in range(6):
        sizes = [100, 300] if step % 2 else [300, 100]
        for _ in range(10):
            fleet.compute(sizes, grid=sizes)
        fleet.collective("all_reduce", 1 << 20, 100)
        fleet.step()
    job = fleet.job()
    said = propose_job(job)
    assert said is not None
    assert said.ranks == (0, 1)
    assert gain(job, said) == pytest.approx(1.5, rel=0.1)


def test_even_ranks_have_even_work() -> None:
    assert propose_job(ddp(us=[100, 101]).job()) is None


def test_the_same_kernels_on_a_slower_device_are_not_more_work() -> None:
    assert propose_job(ddp(us=[100, 130]).job()) is None


def test_work_that_one_rank_alone_does_is_taken_out_and_not_shared() -> None:
    fleet = Fleet()
    for _ in range(5):
        for _ in range(10):
            fleet.compute(100)
        fleet.compute([0, 2000], name="sm80_sgemm")
        fleet.collective("all_reduce", 1 << 20, 100)
        fleet.step()
    job = fleet.job()
    said = propose_job(job)
    assert said is not None
    assert said.ranks == (1,)
    assert mentions(said.summary, "no other rank", "2.0 ms")
    assert gain(job, said) == pytest.approx(3.1 / 1.1, rel=0.1)
    assert said.cautious is not None


def on_host(work_ms: int, latest_ms: int, tokens: int) -> Trace:
    """Four steps of one rank on its host alone: an operator on so many tokens, then an exchange
    that moves bytes for 4 ms once the latest rank has come."""
    events: list[Event] = []
    now = 0
    for step in range(4):
        began = now
        detail = inputs(f"[[8, {tokens}], [{tokens}, 64]]", '["float", "float"]')
        events.append(op("aten::mm", now, now + work_ms * MS, detail=detail))
        came, done = now + work_ms * MS, now + (latest_ms + 4) * MS
        events.append(op("c10d::allreduce_", came, came + MS // 10))
        events.append(mark("gloo:all_reduce", came + MS // 20, done, thread="worker"))
        events.append(op("aten::add_", done + 1000, done + MS))
        now = done + MS + 1000
        events.append(mark(f"ProfilerStep#{step}", began, now))
        now += 1_000
    return trace_of(*events)


def test_longer_sequences_on_one_host_are_uneven_work() -> None:
    job = Fleet().job([on_host(10, 50, 24), on_host(50, 50, 120)])
    (finding,) = judge(job).findings
    assert (finding.code, finding.ranks) == ("uneven-work", (1,))
    assert finding.predicted_speedup == pytest.approx(55 / 35, rel=0.05)


def test_the_same_operators_that_take_longer_on_one_host_are_no_more_work() -> None:
    job = Fleet().job([on_host(10, 50, 24), on_host(50, 50, 24)])
    assert propose_job(job) is None
    assert [each.code for each in judge(job).findings] == ["late-rank"]


def test_even_hosts_have_even_work() -> None:
    job = Fleet().job([on_host(50, 50, 24), on_host(50, 50, 24)])
    assert propose_job(job) is None
