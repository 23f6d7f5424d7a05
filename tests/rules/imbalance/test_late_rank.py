"""late-rank: one slow host holds all up; even ranks, and a rank with more work, are not late."""

from __future__ import annotations

import pytest

from stepscope.core.diagnosis import Diagnosis
from stepscope.pipeline.measure import measure_job
from stepscope.readers.inputs import find_sources
from stepscope.rules.imbalance.late_rank import propose_job
from stepscope.rules.verdict import diagnose_job
from tests.rules.job_cases import Fleet, ddp, gain
from tests.shared_data import ROOT


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


def recorded_gloo(variant: str, step_ms: float | None = None) -> Diagnosis:
    """Two ranks on hosts alone; in `slow` rank 1 sleeps 30 ms a step."""
    paths = sorted((ROOT / "lab" / "rank_traces").glob(f"gloo_late_rank.{variant}.rank*.gz"))
    assert len(paths) == 2
    with find_sources([str(path) for path in paths]) as found:
        step_ns = None if step_ms is None else round(step_ms * 1e6)
        return diagnose_job(measure_job(found.sources, step_ns=step_ns))


def test_a_recorded_job_without_a_device_names_the_rank_that_sleeps() -> None:
    said = recorded_gloo("slow", 39.35).findings
    assert [(finding.code, finding.ranks) for finding in said] == [("late-rank", (1,))]
    assert said[0].predicted_speedup == pytest.approx(39.35 / 8.78, rel=0.15)


def test_a_recorded_even_job_without_a_device_names_nobody() -> None:
    assert not recorded_gloo("fixed", 8.78).findings


def test_a_rank_that_waits_moves_no_bytes_without_a_device_either() -> None:
    said = recorded_gloo("slow", 39.35)
    assert said.verdict.bound == "imbalance"
    assert "rank 1 holds the others up" in said.verdict.summary
    assert sum(said.verdict.shares.values()) <= 1.0
    waiting = next(rank for rank in said.facts.ranks if rank.rank == 0).typical_parts_ns
    assert waiting is not None
    assert waiting["comms_wait"] > 0.7 * sum(waiting.values())


def test_an_even_job_without_a_device_is_bound_by_its_cpu() -> None:
    said = recorded_gloo("fixed").verdict
    assert said.bound == "compute"
    assert said.summary.startswith("CPU-bound: without operators on the CPU")
