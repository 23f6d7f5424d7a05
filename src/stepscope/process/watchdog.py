"""A small process beside each job.

It outlives a killed stepscope, and says which signals went to the whole process group.
"""

from __future__ import annotations

import select
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from stepscope.process.watchdog_process import END, HANG_UP

CODE = "import sys; sys.path.append(sys.argv[1])\n"
CODE += "from stepscope.process.watchdog_process import main; main(*sys.argv[2:])"
SOURCES = Path(__file__).absolute().parents[2]
ANSWER_S = 5.0
"""Seconds to answer: on a busy machine a Python that has just been started takes a while."""


class Watchdog:
    """Started before the job, so that no moment is without. Where it cannot start, all goes on."""

    def __init__(self, mark: str, *, is_job_ours: bool) -> None:
        """`mark` is in the environment of all of the job's processes.

        A job that is ours ends with us. Any other shares our process group, and gets what a closed
        terminal sends.
        """
        fate = END if is_job_ours else HANG_UP
        # Without site packages: it starts fast, and nothing of the user's runs in it.
        words = [sys.executable, "-I", "-S", "-c", CODE, str(SOURCES), fate, mark]
        self._process: subprocess.Popen[bytes] | None = None
        self._job: subprocess.Popen[bytes] | None = None
        self._num_asked = 0
        if not hasattr(signal, "pthread_sigmask"):
            return
        # It starts with every signal blocked: none ends it, and none is missed.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            with suppress(OSError):
                self._process = subprocess.Popen(
                    words,
                    bufsize=0,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    # Who kills our whole group must leave it to end a job in another one.
                    start_new_session=is_job_ours,
                )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def watch(self, job: subprocess.Popen[bytes]) -> None:
        """The job has been started."""
        self._job = job
        self._write(f"job {job.pid}")

    def group_signals(self) -> set[int] | None:
        """Signals sent to our whole process group since this was last asked; None: not known."""
        self._num_asked += 1
        self._write(f"asked {self._num_asked}")
        while (numbers := self._answer()) is not None:
            # An answer that came too late the last time is left out.
            if numbers[:1] == [self._num_asked]:
                return set(numbers[1:])
        return None

    def close(self) -> None:
        """Where the job is not over, it is left to the watchdog as if we had been killed."""
        process = self._process
        if process is None:
            return
        is_over = self._job is None or self._job.returncode is not None
        if is_over:
            self._write("done")
        assert process.stdin is not None and process.stdout is not None
        process.stdin.close()
        process.stdout.close()
        if is_over:
            process.wait()

    def _write(self, line: str) -> None:
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.write(line.encode() + b"\n")

    def _answer(self) -> list[int] | None:
        if self._process is None or self._process.stdout is None:
            return None
        pipe = self._process.stdout
        with suppress(OSError, ValueError):
            if select.select([pipe], [], [], ANSWER_S)[0]:
                line = pipe.readline()
                return [int(word) for word in line.split()] if line else None
        return None
