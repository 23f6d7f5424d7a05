"""Real processes under `stepscope run`, with and without a terminal. None of them needs torch."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from stepscope.process.table import processes
from tests.capture.jobs import environment, stepscope
from tests.waiting import LONGEST_S

JOB = """
import os, signal, sys, time
def got(number, frame):
    os.write(1, b"got %d\\n" % number)
    if number == signal.SIGUSR1:
        os._exit(3)
for name in sys.argv[1:]:
    signal.signal(getattr(signal, name), got)
os.write(1, b"ready %d\\n" % os.getpid())
while True:
    # Not pause(): of a signal that comes just before it, Python would tell when the next one comes.
    time.sleep(0.05)
"""
"""Says which signals it got, and ends at SIGUSR1: signals are passed on in order, so that whatever
was to come before has come by then."""

SHELL = """
import fcntl, os, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
pid = os.fork()
if not pid:
    os.setpgid(0, 0)
    os.tcsetpgrp(0, os.getpid())
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    os.execvp(sys.argv[1], sys.argv[1:])
os.write(1, b"launcher %d\\n" % pid)
while True:
    _, status = os.waitpid(pid, os.WUNTRACED)
    if os.WIFSTOPPED(status):
        os.write(1, b"stopped\\n")
    else:
        os.write(1, b"code %d\\n" % os.waitstatus_to_exitcode(status))
        break
"""
"""What a shell does with a command: a group of its own, which has the terminal."""


def python(code: str, *words: str) -> list[str]:
    return [sys.executable, "-c", code, *words]


def launcher(folder: Path, *command: str) -> list[str]:
    options = ("--no-diagnose", "--no-alerts", "--out", str(folder / "run"))
    return stepscope("run", *options, "--", *command)


class Started:
    """A launcher whose job has said that it is ready."""

    def __init__(self, folder: Path, *command: str) -> None:
        words = launcher(folder, *command)
        self.process = subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(),
            start_new_session=True,
        )
        assert self.process.stdout is not None
        self.job_pid = int(self.process.stdout.readline().split()[1])

    def read_line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode().strip()

    def rest(self) -> tuple[list[str], int, str]:
        """What comes on stdout until nothing of the job is left, the exit code, and stderr."""
        out, err = self.process.communicate(timeout=LONGEST_S)
        return out.decode().split("\n")[:-1], self.process.returncode, err.decode()

    def watchdog(self) -> int:
        children = [pid for pid, each in processes().items() if each.parent == self.process.pid]
        (pid,) = {*children} - {self.job_pid}
        return pid


@contextmanager
def started(folder: Path, *command: str) -> Iterator[Started]:
    launched = Started(folder, *command)
    try:
        yield launched
    finally:
        for pid in (launched.process.pid, launched.job_pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        launched.process.communicate()


class Terminal:
    """A launcher in the foreground of a terminal, as an interactive shell starts it."""

    def __init__(self, folder: Path, *command: str) -> None:
        words = python(SHELL, *launcher(folder, *command))
        self.keys, side = os.openpty()
        self.shell = subprocess.Popen(
            words, stdin=side, stdout=side, stderr=side, env=environment(), start_new_session=True
        )
        os.close(side)
        self._rest = b""
        self.launcher_pid = int(self.line("launcher").split()[1])
        self.job_pid = int(self.line("ready").split()[1])

    def press(self, key: bytes) -> None:
        os.write(self.keys, key)

    def line(self, word: str) -> str:
        """The next line that begins so; keys that are echoed may stand before it."""
        while word not in (line := self._line()):
            assert line, f"the terminal was closed before {word!r} came"
        return line[line.index(word) :]

    def rest(self) -> list[str]:
        """Until all have closed the terminal."""
        lines = []
        while line := self._line():
            lines += [
                line[line.index(word) :] for word in ("got", "stopped", "code") if word in line
            ]
        return lines

    def _line(self) -> str:
        while b"\n" not in self._rest:
            with suppress(OSError):
                assert select.select([self.keys], [], [], LONGEST_S)[0], (
                    "nothing came from the terminal"
                )
                # Linux says EIO where nobody has the other end.
                if more := os.read(self.keys, 4096):
                    self._rest += more
                    continue
            return ""
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode().strip() or " "

    def hang_up(self) -> None:
        """The window is closed."""
        os.close(self.keys)
        self.keys = -1

    def close(self) -> None:
        for pid in (self.launcher_pid, self.job_pid, self.shell.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.shell.wait()
        if self.keys >= 0:
            os.close(self.keys)
