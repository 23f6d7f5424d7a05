"""What was timed takes the model's place in the gains, and is kept."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from stepscope.calibrate.measure import empty
from stepscope.core.calibrated import Machine
from stepscope.core.hardware import (
    SCHEMA,
    MeasuredTime,
    OperatorCall,
    ProbeCase,
    ProbeFile,
    ProbeRow,
)
from stepscope.errors import UsageError
from stepscope.pipeline.options import Options
from stepscope.probe import probing
from stepscope.probe.probing import Judged, judge
from stepscope.probe.process import Probed, python_of
from stepscope.probe.report import probe_document
from stepscope.probe.script import script_of
from stepscope.probe.store import keep
from stepscope.readers import probe_file
from stepscope.readers.cache import FOLDER_VARIABLE
from stepscope.readers.hardware_file import parse_hardware
from stepscope.readers.probe_file import ProbedDevices
from stepscope.report.document.terminal import to_text
from stepscope.rules.shared import measured
from tests.shared_data import lab_trace

TRACE = lab_trace("single/fp32_no_tf32.slow")
READING = Options(use_cache=False)
NOW_NS = 1e5


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv(FOLDER_VARIABLE, str(folder))
    return folder


def taking(ns: float) -> MeasuredTime:
    return MeasuredTime(ns=ns, low_ns=ns, high_ns=ns, samples=5)


def timed(judged: Judged, changed: float) -> Probed:
    """Every case; what is not as it ran takes so much of the time."""
    rows = [
        ProbeRow(
            call=case.call,
            way=case.way,
            time=taking(NOW_NS if case.way in ("fp32", "asis") else changed * NOW_NS),
        )
        for case in judged.cases
    ]
    return Probed(
        torch="2.13.0", device=judged.device, driver="13.0", rows=tuple(rows), left=0, wall_s=1.0
    )


def gain(judged: Judged, code: str) -> float:
    return {f.code: f.predicted_speedup for f in judged.diagnosis.findings}.get(code, 1.0)


def test_a_measured_time_takes_the_models_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "is_reproduced", lambda *_: True)
    modelled = judge([TRACE], READING)
    assert modelled.cases
    assert modelled.num_known == 0
    keep(timed(modelled, changed=0.01))
    quick = judge([TRACE], READING)
    keep(timed(modelled, changed=0.8))
    slow = judge([TRACE], READING)
    assert quick.cases == (), "nothing is timed twice"
    assert quick.num_known == len(modelled.cases)
    (finding,) = (found for found in quick.diagnosis.findings if found.code == "tf32-off")
    assert any("timed on this device" in line for line in finding.evidence)
    assert gain(quick, "tf32-off") > gain(modelled, "tf32-off") > gain(slow, "tf32-off") > 1.05


def test_what_another_kernel_took_says_nothing_of_this_run() -> None:
    recorded = np.array([1e5, 1.1e5])
    assert measured.is_reproduced(taking(1.2e5), recorded)
    assert not measured.is_reproduced(taking(2e5), recorded)
    assert not measured.is_reproduced(taking(5e4), recorded)
    assert not measured.is_reproduced(taking(5e4), np.zeros(2)), "a kernel that took no time"


def test_what_was_timed_is_kept_by_device_and_torch(own_cache: Path) -> None:
    call = OperatorCall(op="aten::mm", dims=((2, 3), (3, 4)), types=(), strides=(), concrete=())
    row = ProbeRow(call=call, way="bf16", time=taking(5.0))
    probed = Probed(torch="2.1", device="NVIDIA X", driver="1", rows=(row,), left=0, wall_s=1.0)
    keep(probed)
    keep(msgspec.structs.replace(probed, rows=(msgspec.structs.replace(row, way="tf32"),)))
    (file,) = own_cache.glob("probe-nvidia-x-*.json")
    assert msgspec.json.decode(file.read_bytes())["schema"] == SCHEMA
    times = ProbedDevices().of("NVIDIA X").times
    assert {case.way for case in times} == {"bf16", "tf32"}
    assert ProbedDevices().of("NVIDIA X2").times == {}
    before = probe_file.kept_files()
    file.chmod(0o666)
    assert ProbedDevices().of("NVIDIA X").times == {}, "others may have written it"
    assert [name for name, _ in before] == [file.name]


def test_a_hardware_file_brings_what_was_timed_elsewhere() -> None:
    call = OperatorCall(op="aten::mm", dims=((2, 3), (3, 4)), types=(), strides=(), concrete=())
    rows = [ProbeRow(call=call, way=way, time=taking(5.0)) for way in ("bf16", "tf32")]
    shared = ProbeFile(device="NVIDIA X", torch="2.1", rows=tuple(rows))
    machine = empty(Machine(kind="cuda", device="NVIDIA X"), "stepscope", "timed")
    text = msgspec.json.encode(msgspec.structs.replace(machine, operators=(shared,)))
    hardware = parse_hardware(text, "hw.json")
    devices = ProbedDevices(hardware.operators)
    assert {case.way for case in devices.of("NVIDIA X").times} == {"bf16", "tf32"}
    assert devices.of("NVIDIA Y").times == {}
    own = msgspec.structs.replace(rows[0], time=taking(7.0))
    keep(Probed(torch="2.1", device="NVIDIA X", driver="1", rows=(own,), left=0, wall_s=1.0))
    times = ProbedDevices(hardware.operators).of("NVIDIA X").times
    assert {case.way: time.ns for case, time in times.items()} == {"bf16": 7.0, "tf32": 5.0}


@pytest.mark.parametrize("text", ["", "{", '{"schema": "stepscope.probe/1"}', "[1]", "null"])
def test_a_damaged_file_is_as_good_as_none(own_cache: Path, text: str) -> None:
    own_cache.mkdir()
    (own_cache / "probe-nvidia-x-1.json").write_text(text)
    assert ProbedDevices().of("NVIDIA X").times == {}


def test_the_answer_has_operators_and_gains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "is_reproduced", lambda *_: True)
    judged = judge([TRACE], READING)
    probed = timed(judged, changed=0.5)
    keep(probed)
    text = to_text(probe_document(judged, probed, judge([TRACE], READING).diagnosis))
    assert "NVIDIA H200" in text
    assert f"{len(judged.cases)} cases" in text
    assert "tf32-off" in text
    assert "(2.00x)" in text
    assert all(len(line) <= 80 for line in text.splitlines())


def test_a_script_times_an_operator_by_itself() -> None:
    judged = judge([TRACE], READING)
    text = script_of("aten::addmm", judged)
    compile(text, "script", "exec")
    assert "torch.ops.aten.addmm(" in text
    assert "tf32" in text
    with pytest.raises(UsageError, match="addmm"):
        script_of("conv_nothing", judged)


def test_a_name_that_is_no_operators_is_in_no_script() -> None:
    judged = judge([TRACE], READING)
    op = "aten::mm(0); import os #"
    bad = ProbeCase(call=msgspec.structs.replace(judged.asked[0].call, op=op), way="fp32")
    with pytest.raises(UsageError):
        script_of(op, msgspec.structs.replace(judged, asked=(bad,)))


def test_the_python_of_a_command_is_the_one_that_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("python", "python3.11", "torchrun"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert python_of(["python3.11", "train.py"]) == str(tmp_path / "python3.11")
    assert python_of(["torchrun", "train.py"]) == str(tmp_path / "python")
    assert Path(python_of(["nothing-there"])).is_file()
    assert Path(python_of([])).is_file()


def test_the_device_that_most_is_asked_of_is_probed() -> None:
    case = judge([TRACE], READING).cases[0]
    from stepscope.core.hardware import ProbedTimes

    little, much = ProbedTimes(asked={case: 1.0}), ProbedTimes(asked={case: 2.0})
    assert probing.asked_of({"a": little, "b": much})[:2] == ("b", (case,))
