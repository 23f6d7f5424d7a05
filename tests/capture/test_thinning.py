"""What a run leaves on the disk has an end, however long it lasts."""

from __future__ import annotations

import json
from collections import deque
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stepscope.capture import writer
from stepscope.capture.guard import Guard
from stepscope.capture.thinning import Thinning
from stepscope.capture.writer import Writer
from stepscope.process.control import progress
from stepscope.protocol.options import Options
from stepscope.protocol.run_folder import (
    LIVE_FILE,
    SAMPLES_FILE,
    STEP_COLUMNS,
    STEP_SUMMARY_COLUMNS,
    STEP_SUMMARY_FILE,
    STEPS_FILE,
)

S = 1_000_000_000
STEPS_PER_S = 4


def test_each_doubling_of_the_time_leaves_as_many_lines() -> None:
    thinning = Thinning(100)
    kept = [number for number in range((100 << 12) - 100) if thinning.keeps()]
    assert kept[:100] == list(range(100)), "all of the first"
    assert len(kept) == 12 * 100
    gaps = [later - sooner for sooner, later in pairwise(kept)]
    assert gaps == sorted(gaps), "ever more rarely"
    assert kept[-1] >= (100 << 12) - 2 * gaps[-1], "to the end"


class Job:
    """A rank whose seconds are simulated: each has a few steps and a sample."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0
        self.step = 0
        self.folder = folder / "rank-0"
        self.folder.mkdir()
        self.rows: list[list[Any]] = []
        session: Any = SimpleNamespace(
            run=folder, options=Options(), guard=Guard(), rows=deque(), window=None,
            losses=SimpleNamespace(taken=list), marks=SimpleNamespace(adapt=lambda _: None),
            ready_rows=self.ready_rows, notice_device=lambda: None, loader=None, step=0,
        )  # fmt: skip
        self.session = session
        monkeypatch.setattr("stepscope.capture.clocks.perf_counter_ns", lambda: self.now)
        monkeypatch.setattr(writer, "MAX_ROWS", 100)
        monkeypatch.setattr(writer, "STRETCHES_A_DOUBLING", 16)
        monkeypatch.setattr(writer, "SAMPLES_A_DOUBLING", 64)
        self.writer = Writer(session, self.folder)
        sampler: Any = SimpleNamespace(take=lambda: {"rss_bytes": 1})
        self.writer._sampler = sampler

    def ready_rows(self, *, every: bool = False) -> list[list[Any]]:
        rows, self.rows = self.rows, []
        return rows

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            for _ in range(STEPS_PER_S):
                self.now += S // STEPS_PER_S
                self.step += 1
                row: list[Any] = [0] * len(STEP_COLUMNS)
                row[:3] = self.step, self.now, S // STEPS_PER_S
                self.rows.append(row)
            self.session.step = self.step
            self.writer._turn()

    def num_lines(self, name: str) -> int:
        return (self.folder / name).read_bytes().count(b"\n")


def test_a_run_of_any_length_leaves_few_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(tmp_path, monkeypatch)
    lines, sizes = [], []
    for seconds in (1000, 1000, 2000, 4000):
        job.run(seconds)
        lines.append(sum(job.num_lines(name) for name in (SAMPLES_FILE, STEP_SUMMARY_FILE)))
        sizes.append(job.num_lines(STEPS_FILE))
    grown = [later - sooner for sooner, later in pairwise(lines)]
    assert max(grown) <= 64 + 16 + 1, "as many again for twice the time"
    assert set(sizes) == {100}
    assert (job.folder / LIVE_FILE).stat().st_size < 1 << 19
    (where,) = progress(tmp_path)
    assert where.step == job.step, "where it stands is known to the second"
    assert where.steps_per_s == pytest.approx(STEPS_PER_S)


def test_stretches_leave_no_step_out_and_keep_how_slow_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(tmp_path, monkeypatch)
    for _ in range(20):
        job.run(99)
        job.rows.append([job.step + 1, job.now + S, S] + [0] * (len(STEP_COLUMNS) - 3))
        job.now, job.step = job.now + S, job.step + 1
    job.writer.last_lines()
    lines = (job.folder / STEP_SUMMARY_FILE).read_text().splitlines()
    told = [dict(zip(STEP_SUMMARY_COLUMNS, json.loads(line), strict=True)) for line in lines]
    assert sum(each["num_steps"] for each in told) == job.step - 100
    first = 101
    for each in told:
        assert each["first_step"] == first
        first += each["num_steps"]
    assert told[-2]["num_steps"] > 5 * told[0]["num_steps"]
    slow = STEP_SUMMARY_COLUMNS[-1]
    assert sum(each[slow] for each in told) == 20 * (S - S // STEPS_PER_S)
