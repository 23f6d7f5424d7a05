"""sync-every-microbatch: exchanges that the last one makes useless; one exchange a step is
right."""

from __future__ import annotations

import pytest

from stepscope.rules.comms.sync_every_microbatch import propose_job
from stepscope.rules.judge import judge
from stepscope.rules.shared.micro_batches import num_micro_batches
from tests.rules.job_cases import Fleet, gain
from tests.rules.on_hosts import on_hosts


def accumulating(*exchanged: bool) -> Fleet:
    fleet = Fleet()
    for _ in range(4):
        for each in exchanged:
            for _ in range(5):
                fleet.compute(50)
            for _ in range(5):
                fleet.compute(50, backward=True)
            if each:
                fleet.collective("all_reduce", 25_000_000, 1000)
        with_update = fleet.now
        fleet.compute(20, name="multi_tensor_apply_kernel")
        fleet.span("Optimizer.step#AdamW.step", with_update)
        fleet.step()
    return fleet


def test_all_exchanges_but_the_last_are_gone() -> None:
    job = accumulating(True, True, True, True).job()
    said = propose_job(job)
    assert num_micro_batches(job, 0) == 4
    assert said is not None
    assert "4 micro-batches" in said.summary
    assert gain(job, said) == pytest.approx(6.0 / 3.0, rel=0.15)


def test_one_exchange_a_step_is_right() -> None:
    assert propose_job(accumulating(False, False, False, True).job()) is None
    assert propose_job(accumulating(True).job()) is None


def test_exchanges_that_hosts_carry_out_are_gone_with_their_waits() -> None:
    job = Fleet().job([on_hosts(True, True, True, True)] * 2)
    said = propose_job(job)
    assert num_micro_batches(job, 0) == 4
    assert said is not None
    assert gain(job, said) == pytest.approx(49 / 25, rel=0.1)
    assert judge(job).findings[0].code == "sync-every-microbatch"


def test_hosts_that_exchange_once_a_step_are_right() -> None:
    assert propose_job(Fleet().job([on_hosts(False, False, False, True)] * 2)) is None
    assert propose_job(Fleet().job([on_hosts(True)] * 2)) is None
