"""What a machine allows, told from files made for it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stepscope.cli.main import main
from stepscope.doctor import checks as this_machine
from stepscope.doctor.checks import MachineCheck, machine_checks
from tests.wording import mentions


def missing(_: str) -> object:
    raise OSError("not there")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with a GPU on which nothing is allowed."""
    files = {
        "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Kernel Module  570.86.15  Thu\n",
        "proc/driver/nvidia/params": "ResmanDebugLevel: 1\nRmProfilingAdminOnly: 1\n",
        "proc/sys/kernel/yama/ptrace_scope": "1\n",
        "proc/sys/kernel/perf_event_paranoid": "4\n",
        "proc/self/stat": "1\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(this_machine, "_is_root", lambda: False)
    return tmp_path


def checked(root: Path) -> dict[str, MachineCheck]:
    return {check.name: check for check in machine_checks(root / "runs", root, missing)}


def test_what_is_not_allowed_is_told_with_what_to_do(machine: Path) -> None:
    checks = checked(machine)
    assert checks["GPU"].words == "NVIDIA's driver 570.86.15"
    assert checks["NVML"].state == "no"
    assert "NVreg_RestrictProfilingToAdminUsers=0" in checks["CUPTI counters"].action
    assert "ptrace_scope=0" in checks["ptrace (attach)"].action
    assert "perf_event_paranoid=1" in checks["perf events"].action
    assert mentions(checks["/proc"].words, "/proc/self/schedstat, io", "cannot")
    assert checks["shared memory"].state == "no"


def test_root_and_open_settings_are_told_as_allowed(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (machine / "proc/driver/nvidia/params").write_text("RmProfilingAdminOnly: 0\n")
    (machine / "proc/sys/kernel/yama/ptrace_scope").write_text("0\n")
    (machine / "proc/sys/kernel/perf_event_paranoid").write_text("-1\n")
    checks = checked(machine)
    for name in ("CUPTI counters", "ptrace (attach)", "perf events"):
        assert (checks[name].state, checks[name].action) == ("yes", "")
    (machine / "proc/sys/kernel/yama/ptrace_scope").write_text("3\n")
    assert checked(machine)["ptrace (attach)"].state == "no"
    monkeypatch.setattr(this_machine, "_is_root", lambda: True)
    assert checked(machine)["ptrace (attach)"].state == "yes"


def test_a_machine_without_a_driver_is_no_fault(tmp_path: Path) -> None:
    checks = checked(tmp_path)
    assert checks["GPU"].state == "not here"
    assert "CUPTI counters" not in checks
    (tmp_path / "sys/module/amdgpu").mkdir(parents=True)
    assert checked(tmp_path)["GPU"].words == "AMD's driver is loaded"


def test_a_folder_that_cannot_be_written_is_needed(
    machine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usual = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK and usual(path, mode))
    assert checked(machine)["room for runs"].state == "no"
    assert main(["doctor", "--out", str(machine / "runs")]) == 1
    assert mentions(capsys.readouterr().out, "cannot be recorded", "room for runs")


def test_this_machine_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert mentions(out.splitlines()[0], "can be recorded")
    assert "compiled scanner" in out
