"""Run a command as a child and say what it cost: CPU seconds, wall seconds, peak memory.

    python -m benchmarks.measure COMMAND ...

**CPU** is user + system time of the child and of every descendant it waited for, as the kernel
accounts it (`wait4`). It is what to compare on a shared machine; wall time is not.

**Peak memory** is of the whole process tree, read from /proc by a thread that sleeps 20 ms between
samples (2 ms in the first half second, for commands that take no longer):

- while the tree is one process, that process's VmHWM, the kernel's own high-water mark of its
  resident memory. It never falls, so sampling misses only growth after the last sample of its life;
- while there are several, the sum of their PSS, where a page shared by n processes counts 1/n in
  each: summing RSS would count what forked workers share once for each. A peak between two samples
  is missed; a worker that ends while a sample is taken can leave what it shared counted twice in
  that one.

The larger of the two is given. Mapped file pages count as memory in both. PSS makes the kernel walk
the page tables (about 10 ms for each GB), so the thread also sleeps five times as long as its last
sample took, to leave the processors to the child.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

SAMPLE_S = 0.02
EARLY_SAMPLE_S = 0.002
EARLY_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What one run of a command cost, and what it said."""

    cpu_s: float
    wall_s: float
    peak_bytes: int
    exit_code: int
    timed_out: bool
    stdout: str
    stderr: str

    @property
    def failure(self) -> str | None:
        """Why the run does not count, in one line; None when it succeeded."""
        if self.timed_out:
            return f"stopped after {self.wall_s:.0f} s"
        if self.exit_code == 0:
            return None
        lines = self.stderr.strip().splitlines()
        return lines[-1].strip() if lines else f"exit code {self.exit_code}"


class MemorySampler(threading.Thread):
    """Follows the memory of a process tree until stopped; ends the tree's session when it outlives
    `timeout_s`."""

    def __init__(self, pid: int, timeout_s: float) -> None:
        super().__init__(daemon=True)
        self.peak_bytes = 0
        self.timed_out = False
        self._pid = pid
        self._deadline = time.perf_counter() + timeout_s
        self._ended = threading.Event()

    def run(self) -> None:
        early_until = time.perf_counter() + EARLY_S
        pause_s = 0.0
        while not self._ended.wait(pause_s):
            began = time.perf_counter()
            self.peak_bytes = max(self.peak_bytes, tree_bytes(self._pid))
            now = time.perf_counter()
            if now > self._deadline and not self.timed_out:
                self.timed_out = True
                os.killpg(self._pid, signal.SIGKILL)
            pause_s = max(EARLY_SAMPLE_S if now < early_until else SAMPLE_S, 5 * (now - began))

    def stop(self) -> None:
        self._ended.set()
        self.join()


def measure(
    command: Sequence[str], *, env: Mapping[str, str] | None = None, timeout_s: float = 1800.0
) -> Measurement:
    """Run `command` to its end, with `env` on top of this process's environment."""
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        began = time.perf_counter()
        # A session of its own, so that a timeout ends its workers as well.
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )
        sampler = MemorySampler(child.pid, timeout_s)
        sampler.start()
        # WNOWAIT leaves the child in the process table until the sampler is done with its id, which
        # cannot be given to another.
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        wall_s = time.perf_counter() - began
        sampler.stop()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        stdout.seek(0)
        stderr.seek(0)
        return Measurement(
            cpu_s=usage.ru_utime + usage.ru_stime,
            wall_s=wall_s,
            peak_bytes=sampler.peak_bytes,
            exit_code=child.returncode,
            timed_out=sampler.timed_out,
            stdout=stdout.read().decode(errors="replace"),
            stderr=stderr.read().decode(errors="replace"),
        )


def tree_bytes(pid: int) -> int:
    """Memory of the process and its descendants now: VmHWM when it is alone, the sum of PSS
    otherwise."""
    pids = descendants(pid)
    if len(pids) == 1:
        return proc_bytes(pid, "status", "VmHWM:")
    return sum(proc_bytes(each, "smaps_rollup", "Pss:") for each in pids)


def descendants(pid: int) -> list[int]:
    """The process and all below it that live now."""
    found = [pid]
    for parent in found:
        try:
            tasks = list(Path(f"/proc/{parent}/task").iterdir())
            found += [
                int(child) for task in tasks for child in (task / "children").read_text().split()
            ]
        except OSError:
            continue
    return found


def proc_bytes(pid: int, file: str, field: str) -> int:
    """One "field: N kB" line of a file in /proc; 0 for a process that has ended."""
    try:
        text = Path(f"/proc/{pid}/{file}").read_text()
    except OSError:
        return 0
    for line in text.splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    return 0


def main() -> int:
    if not sys.argv[1:]:
        print(__doc__, file=sys.stderr)
        return 2
    result = measure(sys.argv[1:])
    sys.stdout.write(result.stdout)
    sys.stderr.write(result.stderr)
    print(
        f"{result.cpu_s:.2f} CPU s, {result.wall_s:.2f} s, peak {result.peak_bytes / 1e6:.1f} MB",
        file=sys.stderr,
    )
    return result.exit_code


if __name__ == "__main__":
    sys.exit(main())
