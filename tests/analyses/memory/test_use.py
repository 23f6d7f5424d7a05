"""Where the peak goes, from the allocator's events of a trace."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.analyses.memory.use import memory_use
from stepscope.core.memory import MemoryUse
from tests.memory_traces import (
    ACTIVATION,
    BASE,
    CAST,
    LOGITS,
    MB,
    TEMPORARY,
    WEIGHTS,
    MemoryTrace,
    steps,
)

PEAK = BASE + CAST + ACTIVATION + LOGITS + WEIGHTS


@pytest.fixture
def use(tmp_path: Path) -> MemoryUse:
    measured = memory_use(steps().context(tmp_path))
    assert measured is not None
    measured.self_check()
    return measured


def test_peak_is_broken_down_by_kind(use: MemoryUse) -> None:
    assert use.peak_bytes == PEAK
    assert use.kinds == {
        "weights": WEIGHTS,
        "optimizer": 2 * WEIGHTS,
        "unknown": 8 * MB,
        "activations": ACTIVATION + CAST,
        "temporary": LOGITS,
        "gradients": WEIGHTS,
    }
    assert use.cache_bytes == 600 * MB - PEAK


def test_peak_has_its_moment(use: MemoryUse) -> None:
    assert use.moment.phase == "backward"
    assert use.moment.operator == "torch::autograd::AccumulateGrad"


def test_phases_have_their_own_peaks_and_sum_to_the_peak(use: MemoryUse) -> None:
    peaks = {phase.phase: phase.peak_bytes for phase in use.phases}
    assert peaks["forward"] == BASE + CAST + ACTIVATION + TEMPORARY
    assert peaks["optimizer"] == BASE + WEIGHTS + TEMPORARY
    assert sum(phase.at_peak_bytes for phase in use.phases) == PEAK


def test_modules_and_operators_hold_what_they_made(use: MemoryUse) -> None:
    assert {row.name: row.size_bytes for row in use.modules}["Net_0"] == CAST + ACTIVATION
    assert {row.name: row.size_bytes for row in use.operators}["aten::mm"] == ACTIVATION


def test_a_copy_of_a_weight_does_not_grow_with_the_batch(use: MemoryUse) -> None:
    growing = ACTIVATION + LOGITS
    assert use.peak_at(2) == PEAK + growing
    assert use.batches[0].peak_bytes == PEAK + growing


def test_without_the_allocators_events_there_is_no_use(tmp_path: Path) -> None:
    made = steps()
    made.events = [entry for entry in made.events if entry["name"] != "[memory]"]
    assert memory_use(made.context(tmp_path)) is None


def test_without_a_backward_pass_the_peak_alone_is_known(tmp_path: Path) -> None:
    made = MemoryTrace()
    for number in range(3):
        with made.op(f"ProfilerStep#{number}", cat="user_annotation"), made.op("aten::mm"):
            made.alloc("output", ACTIVATION)
            made.free("output")
    measured = memory_use(made.context(tmp_path))
    assert measured is not None
    assert (measured.peak_bytes, measured.kinds, measured.batch) == (BASE + ACTIVATION, None, ())


def test_gradients_that_stay_are_told_from_optimizer_state(tmp_path: Path) -> None:
    """zero_grad(set_to_none=False): they are there all the time, and never allocated."""
    made = MemoryTrace(held=BASE + WEIGHTS)
    for number in range(3):
        made.step(number)
    made.events = [
        entry
        for entry in made.events
        if entry["name"] != "[memory]" or abs(entry["args"]["Bytes"]) != WEIGHTS
    ]
    measured = memory_use(made.context(tmp_path))
    assert measured is not None
    assert measured.kinds is not None
    assert measured.kinds["gradients"] == WEIGHTS
    assert measured.kinds["optimizer"] == 2 * WEIGHTS
