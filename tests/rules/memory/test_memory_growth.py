"""memory-growth: each step's floor is higher than the last one's."""

from __future__ import annotations

from stepscope.core.diagnosis import Abstention
from stepscope.rules.memory import memory_growth
from stepscope.rules.proposal import Remark
from tests.rules.memory.test_memory_pressure import GB, training
from tests.rules.recorded import allocator


def said(floors: list[int]) -> object:
    """Each step of 10 ms goes from its floor up to 50 GB and back."""
    run = training()
    times, allocated = [], []
    for start, floor in zip(run.steps, floors, strict=True):
        times += [start + 100, start + 5_000]
        allocated += [floor, 50 * GB]
    return memory_growth.propose(run.case(allocator(times, allocated, [60 * GB] * len(times))))


def test_a_floor_that_rises_with_every_step_is_told() -> None:
    word = said([10 * GB, 10 * GB + 40_000_000, 10 * GB + 80_000_000, 10 * GB + 121_000_000])
    assert isinstance(word, Remark)
    assert "40.0 MB" in word.text


def test_state_made_once_and_steady_steps_are_not_growth() -> None:
    assert said([10 * GB, 20 * GB, 20 * GB, 20 * GB]) is None
    assert said([10 * GB] * 4) is None
    assert said([10 * GB, 18 * GB, 19 * GB, 19 * GB + 100_000_000]) is None


def test_without_the_allocators_events_it_abstains() -> None:
    assert isinstance(memory_growth.propose(training().case()), Abstention)
