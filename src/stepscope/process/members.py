"""A job's processes: how they are found, and how they are ended, whatever sessions they are in."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from stepscope.process.table import (
    HAS_TABLE,
    descendants,
    processes,
    read_environment,
    read_process,
)

GRACE_S = 5.0
"""Seconds between asking a process to end and ending it."""
LOOK_S = 0.05
CONTINUE = getattr(signal, "SIGCONT", None)
KILL = getattr(signal, "SIGKILL", signal.SIGTERM)


class FirstProcess(NamedTuple):
    """The one that was started; all others come of it."""

    pid: int
    started_ticks: int | None


def first_process(pid: int) -> FirstProcess:
    process = read_process(pid, with_words=False)
    return FirstProcess(pid, None if process is None else process.started_ticks)


def members(first: FirstProcess | None, mark: bytes) -> set[int]:
    """The job's processes: its first one, its group, whoever has the mark in its environment, and
    their descendants."""
    if not HAS_TABLE:
        # The first one is all that can be looked up.
        return set() if first is None or _session(first.pid) is None else {first.pid}
    running = {pid: each for pid, each in processes(with_words=False).items() if each.state != "Z"}
    pids = {pid for pid in running if mark and mark in read_environment(pid)}
    if first is not None:
        namesake = running.get(first.pid)
        if namesake is None or namesake.started_ticks == first.started_ticks:
            pids |= {pid for pid, each in running.items() if first.pid in (pid, each.group)}
    pids |= {each.pid for each in descendants(pids, running)}
    return pids - {os.getpid()}


def hang_up(first: FirstProcess | None, mark: bytes) -> None:
    """Hang up as the kernel does when a terminal closes. SIGHUP, because nohup makes a job ignore
    it; what has left the session, as by setsid, is not asked."""
    session, asked = os.getsid(0), set[int]()
    # A process may start another while we look.
    while pids := {pid for pid in members(first, mark) if _session(pid) == session} - asked:
        for pid in pids:
            _send(pid, signal.SIGHUP)
            # One that is stopped could not end.
            _send(pid, CONTINUE)
        asked |= pids


def end(
    first: FirstProcess | None,
    mark: bytes,
    *,
    grace_s: float | None = None,
    reap: Callable[[], object] = lambda: None,
) -> None:
    """Asks every process of the job to end, and ends those that have not after a while.

    `reap` is called between two looks: a child that has ended is there until it is waited for.
    """
    asked = set[int]()
    until = time.monotonic() + (GRACE_S if grace_s is None else grace_s)
    while (pids := members(first, mark)) and time.monotonic() < until:
        for pid in pids - asked:
            _send(pid, signal.SIGTERM)
            _send(pid, CONTINUE)
        asked |= pids
        time.sleep(LOOK_S)
        reap()
    # Again and again: what was started meanwhile is not known yet, and a killed process takes a
    # while.
    until = time.monotonic() + GRACE_S
    while (pids := members(first, mark)) and time.monotonic() < until:
        for pid in pids:
            _send(pid, KILL)
        time.sleep(LOOK_S)
        reap()


def _session(pid: int) -> int | None:
    with suppress(OSError, AttributeError):
        return os.getsid(pid)
    return None


def _send(pid: int, number: int | None) -> None:
    with suppress(OSError, AttributeError):
        if number is None:
            return
        if not HAS_TABLE and os.getpgid(pid) == pid:
            os.killpg(pid, number)
        else:
            os.kill(pid, number)
