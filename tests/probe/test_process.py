"""Cases are timed by a process of another Python, which finds nothing of the working folder."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.installed import need

need("torch")

from stepscope.core.hardware import OperatorCall, ProbeCase
from stepscope.errors import UsageError
from stepscope.probe import process
from stepscope.probe.job.worker import cpu_name
from stepscope.probe.process import time_cases
from tests.capture.jobs import light_path

CALL = OperatorCall(
    op="aten::mm",
    dims=((8, 16), (16, 4)),
    types=("fp32", "fp32"),
    strides=((16, 1), (4, 1)),
    concrete=("", ""),
)
CASES = [ProbeCase(call=CALL, way="fp32"), ProbeCase(call=CALL, way="fp32+benchmark")]


@pytest.fixture
def light(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Enough of torch for a product."""
    monkeypatch.syspath_prepend(light_path(tmp_path))


@pytest.mark.usefixtures("light")
def test_cases_are_timed_where_the_working_folder_is_hostile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("json", "torch", "sitecustomize", "tempfile"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    monkeypatch.chdir(tmp_path)
    probed = time_cases(sys.executable, cpu_name(), CASES, 10.0)
    assert [row.way for row in probed.rows] == ["fp32", "fp32+benchmark"]
    assert all(row.time is not None and row.time.ns > 0 for row in probed.rows)
    assert (probed.left, probed.device) == (0, cpu_name())
    assert not (tmp_path / "ran").exists()


@pytest.mark.usefixtures("light")
def test_a_recording_of_another_device_is_not_timed() -> None:
    with pytest.raises(UsageError, match="NVIDIA H200"):
        time_cases(sys.executable, "NVIDIA H200", CASES[:1], 1.0)


def test_a_python_that_cannot_time_is_one_line(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'ModuleNotFoundError: No module named torch' >&2\nexit 1\n")
    python.chmod(0o755)
    with pytest.raises(UsageError, match="No module named torch"):
        time_cases(str(python), "NVIDIA H200", CASES, 1.0)
    with pytest.raises(UsageError, match="cannot be started"):
        time_cases(str(tmp_path / "none"), "NVIDIA H200", CASES, 1.0)


def test_what_takes_too_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "START_S", 0.1)
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 60\n")
    python.chmod(0o755)
    with pytest.raises(UsageError, match="nothing was timed"):
        time_cases(str(python), "NVIDIA H200", CASES, 0.1)
