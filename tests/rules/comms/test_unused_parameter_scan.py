"""unused-parameter-scan: a walk that the device waits for costs; one behind the device's work gives
nothing."""

from __future__ import annotations

import pytest

from stepscope.rules.comms.unused_parameter_scan import propose_job
from tests.rules.job_cases import Fleet, gain


def scanning(
    us: float, walk_us: float, name: str = "torch.distributed.ddp.reducer::search_unused_parameters"
) -> Fleet:
    fleet = Fleet()
    for _ in range(4):
        for _ in range(10):
            fleet.compute(us)
        began = fleet.now
        fleet.host(walk_us)
        fleet.span(name, began)
        for _ in range(10):
            fleet.compute(us, backward=True)
        fleet.collective("all_reduce", 1 << 20, 50)
        fleet.collective(
            "all_reduce",
            400,
            20,
            inside=["autograd::engine::evaluate_function: AccumulateGrad"],
            dtype="Int",
        )
        fleet.step()
    return fleet


def test_a_walk_that_all_wait_for_is_found() -> None:
    job = scanning(10, 2000).job()
    said = propose_job(job)
    assert said is not None
    assert "1 exchanges a step" in said.evidence[1]
    assert gain(job, said) > 3


def test_a_hidden_walk_gives_little() -> None:
    job = scanning(300, 500).job()
    assert gain(job, propose_job(job)) == pytest.approx(1.0, abs=0.02)


def test_no_walk_is_no_fault() -> None:
    assert propose_job(scanning(10, 2000, name="something").job()) is None
