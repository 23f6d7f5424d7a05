"""Looks into a process through py-spy, one or many, and what to say where it is refused."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.errors import FormatError, InputError, UsageError
from stepscope.live.shapes.triage import Frame
from stepscope.process.isolation import find_tool
from stepscope.protocol.untrusted import as_object, parse_json

if TYPE_CHECKING:
    from pathlib import Path

    from stepscope.live.shapes.triage import Frame


DUMP_S = 20.0
"""What one look at one process may take."""
SAMPLES_A_SECOND = 20
GRACE_S = 10.0
"""Seconds that py-spy may take to begin and to write, beside the time it samples for."""
REFUSED = ("permission denied", "not permitted", "must be root", "ptrace")


class NotPermittedError(InputError):
    """The system does not let us look into that process."""


def find_spy() -> str:
    """py-spy, on PATH or beside this Python."""
    spy = find_tool("py-spy")
    if spy is None:
        raise UsageError(
            "processes are looked into through py-spy, which is not here: pip install "
            "'stepscope[attach]'"
        )
    return spy


def dump(spy: str, pid: int) -> tuple[Frame, ...]:
    """The training thread's stack."""
    try:
        done = subprocess.run(
            [spy, "dump", "--pid", str(pid), "--json"],
            capture_output=True,
            timeout=DUMP_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise InputError(f"py-spy did not answer about process {pid} in {DUMP_S:.0f} s") from None
    except OSError as problem:
        raise UsageError(
            f"{spy} could not be run: {problem.strerror}. Install it again: pip install "
            "'stepscope[attach]'"
        ) from None
    if done.returncode == 0:
        return training_stack(done.stdout, pid)
    said = (
        " ".join(done.stderr.decode(errors="replace").split())[:300]
        or f"exit code {done.returncode}"
    )
    if any(word in said.lower() for word in REFUSED):
        raise NotPermittedError(_refusal_words(pid))
    raise InputError(f"py-spy could not look into process {pid}: {said}")


class Sampling:
    """The main thread of one process, sampled in the background without being paused."""

    def __init__(self, spy: str, pid: int, seconds: float, folder: Path) -> None:
        self.pid, self._path = pid, folder / f"py-spy.{pid}.txt"
        self._until = time.monotonic() + seconds + GRACE_S
        words = [spy, "record", "--nonblocking", "--idle", "--threads", "--format", "raw"]
        words += ["--pid", str(pid), "--rate", str(SAMPLES_A_SECOND)]
        words += ["--duration", str(max(1, round(seconds))), "--output", str(self._path)]
        self._process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )

    def result(self) -> Path:
        """The main thread's stacks, one a line. InputError says why there are none."""
        try:
            said = self._process.communicate(timeout=max(0.0, self._until - time.monotonic()))[1]
        except subprocess.TimeoutExpired:
            self.end()
            raise InputError(f"py-spy did not end its samples of process {self.pid}") from None
        words = " ".join(said.decode(errors="replace").split())
        if any(word in words.lower() for word in REFUSED):
            raise NotPermittedError(_refusal_words(self.pid))
        if self._process.returncode or not self._path.is_file():
            raise InputError(f"py-spy could not look into process {self.pid}: {words[:200]}")
        lines = self._path.read_text(encoding="utf-8", errors="replace").splitlines()
        mine = [line for line in lines if line.startswith(f"thread ({self.pid})")]
        mine = mine or [line for line in lines if ": MainThread;" in line]
        if not mine:
            raise InputError(f"py-spy saw no Python code in process {self.pid}")
        self._path.write_text("".join(f"{line}\n" for line in mine), encoding="utf-8")
        return self._path

    def end(self) -> None:
        """Nothing of it stays, whatever happened."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()


def _refusal_words(pid: int) -> str:
    """What opens the door, by what may have shut it."""
    return (
        f"this system does not let us look into process {pid}. "
        "As another user's, or where kernel.yama.ptrace_scope is not 0: sudo env PATH=$PATH "
        f"stepscope attach {pid} "
        "(or, until the next start, sudo sysctl kernel.yama.ptrace_scope=0). "
        "In a container: start it with --cap-add SYS_PTRACE (Kubernetes: "
        "securityContext.capabilities.add: [SYS_PTRACE])"
    )


MAX_FRAMES = 500


def training_stack(text: str | bytes, pid: int) -> tuple[Frame, ...]:
    """The main thread's stack, innermost call first; empty when it is in no Python code."""
    try:
        threads = parse_json(text)
    except ValueError:
        threads = None
    if not isinstance(threads, list):
        raise FormatError(
            f"py-spy gave no stacks of process {pid}. Is it version 0.4 or later? (py-spy "
            "--version)"
        )
    stacks = [thread for thread in threads if isinstance(thread, dict)]
    chosen = [thread for thread in stacks if thread.get("os_thread_id") == pid]
    chosen = (
        chosen
        or [thread for thread in stacks if thread.get("thread_name") == "MainThread"]
        or stacks
    )
    frames = chosen[0].get("frames") if chosen else None
    return tuple(map(_frame, frames[:MAX_FRAMES])) if isinstance(frames, list) else ()


def _frame(frame: Any) -> Frame:
    frame = as_object(frame)
    line = frame.get("line")
    return Frame(
        name=str(frame.get("name") or "?"),
        file=str(frame.get("filename") or frame.get("short_filename") or "?"),
        line=line if isinstance(line, int) else 0,
    )
