"""wide-optimizer-state: the update moves fp32 states."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.core.diagnosis import Abstention
from stepscope.rules.case import Case, case_of
from stepscope.rules.memory import wide_optimizer_state
from stepscope.rules.proposal import Proposal
from tests.memory_traces import WEIGHTS, MemoryTrace
from tests.rules.judging import finding_of


def training(
    folder: Path,
    *,
    update_us: float = 1000.0,
    optimizer: str = "AdamW",
    memory: bool = True,
) -> Case:
    made = MemoryTrace(update_us=update_us, optimizer=optimizer)
    for number in range(4):
        made.step(number)
    if not memory:
        made.events = [entry for entry in made.events if entry["name"] != "[memory]"]
    return case_of(made.context(folder), 0, None)


def test_fp32_states_that_fill_the_update_are_priced(tmp_path: Path) -> None:
    case = training(tmp_path)
    said = wide_optimizer_state.propose(case)
    assert isinstance(said, Proposal)
    assert said.memory is not None
    assert said.memory.before_bytes - said.memory.after_bytes == WEIGHTS
    finding = finding_of(case, said)
    assert finding.predicted_low == 1.0
    # 128 MiB that are no longer moved, at 0.85 of 3.35 TB/s.
    saved_ms = 2 * WEIGHTS / (0.85 * 3.35e12) * 1e3
    now_ms = case.step_interval_ns / 1e6
    assert finding.predicted_step_ms == pytest.approx(now_ms - saved_ms, rel=0.02)


def test_a_short_update_is_left_alone(tmp_path: Path) -> None:
    assert wide_optimizer_state.propose(training(tmp_path, update_us=2)) is None


def test_an_optimizer_whose_states_are_not_known_is_left_alone(tmp_path: Path) -> None:
    assert wide_optimizer_state.propose(training(tmp_path, optimizer="Mine")) is None


def test_without_the_allocators_events_it_abstains(tmp_path: Path) -> None:
    said = wide_optimizer_state.propose(training(tmp_path, memory=False))
    assert isinstance(said, Abstention)
    assert "profile_memory=True" in said.needs
