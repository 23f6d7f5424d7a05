"""The process beside a job that notices when stepscope is gone. Run as a script.

Requests come on stdin, one a line. The end of stdin without `done` means that stepscope was killed.

    job PID     the job's first process
    asked N     which signals has this process got since it was last asked? "N 2 15" on stdout
    done        the job is over

Every signal is blocked from the start: one that is sent to the whole process group waits here until
somebody asks.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from typing import NamedTuple

HANG_UP, END = "hang-up", "end"
"""What becomes of the job when stepscope is gone: what a closed terminal does to it, or its end,
with all that it started."""
GRACE_S = 5.0
"""Between asking a process to end and ending it."""
LOOK_S = 0.05


class Process(NamedTuple):
    """Of /proc/PID/stat."""

    parent: int
    group: int
    session: int
    started: int
    """In ticks after boot: with the number it names a process for good."""


class WatchedJob(NamedTuple):
    """The job's first process."""

    pid: int
    started: int | None


def main() -> None:
    fate, mark = sys.argv[1], os.fsencode(sys.argv[2])
    job = None
    for line in sys.stdin.buffer:
        word, *rest = line.split()
        if word == b"job":
            process = processes().get(int(rest[0]))
            job = WatchedJob(int(rest[0]), None if process is None else process.started)
        elif word == b"asked":
            os.write(1, b" ".join([*rest, *(b"%d" % number for number in take_pending())]) + b"\n")
        elif word == b"done":
            return
    (hang_up if fate == HANG_UP else end)(job, mark)


def take_pending() -> list[int]:
    """The signals that wait, which thereby wait no longer."""
    numbers = sorted(signal.sigpending())
    for number in numbers:
        signal.sigwait({number})
    return numbers


def hang_up(job: WatchedJob | None, mark: bytes) -> None:
    """As the kernel does when a terminal closes. SIGHUP, because nohup makes a job ignore it; what
    has left the session, as by setsid, is not asked."""
    session, signaled = os.getsid(0), set[int]()
    # A process may start another while we look.
    while pids := {pid for pid in members(job, mark) if _session(pid) == session} - signaled:
        for pid in pids:
            _send(pid, signal.SIGHUP)
            # One that is stopped could not end.
            _send(pid, signal.SIGCONT)
        signaled |= pids


def end(job: WatchedJob | None, mark: bytes) -> None:
    """Asks every process of the job to end, and ends those that have not after a while."""
    signaled = set[int]()
    until = time.monotonic() + GRACE_S
    while (pids := members(job, mark)) and time.monotonic() < until:
        for pid in pids - signaled:
            _send(pid, signal.SIGTERM)
            _send(pid, signal.SIGCONT)
        signaled |= pids
        time.sleep(LOOK_S)
    until = time.monotonic() + GRACE_S
    while (pids := members(job, mark)) and time.monotonic() < until:
        for pid in pids:
            _send(pid, signal.SIGKILL)
        time.sleep(LOOK_S)


def members(job: WatchedJob | None, mark: bytes) -> set[int]:
    """The job's processes: its first one, its group, whoever has the mark in its environment, and
    their descendants."""
    running = processes()
    if not running and job is not None:
        # Not Linux: the first one is all that can be looked up.
        return {job.pid} if _session(job.pid) is not None else set()
    pids = {pid for pid in running if mark and mark in _environment(pid)}
    if job is not None:
        pids |= {pid for pid, process in running.items() if process.group == job.pid}
        if job.pid in running and running[job.pid].started == job.started:
            pids.add(job.pid)
    while children := {pid for pid, process in running.items() if process.parent in pids} - pids:
        pids |= children
    return pids - {os.getpid()}


def processes() -> dict[int, Process]:
    """Those that run, by number; empty where the system does not say."""
    running = {}
    with suppress(OSError):
        for name in os.listdir("/proc") if sys.platform == "linux" else ():
            path = f"/proc/{name}/stat"
            with suppress(OSError, ValueError, IndexError), open(path, "rb") as file:
                # The name, in brackets, may hold anything.
                state, *fields = file.read().rpartition(b")")[2].split()
                if state != b"Z":
                    parent, group, session = (int(field) for field in fields[:3])
                    running[int(name)] = Process(parent, group, session, int(fields[18]))
    return running


def _environment(pid: int) -> bytes:
    with suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
        return file.read()
    return b""


def _session(pid: int) -> int | None:
    with suppress(OSError):
        return os.getsid(pid)
    return None


def _send(pid: int, number: int) -> None:
    with suppress(OSError):
        os.kill(pid, number)


if __name__ == "__main__":
    main()
