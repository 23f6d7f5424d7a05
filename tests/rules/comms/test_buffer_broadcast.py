"""buffer-broadcast: large ones at each forward cost; small ones give nothing, others are not
DDP's."""

from __future__ import annotations

import pytest

from stepscope.rules.comms.buffer_broadcast import propose_job
from tests.rules.job_cases import Fleet, gain


def sending(size: int, us: float, inside: str) -> Fleet:
    fleet = Fleet()
    for _ in range(4):
        began = fleet.now
        fleet.collective("broadcast", size, us)
        for _ in range(10):
            fleet.compute(100)
        fleet.span(inside, began)
        for _ in range(10):
            fleet.compute(100, backward=True)
        fleet.collective("all_reduce", 1 << 20, 100)
        fleet.step()
    return fleet


def test_a_broadcast_at_each_forward_is_found() -> None:
    job = sending(10_000_000, 1000, "DistributedDataParallel.forward").job()
    said = propose_job(job)
    assert said is not None
    assert gain(job, said) == pytest.approx(3.1 / 2.1, rel=0.08)


def test_a_small_broadcast_gives_nothing() -> None:
    job = sending(100_000, 20, "DistributedDataParallel.forward").job()
    assert gain(job, propose_job(job)) < 1.02


def test_a_broadcast_of_something_else_is_left_alone() -> None:
    assert propose_job(sending(10_000_000, 1000, "sample_prompts").job()) is None
