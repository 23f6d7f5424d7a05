"""memory-pressure: tensors fill the device."""

from __future__ import annotations

from dataclasses import replace

from msgspec import structs

from stepscope.core.diagnosis import Abstention
from stepscope.core.memory import MemoryHolder, MemoryUse
from stepscope.rules.memory import memory_pressure
from stepscope.rules.proposal import Remark
from tests.rules.recorded import Run, allocator
from tests.wording import mentions

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


def test_what_to_checkpoint_is_said_where_activations_are_known() -> None:
    case = training().case(allocator([1, 2], [100 * GB, 135 * GB], [138 * GB, 138 * GB]))
    use = MemoryUse(
        source="trace",
        label="built",
        peak_bytes=135 * GB,
        kinds={"activations": 100 * GB, "weights": 35 * GB},
        modules=(
            MemoryHolder(
                name="GPT_0 > Block_*", size_bytes=90 * GB, num_tensors=9, kind="activations"
            ),
        ),
    )
    said = memory_pressure.propose(replace(case, facts=structs.replace(case.facts, memory=use)))
    assert isinstance(said, Remark)
    # 135 - 0.85 * 140 = 16 GB, of 70 that checkpointing every block frees at least.
    assert mentions(said.text, "3 of 10 blocks", "21.0 GB")
    assert "GPT_0 > Block_*" in said.text


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
