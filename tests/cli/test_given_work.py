"""How much of the peak a job achieved, by its log alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stepscope.cli.main import main
from stepscope.plan.catalog import find_model
from stepscope.plan.model import model_flops_per_token
from tests.recordings.frameworks.test_log import titan
from tests.shared_data import DEMO
from tests.wording import mentions

MODEL = ("--model", "llama3-8b", "--seq", "8192", "--global-batch", "64")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "train.log"
    lines = [titan(step, 30 + 2.5 * step) for step in range(10, 110, 10)]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def waterfall(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["diagnose", *arguments, "--format", "json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)["peak_waterfall"]
    parts = {part["what"]: part["ns"] for part in found["parts"]}
    assert set(parts) == {"unexplained", "achieved"}
    assert sum(parts.values()) == found["total_ns"]
    assert found["source"] == "log"
    return found


def test_a_logs_own_mfu_is_what_was_achieved(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = waterfall(capsys, str(log))
    assert found["achieved"] == pytest.approx(0.253)
    assert found["total_ns"] == 2_500_000_000
    assert found["peak_flops"] is None


def test_a_logs_rate_is_of_the_devices_peak(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = waterfall(capsys, str(log), "--devices", "8xB200")
    assert found["achieved"] == pytest.approx(1250.31e12 / found["peak_flops"])


def test_model_and_step_time_are_enough(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = waterfall(capsys, str(log), "--devices", "1x8xH100", *MODEL, "--step-ms", "8000")
    flops = model_flops_per_token(find_model("llama3-8b"), 8192, halves_causal=True) * 8192 * 8
    assert found["achieved"] == pytest.approx(flops / 8.0 / found["peak_flops"])
    assert 0.2 < found["achieved"] < 0.6
    assert found["precision"] == "bf16"
    given = ["--devices", "1x8xH100", *MODEL, "--step-ms", "8000"]
    assert main(["diagnose", str(log), *given]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert mentions(words, f"{found['achieved']:.0%} of the dense bf16", "NVIDIA H100 SXM")


def test_more_than_the_peak_is_no_answer(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["diagnose", str(log), "--devices", "H100", *MODEL, "--format", "json"]
    assert main(arguments) == 0
    assert "peak_waterfall" not in json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--model", "llama3-8b"), "--devices and --seq and --global-batch must"),
        (("--devices", "H100", "--seq", "8"), "--model and --global-batch must"),
    ],
)
def test_half_of_it_is_refused(
    log: Path, arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", str(log), *arguments]) == 2
    assert words in " ".join(capsys.readouterr().err.split())


def test_a_trace_tells_it_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(DEMO), "--devices", "H200"]) != 0
    assert mentions(capsys.readouterr().err, "--devices", "log alone")
