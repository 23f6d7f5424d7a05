"""memory-pressure: tensors fill the device."""

from __future__ import annotations

from stepscope.core.diagnosis import Abstention
from stepscope.rules.memory import memory_pressure
from stepscope.rules.proposal import Remark
from tests.rules.recorded import Run, allocator

GB = 10**9


def training() -> Run:
    run = Run()
    for _ in range(4):
        run.step()
        run.launch(10_000)
        run.sync()
    return run


def test_a_full_device_is_told() -> None:
    said = memory_pressure.propose(
        training().case(allocator([1, 2], [100 * GB, 135 * GB], [138 * GB, 138 * GB]))
    )
    assert isinstance(said, Remark)
    assert "135.0 of 140.0 GB" in said.text


def test_a_large_cache_is_not_pressure() -> None:
    assert (
        memory_pressure.propose(
            training().case(allocator([1, 2], [60 * GB, 90 * GB], [138 * GB, 138 * GB]))
        )
        is None
    )


def test_without_the_allocators_events_it_abstains() -> None:
    said = memory_pressure.propose(training().case())
    assert isinstance(said, Abstention)
    assert "profile_memory=True" in said.needs
