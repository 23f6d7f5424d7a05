"""How a job scales, asked with nothing but its throughputs."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.cli.main import main
from tests.field.asking import ask
from tests.wording import mentions


def test_efficiency_from_samples_a_second(capsys: pytest.CaptureFixture[str]) -> None:
    answer = ask(capsys, "diagnose", "--scaling", "1=100", "8=600", "64=3200")
    assert mentions(answer, "32.00x", "50 %", "75 %", "from 8 to 64 ranks", "traces of two")


def test_efficiency_from_logs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs = [tmp_path / f"w{width}.log" for width in (1, 8)]
    for path, rate in zip(logs, (100, 600), strict=True):
        path.write_text(f"step 1 loss 2.3\nthroughput {rate} samples/s\n" * 4)
    answer = ask(capsys, "diagnose", "--scaling", *logs)
    assert mentions(answer, "6.00x", "75 %", "samples/s", "the file's name")


@pytest.mark.parametrize(("limit", "code"), [("0.7", 0), ("0.8", 1)])
def test_efficiency_is_a_gate(limit: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    runs = ["1=100", "8=600"]
    assert main(["diagnose", "--scaling", *runs, "--fail-if", f"efficiency < {limit}"]) == code
    assert mentions(capsys.readouterr().err, "passed" if code == 0 else "efficiency < 0.8")
