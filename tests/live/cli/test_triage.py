"""`triage` as a user calls it: on processes, on files, on neither."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stepscope.cli.main import main
from stepscope.errors import InputError
from stepscope.live.cli.triage import find_job
from stepscope.live.shapes.triage import (
    FAILED,
    GPU,
    HOST,
    HUNG,
    OVERSUBSCRIBED,
    THROTTLED,
    UNDERLOADED,
)
from stepscope.process.table import Process
from tests.nccl_logs import info
from tests.waiting import until_at_rest
from tests.wording import mentions

HEAD = "index, name, utilization.gpu [%], power.draw [W], power.limit [W], clocks.sm [MHz], "
HEAD += "clocks.max.sm [MHz], clocks_event_reasons.active\n"


@pytest.fixture
def job() -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits for a line."""
    code = "print(flush=True); input()"
    started = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert started.stdout is not None
    started.stdout.readline()
    until_at_rest(started.pid)
    yield started
    started.communicate(b"\n")


def told(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    assert main(["triage", *map(str, arguments), "--format", "json"]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def smi(folder: Path, *rows: str) -> Path:
    path = folder / "smi.csv"
    path.write_text(HEAD + "".join(f"0, NVIDIA H200, {row}\n" for row in rows))
    return path


def test_a_process_that_waits_is_hung_and_goes_on_unharmed(
    job: subprocess.Popen[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    answer = told(capsys, job.pid, "--seconds", "0.5")
    assert answer["state"] == HUNG
    (host,) = answer["hosts"]
    assert [one["pid"] for one in host["processes"]] == [job.pid]
    assert f"stepscope attach {job.pid}" in answer["first"]
    assert main(["triage", str(job.pid), "--seconds", "0.5"]) == 0
    assert capsys.readouterr().out.startswith("Hung: process")
    assert job.poll() is None


def test_what_was_not_measured_is_named(
    job: subprocess.Popen[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    answer = told(capsys, job.pid, "--seconds", "0.5")
    if not answer["devices"]:
        assert any(note.startswith("devices: ") for note in answer["not_measured"])


@pytest.mark.parametrize(
    ("row", "state"),
    [
        ("100 %, 650 W, 700 W, 1950 MHz, 1980 MHz, 0x0", GPU),
        ("100 %, 150 W, 700 W, 1980 MHz, 1980 MHz, 0x0", UNDERLOADED),
        ("100 %, 500 W, 700 W, 1200 MHz, 1980 MHz, 0x40", THROTTLED),
    ],
)
def test_files_are_judged_by_the_same_rules(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], row: str, state: str
) -> None:
    assert told(capsys, smi(tmp_path, *[row] * 8))["state"] == state


def test_a_saw_tooths_mean_is_told_beside_its_median(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    on, off = (f"{busy} %, 600 W, 700 W, 1950 MHz, 1980 MHz, 0x0" for busy in (100, 0))
    answer = told(capsys, smi(tmp_path, *[on, on, off] * 6, on))
    assert answer["state"] == "unclear", "two thirds of the time, and nothing is known of the host"
    (device,) = answer["devices"]
    assert device["busy_median_share"] == 1.0
    assert device["busy_share"] == pytest.approx(13 / 19)
    assert "in bursts" in answer["also"][0]


def test_a_log_of_nccl_names_ranks_on_one_device(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "nccl.log"
    line = info("Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 60")
    log.write_text(info("NCCL version 2.20.5+cuda12.4") + line.replace("INFO", "WARN"))
    assert told(capsys, log)["state"] == FAILED
    assert main(["diagnose", str(log)]) == 0
    assert "shared-device" in capsys.readouterr().out


def test_a_file_that_triage_does_not_judge_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.shared_data import DEMO

    assert main(["triage", str(DEMO)]) == 2
    assert mentions(capsys.readouterr().err, "stepscope diagnose")
    assert main(["triage", "999999999"]) == 2
    assert "no process 999999999" in capsys.readouterr().err


SPY = """#!/bin/sh
echo "$@" > {folder}/asked
while [ "$1" != --pid ]; do shift; done; pid=$2
while [ "$1" != --output ]; do shift; done
echo "thread ($pid): MainThread;<module> (train.py:9);fetch (torch/utils/data/fetch.py:5) 30" > $2
echo "thread ($pid): MainThread;<module> (train.py:9);step<b> (train.py:4) 10" >> $2
echo "thread (1): other;wait (threading.py:1) 40" >> $2
"""


def with_spy(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    spy = folder / "py-spy"
    spy.write_text(text)
    spy.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_py_spy_samples_the_main_thread_without_pausing_it(
    job: subprocess.Popen[bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with_spy(tmp_path, monkeypatch, SPY.format(folder=tmp_path))
    flame = tmp_path / "flame.svg"
    answer = told(capsys, job.pid, "--seconds", "0.5", "--flame", flame)
    assert "--nonblocking" in (tmp_path / "asked").read_text()
    first = {"name": "<module> (train.py:9)", "share": 0.75, "pid": job.pid}
    assert answer["functions"][0] == first
    drawn = flame.read_text()
    assert "fetch (torch/utils/data/fetch.py:5): 75.0%" in drawn
    assert "step&lt;b&gt; (train.py:4): 25.0%" in drawn
    assert "threading.py" not in drawn


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("#!/bin/sh\necho Permission denied >&2; exit 1\n", "SYS_PTRACE"),
        ("#!/bin/sh\necho What is it >&2; exit 3\n", "What is it"),
        ("#!/bin/sh\nexit 0\n", "could not look"),
    ],
)
def test_py_spy_that_is_refused_costs_its_functions_alone(
    job: subprocess.Popen[bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    text: str,
    words: str,
) -> None:
    with_spy(tmp_path, monkeypatch, text)
    answer = told(capsys, job.pid, "--seconds", "0.5", "--flame", tmp_path / "flame.svg")
    assert answer["state"] == HUNG
    assert any(words in note for note in answer["not_measured"])
    assert any(mentions(note, "no samples") for note in answer["not_measured"])
    assert not (tmp_path / "flame.svg").exists()


def process(pid: int, parent: int, **environ: str) -> Process:
    return Process(
        pid=pid, parent=parent, group=1, name="python3", state="S", cpu_s=0,
        started_ticks=pid, command=("python3", "train.py"), environment=environ,
    )  # fmt: skip


def test_without_a_target_the_machines_job_is_found() -> None:
    torchrun = process(1, 0)
    ranks = [process(10 + n, 1, RANK=str(n)) for n in range(2)]
    loader = process(20, 10, RANK="0")
    known = {one.pid: one for one in (torchrun, *ranks, loader)}
    assert [one.pid for one in find_job(known)] == [10, 11]
    with pytest.raises(InputError, match="no training job"):
        find_job({1: torchrun})
    other = {30: process(30, 0), 31: process(31, 30, RANK="0")}
    with pytest.raises(InputError, match=r"several jobs .* by 1 \(python3\), 30"):
        find_job(known | other)


def test_a_busy_process_is_the_host_or_has_no_core(capsys: pytest.CaptureFixture[str]) -> None:
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        answer = told(capsys, busy.pid, "--seconds", "2")
    finally:
        busy.kill()
        busy.wait()
    crowded = any(words in answer["summary"] for words in ("other processes use", "quota held"))
    assert answer["state"] == (OVERSUBSCRIBED if crowded else HOST)
