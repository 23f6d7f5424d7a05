"""The plan's memory beside a recording's."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.core.recordings.memory import MemoryRecord
from stepscope.plan.cli.recorded_memory import compare_with_plan
from stepscope.recordings.memory.snapshot import read
from tests.memory_snapshots import MB, pickled, source_of, training
from tests.recording_texts import memory_report


def test_each_part_stands_beside_the_most_that_was_measured(tmp_path: Path) -> None:
    report = read([source_of(tmp_path / "s.pickle", pickled(training(3).snapshot()))])
    rows = {
        row.part: row for row in compare_with_plan(report, 100 * MB, 100 * MB, 200 * MB, 360 * MB)
    }
    assert list(rows) == ["weights", "gradients", "optimizer", "activations", "others", "total"]
    assert [rows[part].ratio for part in ("weights", "gradients", "optimizer")] == [1.0, 1.0, 1.0]
    assert rows["activations"].ratio == pytest.approx(360 / 300)
    assert rows["activations"].at_peak_bytes == 304 * MB  # With the batch.
    assert rows["others"].at_peak_bytes == 60 * MB
    assert (rows["total"].planned_bytes, rows["total"].at_peak_bytes) == (760 * MB, 764 * MB)


def test_what_is_not_known_has_no_ratio() -> None:
    held = {"unknown": 50, "weights": 50}
    record = MemoryRecord(format="memory-snapshot", label="s", peak_bytes=100, held=held, most=held)
    rows = compare_with_plan(memory_report(record), 50, None, 10, 0)
    assert [row.ratio for row in rows] == [None] * 6
    assert rows[1].planned_bytes is None
    assert rows[-1].planned_bytes is None
    counters = MemoryRecord(format="memory-stats", label="s", peak_bytes=100)
    assert compare_with_plan(memory_report(counters), 1, 1, 1, 1) == ()
