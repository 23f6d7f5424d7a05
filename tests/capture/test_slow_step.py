"""What is told of a slow step, of loaders begun, and of when the process began."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from stepscope.capture.describe.rank import started_ns
from stepscope.capture.epochs import Epochs
from stepscope.capture.slow_step import MAX_OF_STEP, SlowStep
from stepscope.protocol.run_folder import STEP_COLUMNS
from stepscope.protocol.slow_steps import slow_ns

MS = 1_000_000


@pytest.fixture
def slow() -> SlowStep:
    made = SlowStep()
    for _ in range(10):
        made.add(20 * MS)
    return made


def seen_from_another_thread(slow: SlowStep, since_ns: int) -> str | None:
    lines: list[str | None] = []
    thread = threading.Thread(target=lambda: lines.append(slow.line(11, since_ns)))
    thread.start()
    thread.join()
    return lines[0]


def test_the_line_of_the_training_thread_is_seen_in_a_slow_step(slow: SlowStep) -> None:
    line = seen_from_another_thread(slow, time.perf_counter_ns() - 1000 * MS)
    assert line is not None
    assert "seen_from_another_thread" in line


def test_a_usual_step_is_not_looked_at(slow: SlowStep) -> None:
    later = time.perf_counter_ns() + 3600 * 1000 * MS
    assert seen_from_another_thread(slow, later) is None, "however long the thread takes to begin"
    assert seen_from_another_thread(SlowStep(), 0) is None, "nothing is known of usual ones"


def test_a_step_of_hours_is_looked_at_a_few_times(slow: SlowStep) -> None:
    lines = [seen_from_another_thread(slow, 0) for _ in range(MAX_OF_STEP + 2)]
    assert [line is not None for line in lines] == [True] * MAX_OF_STEP + [False] * 2


def test_loaders_begun_before_the_first_step_are_added_up() -> None:
    epochs, told = Epochs(), list[dict[str, Any]]()
    check, train = object(), object()
    epochs.begin(check, 10, 15, 0)
    epochs.took_first(7)
    epochs.begin(train, 20, 30, 0)
    epochs.took_first(3)
    first = epochs.first_step([0] * len(STEP_COLUMNS))
    assert (first["begun_ns"], first["iter_ns"], first["loader"]) == (10, 15, 1)
    epochs.tell = lambda kind, **fields: told.append({"kind": kind, **fields})
    epochs.begin(train, 100, 104, 50)
    epochs.took_first(6)
    event = {"at_ns": 104, "dur_ns": 4, "step": 50, "loader": 1, "wait_ns": 6}
    assert told == [{"kind": "epoch", **event}]


def test_the_process_began_before_now(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    ticks = os.sysconf("SC_CLK_TCK")
    fields = " ".join(["S", *["0"] * 18, str(30 * ticks), "0"])
    (tmp_path / "proc/self/stat").write_text(f"7 (a (b) c) {fields}")
    (tmp_path / "proc/uptime").write_text("100.00 50.00\n")
    before = time.perf_counter_ns()
    began = started_ns(tmp_path)
    assert before <= began + 70 * 1000 * MS <= time.perf_counter_ns()


def test_slow_steps_of_a_stretch_are_those_that_few_are() -> None:
    assert slow_ns([10] * 9 + [100]) == 90
    assert slow_ns([10] * 3 + [100]) == 0, "every fourth is how the job steps"
