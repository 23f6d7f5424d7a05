"""throttled-gpu: the same kernels slower by one factor; other kernels, other counts or a few slow
ones are no throttle."""

from __future__ import annotations

import pytest

from stepscope.rules.imbalance.throttled_gpu import propose_job
from tests.rules.job_cases import Fleet, ddp, gain


def test_a_slower_device_is_named_with_its_factor() -> None:
    job = ddp(us=[100, 130]).job()
    said = propose_job(job)
    assert said is not None
    assert said.ranks == (1,)
    assert "1.30 times" in said.summary
    assert gain(job, said) == pytest.approx(1.29, rel=0.05)


@pytest.mark.parametrize("us", [[100, 100], [100, 103]])
def test_devices_that_differ_by_little_are_alike(us: list[float]) -> None:
    assert propose_job(ddp(us=us).job()) is None


def test_larger_shapes_are_more_work() -> None:
    assert propose_job(ddp(us=[100, 130], grid=[100, 130]).job()) is None


def test_more_kernels_are_more_work() -> None:
    fleet = Fleet()
    for _ in range(4):
        for at in range(10):
            fleet.compute([100, 100] if at < 6 else [0, 100])
        fleet.collective("all_reduce", 1 << 20, 100)
        fleet.step()
    assert propose_job(fleet.job()) is None


def test_some_slow_kernels_are_no_clock() -> None:
    fleet = Fleet()
    for _ in range(4):
        for at in range(10):
            fleet.compute([100, 300 if at < 6 else 100], name=f"gemm_{at}")
        fleet.collective("all_reduce", 1 << 20, 100)
        fleet.step()
    assert propose_job(fleet.job()) is None
