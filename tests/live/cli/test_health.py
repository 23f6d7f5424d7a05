"""`health` on real jobs: the answer, the exit code, and that nothing of the job stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from stepscope.process.job import MARK, OwnedJob
from stepscope.process.table import processes
from tests.capture.jobs import LOOP, environment, script, stepscope, two_ranks
from tests.installed import need
from tests.waiting import LONGEST_S, until

need("torch")

STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if len(sys.argv) == 2:
    command = [sys.executable, __file__, sys.argv[1], "child"]
    child = subprocess.Popen(command, start_new_session=True)
else:
    open(sys.argv[1], "w").close()
time.sleep(600)
"""


def check(
    folder: Path,
    text: str,
    *options: str,
    launcher: Sequence[str] = (sys.executable,),
    before: str = LOOP,
) -> subprocess.CompletedProcess[str]:
    path = script(folder, text, before=before)
    words = ["health", *options, "--", *launcher, str(path)]
    done = subprocess.run(
        stepscope(*words),
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
        check=False,
        env=environment(),
    )
    assert not _left(str(path)), "nothing of the job runs on"
    return done


def _left(path: str) -> list[int]:
    """Processes whose command names this script as its own."""
    return [
        one.pid
        for one in processes().values()
        if path in one.command and one.state != "Z" and "stepscope" not in one.command
    ]


def test_an_endless_healthy_job_is_ended_and_called_so(tmp_path: Path) -> None:
    done = check(
        tmp_path, "print('from the job', flush=True)\ntrain(10**9)", "--out", str(tmp_path / "run")
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("Healthy.")
    assert "from the job" in done.stderr, "stdout is for the answer"
    assert list((tmp_path / "run" / "rank-0").glob("window-5.*"))


def test_a_rank_that_holds_the_others_up_is_named(tmp_path: Path) -> None:
    text = """
import torch.distributed as dist
dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
train(10**9, at_step=lambda step: time.sleep(0.3 * dist.get_rank()))
"""
    done = check(tmp_path, text, launcher=two_ranks(tmp_path))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "2 of 2 stepped" in done.stdout
    assert "late-rank (rank 1)" in done.stdout


@pytest.mark.parametrize(
    ("before", "text", "options", "code", "words"),
    [
        (LOOP, "train(3); sys.exit(7)", (), 1, "exit code 7"),
        (LOOP, "pass", (), 2, "optimizer step"),
        ("import sys, time\n", "sys.exit(7)", (), 1, "before any rank"),
        ("import sys, time\n", "time.sleep(600)", ("--timeout", "2"), 2, "in the time given"),
    ],
)
def test_jobs_that_are_not_well(
    tmp_path: Path, before: str, text: str, options: tuple[str, ...], code: int, words: str
) -> None:
    done = check(tmp_path, text, *options, before=before)
    assert done.returncode == code, done.stdout + done.stderr
    assert words in " ".join(done.stdout.split())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_takes_the_job_with_it(tmp_path: Path, number: signal.Signals) -> None:
    ready = tmp_path / "ready"
    sleeps = f"import time\nopen({str(ready)!r}, 'w').close()\ntime.sleep(600)"
    path = script(tmp_path, sleeps, before="")
    process = subprocess.Popen(
        stepscope("health", "--", sys.executable, str(path)), env=environment()
    )
    until(ready.exists)
    process.send_signal(number)
    assert process.wait(LONGEST_S) == 128 + number
    assert not _left(str(path))


def test_processes_that_ignore_being_asked_are_ended_in_whatever_session(tmp_path: Path) -> None:
    path, ready = tmp_path / "stubborn.py", tmp_path / "ready"
    path.write_text(STUBBORN)
    job = OwnedJob([sys.executable, str(path), str(ready)], dict(os.environ))
    until(ready.exists)
    assert len(_left(str(path))) == 2
    job.end(grace_s=0.4)
    until(lambda: not _left(str(path)))
    assert job.process.poll() == -signal.SIGKILL
    # Other tests may have jobs of their own at the same time.
    assert not [one for one in processes().values() if job.mark in one.environment.get(MARK, "")]


def test_what_cannot_be_started_is_said(tmp_path: Path) -> None:
    for words, said in (
        (["--", "no-such-command"], "not a command"),
        (["--"], "no command"),
    ):
        done = subprocess.run(
            stepscope("health", *words), capture_output=True, text=True, check=False
        )
        assert done.returncode == 2
        assert said in done.stderr
