"""Marks of modules in a recording: nested as the modules are, and gone with it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.installed import need

need("torch")

import torch

from stepscope.capture.guard import Guard
from stepscope.capture.recording.modules import ModuleMarks


def recorded(tmp_path: Path, marks: ModuleMarks, model: Any) -> list[str]:
    """The names of the ranges around modules, in the order they began."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profile:
        assert marks.begin()
        with pytest.raises(RuntimeError):
            model(torch.zeros(2, 5))
        model(torch.zeros(2, 4))
        marks.end()
        model(torch.zeros(2, 4))
    profile.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    named = [event for event in events if event.get("name", "").startswith("nn.Module: ")]
    return [event["name"] for event in sorted(named, key=lambda event: event["ts"])]


def test_modules_are_marked_while_a_recording_is_and_also_when_one_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is not None:
        # Another test of this process may have compiled something.
        monkeypatch.setattr(dynamo, "counters", {})
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4))
    guard = Guard()
    marked = recorded(tmp_path, ModuleMarks(torch, guard), model)
    names = [name.removeprefix("nn.Module: ") for name in marked]
    assert names == ["Sequential_0", "Linear_0", "Sequential_0", "Linear_0", "ReLU_0", "Linear_1"]
    assert guard.is_on


def test_a_job_that_compiles_goes_without(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = SimpleNamespace(counters={"frames": {"total": 1}})
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", compiled)
    assert not ModuleMarks(torch, Guard()).begin()
