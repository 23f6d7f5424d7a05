"""data-parallel-module: one process that drives several devices; DDP and one device are something
else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepscope.rules.comms.data_parallel_module import propose_job
from stepscope.rules.job_case import JobCase
from tests.rules.job_cases import Fleet, gain


def driving(name: str, num_devices: int) -> JobCase:
    fleet = Fleet(1)
    for _ in range(4):
        began = fleet.now
        fleet.collective("broadcast", 10_000_000, 1000, inside=["Broadcast"], told=False)
        fleet.compute(500)
        if num_devices > 1:
            rank = fleet.ranks[0]
            fleet.compute(500)
            rank.events[-1] = replace(rank.events[-1], device=1)
        fleet.span(name, began)
        fleet.step()
    return fleet.job()


def test_data_parallel_is_a_range() -> None:
    job = driving("DataParallel.forward", 2)
    said = propose_job(job)
    assert said is not None
    assert said.hopeful is not None
    assert said.cautious is not None
    assert job.speedup(said.cautious(job.job_graph)) == pytest.approx(1.0)
    assert 1.1 < gain(job, said) < job.speedup(said.hopeful(job.job_graph))


@pytest.mark.parametrize(
    ("name", "devices"), [("DistributedDataParallel.forward", 2), ("DataParallel.forward", 1)]
)
def test_other_modules_and_one_device_are_left_alone(name: str, devices: int) -> None:
    assert propose_job(driving(name, devices)) is None
