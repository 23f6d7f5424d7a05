"""fragmentation: reserved far above allocated at the peak."""

from __future__ import annotations

from stepscope.core.diagnosis import Abstention
from stepscope.rules.memory import fragmentation
from stepscope.rules.proposal import Remark
from tests.rules.memory.test_memory_pressure import GB, training
from tests.rules.recorded import allocator


def test_much_reserved_for_few_tensors_is_told() -> None:
    said = fragmentation.propose(
        training().case(allocator([1, 2], [60 * GB, 80 * GB], [130 * GB, 130 * GB]))
    )
    assert isinstance(said, Remark)
    assert "expandable_segments" in said.text


def test_a_small_or_well_used_cache_is_not() -> None:
    assert (
        fragmentation.propose(
            training().case(allocator([1, 2], [1 * GB, 2 * GB], [8 * GB, 8 * GB]))
        )
        is None
    )
    assert (
        fragmentation.propose(
            training().case(allocator([1, 2], [60 * GB, 110 * GB], [120 * GB, 120 * GB]))
        )
        is None
    )


def test_without_the_allocators_events_it_abstains() -> None:
    assert isinstance(fragmentation.propose(training().case()), Abstention)
