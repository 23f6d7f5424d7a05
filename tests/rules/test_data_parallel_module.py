"""data-parallel-module: one process that drives several devices; DDP and one device are something else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepscope.rules.crew import Crew
from stepscope.rules.data_parallel_module import propose_team
from tests.rules.crews import Fleet, gain


def driving(name: str, num_devices: int) -> Crew:
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
    return fleet.crew()


def test_data_parallel_is_a_range() -> None:
    crew = driving("DataParallel.forward", 2)
    said = propose_team(crew)
    assert said is not None
    assert said.hopeful is not None
    assert said.cautious is not None
    assert crew.speedup(said.cautious(crew.team)) == pytest.approx(1.0)
    assert 1.1 < gain(crew, said) < crew.speedup(said.hopeful(crew.team))


@pytest.mark.parametrize(("name", "devices"), [("DistributedDataParallel.forward", 2), ("DataParallel.forward", 1)])
def test_other_modules_and_one_device_are_left_alone(name: str, devices: int) -> None:
    assert propose_team(driving(name, devices)) is None
