"""Real jobs that do something unusual, plain and under `stepscope run`, many times: does any end
differently?

    python -m benchmarks.harm [--times N] [--only NAME[=N] ...] [--jobs N]

Run it from the root of the repository, with stepscope installed. Each fault of
tests/capture/fault_job.py runs once plain, then `--times` times recorded; exit code and stdout must
be the same, stderr too but for our own lines, and the job must end. Prints a line per fault: runs,
runs that differed, runs that hung, and what differed first.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.capture.fault_job import FAULTS

JOB = Path(__file__).parent.parent / "tests" / "capture" / "fault_job.py"
WINDOW = ("--start-step", "6", "--steps", "4")
LONGEST_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a job ended. None: it did not, within LONGEST_S."""

    code: int | None
    out: bytes
    err: bytes


def plain(fault: str, job: Path = JOB) -> Outcome:
    outcome = _run([sys.executable, str(job), fault])
    return Outcome(code=outcome.code, out=outcome.out, err=_without_times(outcome.err))


def recorded(fault: str, job: Path = JOB) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        words = [
            "run",
            "--no-diagnose",
            "--out",
            f"{folder}/run",
            *WINDOW,
            "--",
            sys.executable,
            str(job),
            fault,
        ]
        outcome = _run([sys.executable, "-m", "stepscope", *words])
    return Outcome(code=outcome.code, out=outcome.out, err=_without_times(outcome.err))


def _without_times(err: bytes) -> bytes:
    """Less our own lines, and what differs between any two runs: times, and numbers of processes
    and threads. Of a traceback, which goes through our hooks, the last line."""
    kept = [line for line in err.splitlines(keepends=True) if not line.startswith(b"stepscope: ")]
    if any(line.startswith(b"Traceback") for line in kept):
        kept = kept[-1:]
    return re.sub(rb"(?m)^(USDT:|\[W)\S+ \S+( \d+:\d+)?", rb"\1", b"".join(kept))


def difference(before: Outcome, now: Outcome) -> str | None:
    """What a recorded run did differently, where it did."""
    if now.code is None:
        return "hung"
    # A shell's number for a signal: the launcher has no other way to pass it on.
    code = 128 - before.code if before.code is not None and before.code < 0 else before.code
    if now.code != code:
        return f"exit code {now.code}, not {code}: {now.err[-300:]!r}"
    if now.out != before.out:
        return f"stdout {now.out[-300:]!r}, not {before.out[-300:]!r}"
    if now.err != before.err:
        return f"stderr {now.err[-300:]!r}, not {before.err[-300:]!r}"
    return None


def _run(command: list[str]) -> Outcome:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, start_new_session=True
    )
    try:
        out, err = process.communicate(timeout=LONGEST_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        return Outcome(code=None, out=out, err=err)
    return Outcome(code=process.returncode, out=out, err=err)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--times",
        type=int,
        default=50,
        metavar="N",
        help="recorded runs of each fault (default: 50)",
    )
    parser.add_argument(
        "--only",
        action="append",
        metavar="NAME[=N]",
        help="this fault, N times; may be given again",
    )
    parser.add_argument(
        "--jobs", type=int, default=2, metavar="N", help="runs at a time (default: 2)"
    )
    arguments = parser.parse_args()
    chosen = [text.partition("=") for text in arguments.only or FAULTS]
    worst = 0
    with ThreadPoolExecutor(arguments.jobs) as pool:
        before = dict(
            zip(
                [name for name, _, _ in chosen],
                pool.map(plain, [name for name, _, _ in chosen]),
                strict=True,
            )
        )
        for name, _, times in chosen:
            num = int(times or arguments.times)
            found = Counter(
                difference(before[name], now) for now in pool.map(recorded, [name] * num)
            )
            differed = num - found[None]
            worst = max(worst, differed)
            first = next((text for text in found if text is not None), "")
            print(
                f"{name:22} {num:4} runs  {differed:3} differed  {found['hung']:3} hung  {first}",
                flush=True,
            )
    return 1 if worst else 0


if __name__ == "__main__":
    sys.exit(main())
