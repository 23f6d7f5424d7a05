"""late-rank: one slow host holds all up; even ranks, and a rank with more work, are not late."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepscope.core.diagnosis import Diagnosis
from stepscope.core.trace import Trace
from stepscope.pipeline.measure import measure_job
from stepscope.readers.inputs import find_sources
from stepscope.rules.imbalance.late_rank import propose_job
from stepscope.rules.job_case import JobCase, job_case_of_rank
from stepscope.rules.judge import judge as judge_job
from stepscope.rules.shared.rank_speed import rank_speeds
from stepscope.rules.verdict import diagnose_job
from tests.rules.job_cases import Fleet, ddp, gain
from tests.rules.recorded import Run
from tests.shared_data import lab_traces
from tests.tracing import Event, call, kernel, mark, op, trace_of
from tests.wording import mentions

MS = 1_000_000
SERIAL_NEXT = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def sleepy(*host_us: float) -> Fleet:
    fleet = Fleet(len(host_us))
    for _ in range(4):
        for _ in range(10):
            fleet.compute(100)
        fleet.host(host_us)
        for _ in range(10):
            fleet.compute(100, backward=True)
        fleet.collective("all_reduce", 1 << 20, 100)
        fleet.step()
    return fleet


def test_a_slow_host_is_named_with_what_it_costs() -> None:
    job = sleepy(10, 10, 8000).job()
    said = propose_job(job)
    assert said is not None
    assert said.ranks == (2,)
    assert gain(job, said) == pytest.approx(job.step_interval_ns / 2.15e6, rel=0.15)


def test_even_ranks_have_nobody_late() -> None:
    assert propose_job(sleepy(500, 500, 510).job()) is None


def test_a_rank_with_more_work_is_not_late() -> None:
    assert propose_job(ddp(us=[100, 300]).job()) is None


def test_one_rank_alone_is_not_late() -> None:
    assert propose_job(sleepy(8000).job()) is None


def behind(*host_us: float) -> JobCase:
    """Hosts that run ahead of collectives, which take ten times as long as all else."""
    fleet = Fleet(len(host_us))
    for _ in range(4):
        for _ in range(10):
            fleet.compute(100)
        fleet.host(host_us)
        for _ in range(10):
            fleet.compute(100, backward=True)
        fleet.collective("all_reduce", 10_000_000, 20_000)
        fleet.step()
    return fleet.job()


def test_a_slow_host_that_the_recording_hides_is_named_for_half_of_what_it_may_cost() -> None:
    hidden = behind(10, 10, 8000)
    said = propose_job(hidden)
    assert said is not None
    assert said.ranks == (2,)
    assert gain(hidden, said) == pytest.approx(1.0)
    assert said.rare_ns == pytest.approx(4e6, rel=0.15)
    assert propose_job(replace(hidden, knows_step=True)) is None, "it does not wait for it"
    assert propose_job(behind(700, 700, 1000)) is None


def test_a_loader_is_timed_by_the_steps_that_have_a_fetch() -> None:
    """The first step's may lie before the recording."""
    run = Run()
    for step in range(3):
        run.step()
        if step:
            run.fetch(9_000)
        run.launch(1_000)
        run.sync()
    (host,) = rank_speeds(job_case_of_rank(run.case())).host_ns
    assert host["input"] == pytest.approx(9_000_000, rel=0.01)


def recorded_gloo(variant: str, step_ms: float | None = None) -> Diagnosis:
    """Two ranks on hosts alone; in `slow` rank 1 sleeps 30 ms a step."""
    paths = lab_traces(f"rank_traces/gloo_late_rank.{variant}.rank*")
    assert len(paths) == 2
    with find_sources([str(path) for path in paths]) as found:
        step_ns = None if step_ms is None else round(step_ms * 1e6)
        return diagnose_job(measure_job(found.sources, step_ns=step_ns))


def test_a_recorded_job_without_a_device_names_the_rank_that_sleeps() -> None:
    said = recorded_gloo("slow", 39.35).findings
    assert [(finding.code, finding.ranks) for finding in said] == [("late-rank", (1,))]
    assert said[0].predicted_speedup == pytest.approx(39.35 / 8.78, rel=0.15)


def test_a_recorded_even_job_without_a_device_names_nobody() -> None:
    """Its steps take twice as long while recorded, exchanges as well: a fit meets the run's, and
    which rank is the slower one is not told."""
    said = recorded_gloo("fixed", 8.78)
    assert not said.findings
    assert said.replay is not None
    assert said.replay.error == pytest.approx(0, abs=0.01)


def test_a_rank_that_waits_moves_no_bytes_without_a_device_either() -> None:
    said = recorded_gloo("slow", 39.35)
    assert said.verdict.bound == "imbalance"
    assert mentions(said.verdict.summary, "rank 1", "holds")
    assert sum(said.verdict.shares.values()) <= 1.0
    waiting = next(rank for rank in said.facts.ranks if rank.rank == 0).typical_parts_ns
    assert waiting is not None
    assert waiting["comms_wait"] > 0.7 * sum(waiting.values())


def test_an_even_job_without_a_device_is_bound_by_its_cpu() -> None:
    said = recorded_gloo("fixed").verdict
    assert said.bound == "compute"
    assert mentions(said.summary.split(":")[0], "CPU-bound")


def loading_host(load_ms: int, late_ms: int = 0) -> Trace:
    """Four steps of one rank on its host alone: it makes a batch, computes, and exchanges its
    gradients for a millisecond once both have come."""
    events: list[Event] = []
    now = 0
    for step in range(4):
        began, now = now, now + load_ms * MS
        events.append(mark(SERIAL_NEXT, began, now))
        events.append(op("aten::mm", now, now + 5 * MS))
        came = now + 5 * MS
        events.append(op("c10d::allreduce_", came, came + MS // 10))
        done = came + (late_ms + 1) * MS
        events.append(mark("gloo:all_reduce", came + MS // 20, done, thread="worker"))
        events.append(op("aten::add_", done + 1000, done + MS))
        now = done + MS + 1000
        events.append(mark(f"ProfilerStep#{step}", began, now))
        now += 1_000
    return trace_of(*events)


def test_what_all_ranks_suffer_from_on_their_hosts_alone_is_found() -> None:
    job = Fleet().job([loading_host(20), loading_host(20)])
    (finding,) = judge_job(job).findings
    assert (finding.code, finding.ranks) == ("serial-loader", (0, 1))
    assert 2.0 < finding.predicted_speedup < 4.0
    late = judge_job(Fleet().job([loading_host(20), loading_host(2, late_ms=18)])).findings
    assert [(each.code, each.ranks) for each in late] == [("late-rank", (0,))]
    both = judge_job(Fleet().job([loading_host(40), loading_host(15, late_ms=25)])).findings
    assert [each.code for each in both] == ["late-rank", "serial-loader"]
    assert both[1].predicted_speedup > both[0].predicted_speedup


def beside_a_device(sleeps_ms: int, *, latest_ms: int) -> Trace:
    """Four steps of one rank: 5 ms of launches, a sleep, then a collective of the host that moves
    bytes for 8 ms once the latest rank has come."""
    events: list[Event] = []
    now = 0
    for step in range(4):
        began = now
        for at in range(10):
            start, number = now + at * MS // 2, 1 + 10 * step + at
            events.append(op("aten::mm", start, start + MS // 2))
            events.append(call("cudaLaunchKernel", start + 1000, start + 10_000, number))
            events.append(kernel("gemm", start + 12_000, start + 200_000, number))
        came = now + (5 + sleeps_ms) * MS
        events.append(op("c10d::allreduce_", came, came + MS // 10))
        now += (5 + latest_ms + 8) * MS
        events.append(mark("gloo:all_reduce", came + MS // 20, now, thread="worker"))
        events.append(mark(f"ProfilerStep#{step}", began, now))
        now += 1_000
    return trace_of(*events)


def test_hosts_that_exchange_data_beside_their_devices_wait_for_the_late_one() -> None:
    job = Fleet().job([beside_a_device(0, latest_ms=50), beside_a_device(50, latest_ms=50)])
    said = propose_job(job)
    assert said is not None
    assert said.ranks == (1,)
    assert gain(job, said) == pytest.approx(63 / 13, rel=0.15)
    parts = job.cases[0].facts.typical_parts_ns
    assert parts is not None
    assert parts["comms_wait"] == pytest.approx(50 * MS, rel=0.05)


def test_even_hosts_that_exchange_data_beside_their_devices_have_nobody_late() -> None:
    job = Fleet().job([beside_a_device(1, latest_ms=1), beside_a_device(1, latest_ms=1)])
    assert propose_job(job) is None
