"""The one runner of jobs: in the foreground as the user's own, or as ours, which ends with us."""

from __future__ import annotations

import subprocess
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import IO

from stepscope.process.members import end, first_process
from stepscope.process.signals import Relay, signals_deferred, signals_raise
from stepscope.process.watchdog import Watchdog

MARK = "STEPSCOPE_JOB"
"""A variable in the environment of all of a job's processes: launchers put ranks into sessions of
their own, and a process whose parent has gone has another one. A job inside a job has both
marks."""
LOOK_S = 0.1
"""Seconds between two looks at a job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a job of ours ended."""

    exit_code: int
    wall_s: float
    is_timed_out: bool = False
    is_stopped: bool = False
    """Whether it was ended because nobody wanted to see more of it."""

    @property
    def is_by_itself(self) -> bool:
        return not self.is_timed_out and not self.is_stopped


def run_in_foreground(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    meanwhile: Callable[[], object] | None = None,
    look_s: float = LOOK_S,
    on_usr2: Callable[[], object] | None = None,
) -> int:
    """Runs the command to its end and returns its exit code, 128 + N where signal N ended it.

    The job is in our process group, so that a terminal is its terminal; signals that we alone get
    are passed on. SIGUSR2 calls `on_usr2`; `meanwhile` is called now and then.
    """
    mark = uuid.uuid4().hex
    with closing(Watchdog(mark, is_job_ours=False)) as watchdog:
        relay = Relay(watchdog, on_usr2)
        with relay:
            process = subprocess.Popen(list(command), env=_marked(environment, mark))
            watchdog.watch(process)
            relay.attach(process)
            while True:
                try:
                    return _shell_code(process.wait(None if meanwhile is None else look_s))
                except subprocess.TimeoutExpired:
                    assert meanwhile is not None
                    meanwhile()


class OwnedJob:
    """A job that ends with us: it has a session of its own, and whatever happens nothing of it
    stays.

    In another session Ctrl-C is for us, and one group holds most of what it starts.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        stdin: int = subprocess.DEVNULL,
        stdout: int | IO[bytes] | IO[str] | None = None,
        stderr: int | IO[bytes] | IO[str] | None = None,
    ) -> None:
        self.mark = uuid.uuid4().hex
        self._watchdog = Watchdog(self.mark, is_job_ours=True)
        try:
            self.process = subprocess.Popen(
                list(command),
                env=_marked(environment, self.mark),
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
        except BaseException:
            # An interrupt may come when it runs already.
            end(None, self.mark.encode())
            self._watchdog.close()
            raise
        self._watchdog.watch(self.process)
        self._first = first_process(self.process.pid)

    def end(self, grace_s: float | None = None) -> None:
        """Asks every process of the job to end, and ends those that have not after a while."""
        # A second Ctrl-C must not leave half of it behind.
        with signals_deferred():
            end(self._first, self.mark.encode(), grace_s=grace_s, reap=self.process.poll)
            self.process.kill()
            self.process.wait()
            self._watchdog.close()


def run_owned(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    stdout: int | IO[bytes] | IO[str] | None = None,
    stderr: int | IO[bytes] | IO[str] | None = None,
    timeout_s: float | None = None,
    is_wanted: Callable[[], bool] = lambda: True,
    look_s: float = LOOK_S,
) -> Ended:
    """Runs the command to its end, or as long as it is wanted. Whatever it started ends with it,
    also when we are interrupted."""
    begun = time.monotonic()
    is_timed_out = is_stopped = False
    # A signal that would end us ends the job first.
    with signals_raise(lambda number: SystemExit(128 + number)):
        job = OwnedJob(command, environment, stdout=stdout, stderr=stderr)
        try:
            while not is_timed_out and not is_stopped:
                with suppress(subprocess.TimeoutExpired):
                    job.process.wait(look_s)
                    break
                is_timed_out = timeout_s is not None and time.monotonic() - begun > timeout_s
                is_stopped = not is_timed_out and not is_wanted()
        finally:
            wall_s = time.monotonic() - begun
            job.end()
    return Ended(
        exit_code=_shell_code(job.process.returncode),
        wall_s=wall_s,
        is_timed_out=is_timed_out,
        is_stopped=is_stopped,
    )


def _marked(environment: Mapping[str, str], mark: str) -> dict[str, str]:
    return {**environment, MARK: " ".join([*environment.get(MARK, "").split(), mark])}


def _shell_code(code: int) -> int:
    return 128 - code if code < 0 else code
