"""`verify --apply CODE` tries what the last run of the same command proposed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from stepscope.cli.verify.command import applied_words
from stepscope.cli.verify.options import read_applied
from stepscope.core.diagnosis import Finding
from stepscope.experiments.fix_values import fixes
from stepscope.protocol.run_folder import RUN_FILE, SCHEMA
from stepscope.report.diagnosis.json import to_json
from tests import scenarios
from tests.wording import any_mentions

COMMAND = ["python", "train.py"]


def recorded(folder: Path, workers: int, command: list[str]) -> None:
    """A run whose diagnosis proposes so many workers."""
    folder.mkdir(parents=True)
    (folder / RUN_FILE).write_text(json.dumps({"schema": SCHEMA, "command": command}))
    finding = Finding(
        code="serial-loader",
        bound="data",
        summary="The training process makes its own batches.",
        action=f"DataLoader(num_workers={workers}, persistent_workers=True)",
        evidence=(),
        ranks=(),
        predicted_speedup=2.0,
        predicted_low=1.5,
        predicted_high=2.5,
        predicted_step_ms=10.0,
    )
    healthy = scenarios.healthy()
    (folder / "diagnosis.json").write_text(to_json(replace(healthy, findings=(finding,))))


def test_the_runs_own_number_of_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    recorded(tmp_path / "stepscope-runs" / "a", 37, COMMAND)
    recorded(tmp_path / "stepscope-runs" / "b", 11, ["python", "other.py"])
    knobs, codes = read_applied(["serial-loader"], COMMAND)
    assert (knobs["num_workers"], codes) == (37, ("serial-loader",))
    assert any_mentions(applied_words(codes, COMMAND), "num_workers=37", "stepscope-runs/a")


def test_without_a_run_the_machine_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    knobs, codes = read_applied(["serial-loader"], COMMAND)
    assert knobs == fixes("serial-loader")
    assert any_mentions(applied_words(codes, COMMAND), "cores that this process may use")
