"""uneven-work: unlike kernels on the ranks; a slow host, an even run and a slow device are
something else."""

from __future__ import annotations

import pytest

from stepscope.rules.imbalance.uneven_work import propose_job
from tests.rules.job_cases import Fleet, ddp, gain
from tests.wording import mentions


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
