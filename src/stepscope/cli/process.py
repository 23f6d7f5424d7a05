"""A job that ends with us: it has a session of its own, and whatever happens nothing of it stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from stepscope.process.watchdog import Watchdog

if TYPE_CHECKING:
    from stepscope.readers.system.proc import Process

MARK = "STEPSCOPE_OWNED_JOB"
"""A variable in the environment of all of the job's processes: launchers put ranks into sessions of their own, which a signal to
our child's group does not reach."""
GRACE_S = 10.0
"""Between asking it to end and ending it."""
LOOK_S = 0.1


class OwnedJob:
    """The job's first process, and through the mark in its environment all others."""

    def __init__(self, command: Sequence[str], environment: dict[str, str], grace_s: float = GRACE_S) -> None:
        self._token = uuid.uuid4().hex
        self._grace_s = grace_s
        self._watchdog = Watchdog(self._token, is_job_ours=True)
        try:
            # Our stdout is for the answer alone.
            self.process = subprocess.Popen(
                list(command),
                env={**environment, MARK: self._token},
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr,
            )
        except OSError:
            self._watchdog.close()
            raise
        self._watchdog.watch(self.process)

    def exit_code(self) -> int | None:
        """As a shell tells it; None while it runs."""
        code = self.process.poll()
        return code if code is None or code >= 0 else 128 - code

    def end(self) -> None:
        """Asks every process of the job to end, and ends those that have not after a while."""
        first = self._members(self.process.pid)
        self._signal_group(signal.SIGTERM)
        if not self._wait(self._grace_s) and self._alive():
            self._signal_group(signal.SIGTERM)
            for process in self._alive():
                _send(process.pid, signal.SIGTERM)
            self._wait(self._grace_s / 2)
        self._signal_group(signal.SIGKILL)
        for process in {process.pid: process for process in (*first, *self._alive())}.values():
            if _is_same(process):
                _send(process.pid, signal.SIGKILL)
        self.process.wait()
        self._watchdog.close()

    def _wait(self, seconds: float) -> bool:
        """Whether nothing of it runs any more."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self.process.poll() is not None and not self._alive():
                return True
            time.sleep(LOOK_S)
        return False

    def _alive(self) -> list[Process]:
        return [process for process in self._members(None) if process.state != "Z"]

    def _members(self, pid: int | None) -> list[Process]:
        from stepscope.readers.system.proc import descendants, processes

        known = processes()
        marked = [process for process in known.values() if process.environment.get(MARK) == self._token]
        return marked if pid is None else [*marked, *descendants(pid, known)]

    def _signal_group(self, number: int) -> None:
        try:
            os.killpg(self.process.pid, number)
        except (ProcessLookupError, PermissionError):
            return


@contextmanager
def owned(start: Callable[[], OwnedJob]) -> Iterator[OwnedJob]:
    """The job while the block runs. Signals that would end us end the block, and the job with it."""
    before: dict[int, Any] = {}
    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            before[getattr(signal, name)] = signal.signal(getattr(signal, name), _leave)
    try:
        job = start()
        try:
            yield job
        finally:
            # A second Ctrl-C must not leave half of it behind.
            was = signal.signal(signal.SIGINT, signal.SIG_IGN)
            try:
                job.end()
            finally:
                signal.signal(signal.SIGINT, was)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave(number: int, _: object) -> None:
    # Once is enough: another one while the job is being ended would interrupt that.
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(128 + number)


def _is_same(process: Process) -> bool:
    """Whether the number is still that process's."""
    from stepscope.readers.system.proc import read_process

    now = read_process(process.pid)
    return now is not None and now.started_ticks == process.started_ticks and now.state != "Z"


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return
