"""Real processes of this machine, watched for two seconds and judged. What others do on it is left
out: a test must not depend on it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from stepscope.core.recordings.system import COMPILER, HELPER, PROCESS, WORKER, HostUse
from stepscope.live.judge.judge import judge
from stepscope.live.processes import Watch, role_of
from stepscope.live.shapes.triage import HOST, HUNG, INPUT_CPU, INPUT_IO, OVERSUBSCRIBED
from stepscope.process.table import Process, read_process
from tests.installed import absent
from tests.triage_cases import seen
from tests.waiting import until, until_at_rest

READY = "import os, sys\ndef ready(): open(sys.argv[1], 'w').close()\n"
BUSY = "ready()\nwhile True: pass\n"
HANG = "import time\nready()\ntime.sleep(600)\n"
READER = """
import mmap, random
path = sys.argv[1] + ".data"
with open(path, "wb") as file:
    file.write(os.urandom(1 << 20) * 32)
    os.fsync(file.fileno())
file, pages = os.open(path, os.O_RDONLY | os.O_DIRECT), mmap.mmap(-1, 1 << 20)
os.preadv(file, [pages], 0)
ready()
while True: os.preadv(file, [pages], random.randrange(32) << 20)
"""
LOADER = """
import multiprocessing
def work():
    while True: pass
context = multiprocessing.get_context("fork")
for _ in range(2): context.Process(target=work, daemon=True).start()
ready()
context.Queue().get()
"""
THREADS = """
import hashlib, threading
def work():
    while True: hashlib.pbkdf2_hmac("sha256", b"x", b"y", 50_000)
for _ in range(5 * os.cpu_count()): threading.Thread(target=work, daemon=True).start()
ready()
threading.Event().wait()
"""


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Callable[..., HostUse]]:
    jobs: list[subprocess.Popen[bytes]] = []

    def watch(code: str, *, rests: bool = False) -> HostUse:
        script, ready = tmp_path / "train.py", tmp_path / "ready"
        script.write_text(READY + code)
        job = subprocess.Popen(
            [sys.executable, str(script), str(ready)],
            env={**os.environ, "RANK": "3"},
            start_new_session=True,
        )
        jobs.append(job)
        until(lambda: ready.exists() or job.poll() is not None)
        process = read_process(job.pid)
        if process is None or job.poll() is not None:
            absent("needs a file system with direct reads: TMPDIR names a folder on a disk")
        if rests:
            until_at_rest(job.pid)
        host = Watch([process]).for_seconds(2.0)
        return replace(host, other_cores=None, held_back_share=None)

    yield watch
    for job in jobs:
        # Its workers are in its group, and outlive it else.
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()


def test_a_loop_that_computes_is_the_host(watched: Callable[..., HostUse]) -> None:
    host = watched(BUSY)
    (one,) = host.processes
    assert (one.role, one.rank, one.name, one.num_threads) == ("rank", 3, "train.py", 1)
    assert one.wanted_cores is not None
    assert 0.8 < one.wanted_cores < 1.2
    assert one.uses_device is False
    assert judge(seen(host)).state == HOST


def test_a_process_that_sleeps_is_hung(watched: Callable[..., HostUse]) -> None:
    host = watched(HANG, rests=True)
    assert host.processes[0].wanted_cores is not None
    assert host.processes[0].wanted_cores < 0.02
    assert judge(seen(host)).state == HUNG


def test_a_process_that_waits_for_its_disk_is_bound_by_input(
    watched: Callable[..., HostUse],
) -> None:
    host = watched(READER)
    (one,) = host.processes
    assert one.disk_read_bytes_s is not None
    assert one.disk_read_bytes_s > 1e6
    # A machine whose disk is as fast as its memory leaves nothing to wait for.
    expected = INPUT_IO if (one.wanted_cores or 0.0) < 0.7 else HOST
    assert judge(seen(host)).state == expected


def test_workers_that_never_rest_are_input_by_cpu(watched: Callable[..., HostUse]) -> None:
    host = watched(LOADER)
    workers = host.of_role(WORKER)
    assert len(workers) == 2
    assert all(0.8 < (one.wanted_cores or 0.0) < 1.2 for one in workers)
    assert judge(seen(host)).state == INPUT_CPU


def test_more_threads_than_cores_are_too_many(watched: Callable[..., HostUse]) -> None:
    host = watched(THREADS)
    (one,) = host.processes
    assert one.num_threads == 5 * (os.cpu_count() or 1) + 1
    assert judge(seen(host)).state == OVERSUBSCRIBED


def test_a_process_that_ends_meanwhile_is_said(tmp_path: Path) -> None:
    job = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process = read_process(job.pid)
    assert process is not None
    watch = Watch([process])
    job.communicate(b"\n")
    host = watch.for_seconds(0.5)
    assert host.processes == ()
    assert any("they ended" in note for note in host.not_measured)


def test_rates_are_by_the_clock_as_it_stood_when_the_counters_were_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process that never rests, looked at by one that has no core for a second."""
    now = [100.0]

    def read_late(pid: int, **more: bool) -> Process | None:
        now[0] += 1.0
        return read_process(pid, **more)

    monkeypatch.setattr("stepscope.live.processes.read_process", read_late)
    monkeypatch.setattr("stepscope.live.processes._cpu_s", lambda _: (now[0], 0.0))
    me = read_process(os.getpid())
    assert me is not None
    watch = Watch([me], clock=lambda: now[0])
    now[0] += 10.0
    watch.count()
    (mine,) = [one for one in watch.result().processes if one.pid == me.pid]
    assert mine.cores == pytest.approx(1.0)


def process(name: str, *command: str, **more: Any) -> Process:
    told: dict[str, Any] = {
        "pid": 9, "parent": 1, "group": 1, "state": "S", "cpu_s": 0.0,
        "started_ticks": 1, "environment": {},
    }  # fmt: skip
    return Process(name=name, command=command, **(told | more))


def test_roles_follow_from_how_a_process_was_started() -> None:
    train = process("python", "python", "train.py")
    spawned = process("python", "python", "-c", "from multiprocessing.spawn import spawn_main")
    tracker = process("python", "python", "-c", "from multiprocessing.resource_tracker import main")
    assert role_of(train, train) == WORKER, "a fork"
    assert role_of(spawned, train) == WORKER
    assert role_of(process("pt_data_worker", "python", "x"), train) == WORKER
    assert role_of(tracker, train) == HELPER
    assert role_of(process("ptxas", "ptxas", "-O3"), train) == COMPILER
    assert role_of(process("ffmpeg", "ffmpeg"), train) == HELPER
    assert role_of(process("python", "python", "other.py"), train) == PROCESS
