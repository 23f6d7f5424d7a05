"""The job of a trial as processes: started apart from us, looked after, and ended with all that it started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from stepscope.experiments.trials.signals import signals_raise
from stepscope.process.watchdog import Watchdog
from stepscope.protocol.run_folder import SITE_FOLDER, STDERR_FILE, STDOUT_FILE

LOOK_S = 0.1
GRACE_S = 5.0
"""Between asking a process to end and ending it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How the job ended."""

    exit_code: int
    wall_s: float
    is_timed_out: bool = False
    is_stopped: bool = False
    """Whether it was ended because nobody wanted to see more of it."""


def run_job(
    folder: Path,
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    timeout_s: float | None,
    is_wanted: Callable[[], bool],
) -> Ended:
    """Runs the command to its end, or as long as it is wanted. Whatever it started ends with it, also when we are interrupted."""
    begun = time.monotonic()
    is_timed_out = is_stopped = False
    # A signal that would end us ends the job first.
    told = signals_raise(lambda number: SystemExit(128 + number))
    mark = str((folder / SITE_FOLDER).absolute())
    with (
        closing(Watchdog(mark, is_job_ours=True)) as watchdog,
        (folder / STDOUT_FILE).open("wb") as out,
        (folder / STDERR_FILE).open("wb") as err,
        told,
    ):
        # In a session of its own: Ctrl-C is for us, and one group holds most of what it starts.
        process = subprocess.Popen(
            list(command), env=dict(environment), stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
        )
        watchdog.watch(process)
        try:
            while True:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(LOOK_S)
                    break
                is_timed_out = timeout_s is not None and time.monotonic() - begun > timeout_s
                is_stopped = not is_timed_out and not is_wanted()
                if is_timed_out or is_stopped:
                    break
        finally:
            wall_s = time.monotonic() - begun
            end_all(process, folder)
    code = process.returncode
    code = 128 - code if code < 0 else code
    return Ended(exit_code=code, wall_s=wall_s, is_timed_out=is_timed_out, is_stopped=is_stopped)


def end_all(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Ends the job's processes that are still there: first they are asked, so that launchers can end their own."""
    mark = str((folder / SITE_FOLDER).absolute()).encode()
    _send(process, mark, signal.SIGTERM)
    until = time.monotonic() + GRACE_S
    while (process.poll() is None or _marked(mark)) and time.monotonic() < until:
        time.sleep(LOOK_S / 2)
    # Again and again: what it started while it was being asked to end is not on the list yet, and a killed process takes a while.
    until = time.monotonic() + GRACE_S
    while True:
        _send(process, mark, getattr(signal, "SIGKILL", signal.SIGTERM))
        if not _marked(mark) or time.monotonic() > until:
            break
        time.sleep(LOOK_S / 2)
    process.wait()


def _send(process: subprocess.Popen[bytes], mark: bytes, number: signal.Signals) -> None:
    if process.poll() is None:
        with suppress(OSError):
            if hasattr(os, "killpg"):
                os.killpg(process.pid, number)
            else:
                process.terminate()
    for pid in _marked(mark):
        with suppress(OSError):
            os.kill(pid, number)


def _marked(mark: bytes) -> list[int]:
    """Processes whose environment has this trial's folder in it: torchrun gives each worker a session of its own, and a process
    whose parent has gone has another one. Empty where the system does not tell."""
    found = []
    own = os.getpid()
    for entry in Path("/proc").glob("[0-9]*") if sys.platform == "linux" else ():
        with suppress(OSError, ValueError):
            if mark in (entry / "environ").read_bytes() and int(entry.name) != own:
                found.append(int(entry.name))
    return found
