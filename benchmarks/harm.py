"""Real jobs, plain and under `stepscope run`, many times: does any end differently?

    python -m benchmarks.harm [--gpu | --odd] [--times N] [--only NAME[=N] ...] [--jobs N]
        [-- OPTION ...]

Run it from the root of the repository, with stepscope installed. Each fault of
tests/capture/fault_job.py, or with `--gpu` each job of benchmarks/gpu_jobs.py and with `--odd` of
benchmarks/odd_jobs.py, runs once plain, then `--times` times recorded; exit code and stdout must
be the same, stderr too but for our own lines, files left in the folder for temporary ones and
processes left too, and the job must end; what a second plain run does differently too is none. A
job of `--gpu` must also
have been recorded: the capture may not have switched itself off. OPTIONs are those of `stepscope
run`. Prints a line per job: runs, runs that differed, runs that hung, and what differed first.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

from benchmarks import gpu_jobs, odd_jobs
from stepscope.readers.run_folder.folder import read_run
from tests.capture.fault_job import FAULTS

JOB = Path(__file__).parent.parent / "tests" / "capture" / "fault_job.py"
WINDOW = ("--start-step", "6", "--steps", "4")
LONGEST_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a job ended. None: it did not, within LONGEST_S."""

    code: int | None
    out: bytes
    err: bytes
    left: tuple[str, ...] = ()
    """Files in the job's folders and processes, less what names at random."""


def fault_command(name: str) -> list[str]:
    return [sys.executable, str(JOB), name]


def plain(command: Sequence[str]) -> Outcome:
    outcome = _run([*command])
    return replace(outcome, err=_without_times(outcome.err))


def recorded(command: Sequence[str], options: Sequence[str], *, must_record: bool) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        words = ["run", "--no-diagnose", "--out", f"{folder}/run", *WINDOW, *options, "--"]
        outcome = _run([sys.executable, "-m", "stepscope", *words, *command])
        problem = _not_recorded(Path(folder, "run")) if must_record else ""
    err = _without_times(outcome.err) + problem.encode()
    return replace(outcome, err=err)


def _not_recorded(run: Path) -> str:
    """What kept a job from being recorded, or nothing."""
    ranks = read_run(run).ranks
    problems = [rank.problem for rank in ranks if rank.problem is not None]
    if problems:
        return f"the capture switched itself off: {problems[0]}"
    return "" if any(rank.rows for rank in ranks) else "no step was recorded"


def _without_times(err: bytes) -> bytes:
    """Less our own lines, and what differs between any two runs: times, numbers of processes and
    threads, memory that others hold. Of a traceback, which goes through our hooks, the last
    line."""
    kept = [line for line in err.splitlines(keepends=True) if not line.startswith(b"stepscope: ")]
    if any(line.startswith(b"Traceback") for line in kept):
        kept = kept[-1:]
    text = re.sub(rb"(?m)^(USDT:|\[W)\S+ \S+( \d+:\d+)?", rb"\1", b"".join(kept))
    text = re.sub(rb"Process \d+ has \S+ \S+ memory in use\. ", b"", text)
    return re.sub(rb"[\d.]+ ([KMG]iB|bytes)", b"#", text)


def difference(before: Outcome, now: Outcome, again: Callable[[], Outcome]) -> str | None:
    """What a recorded run did differently, where it did and a second plain one does not."""
    if now.code is None:
        return "hung"
    found = _unlike(before, now)
    varies = _unlike(before, again()) if found else {}
    # Caches of compilers: in these folders no two runs leave files of the same names.
    folders = [Path(name).parent if "/" in name else Path(name) for name in varies.pop("left", ())]
    left = [name for name in found.pop("left", ()) if not _is_in(name, folders)]
    for what, (was, instead) in found.items():
        if what not in varies:
            return f"{what} {instead}, not {was}"
    return f"left {sorted(left)}" if left else None


def _unlike(before: Outcome, now: Outcome) -> dict[str, Sequence[str]]:
    """Before and now, and names of what is left in one alone."""
    unlike: dict[str, Sequence[str]] = {}
    if _shell_code(before.code) != _shell_code(now.code):
        unlike["exit code"] = (str(before.code), f"{now.code} ({now.err[-300:]!r})")
    if before.out != now.out:
        unlike["stdout"] = _from_where_they_differ(before.out, now.out)
    if before.err != now.err:
        unlike["stderr"] = _from_where_they_differ(before.err, now.err)
    left = sorted(set(now.left) ^ set(before.left))
    return unlike | {"left": left} if left else unlike


def _shell_code(code: int | None) -> int | None:
    """With a shell's number for a signal: the launcher has no other way to pass it on."""
    return 128 - code if code is not None and code < 0 else code


def _from_where_they_differ(before: bytes, now: bytes) -> tuple[str, str]:
    pairs = enumerate(zip(before, now, strict=False))
    same = next((at for at, (was, instead) in pairs if was != instead), min(len(before), len(now)))
    first = max(same - 40, 0)
    return repr(before[first:][:300]), repr(now[first:][:300])


def _is_in(name: str, folders: Sequence[Path]) -> bool:
    return any(Path(name).is_relative_to(folder) for folder in folders)


def _run(command: list[str]) -> Outcome:
    with tempfile.TemporaryDirectory() as text:
        folder, mark = Path(text), f"STEPSCOPE_HARM={Path(text).name}"
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "TMPDIR": text}
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
            env=env | dict([mark.split("=")]),
        )  # fmt: skip
        try:
            out, err = process.communicate(timeout=LONGEST_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            return Outcome(code=None, out=out, err=err)
        files = {str(path.relative_to(folder)) for path in folder.rglob("*")}
        left = {_RANDOM.sub("#", name) for name in files} | _processes(mark)
        return Outcome(code=process.returncode, out=out, err=err, left=tuple(sorted(left)))


_RANDOM = re.compile(r"(tmp|(?<=[_-]))[a-z0-9_]{8}(?=[/.]|$)|[0-9a-f-]{8,}|\d+")
MAX_GRACE_S = 20.0


def _processes(mark: str) -> set[str]:
    """What still runs of a job: it may take a while to end."""
    end = time.monotonic() + MAX_GRACE_S
    while True:
        found = set()
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if mark.encode() in (folder / "environ").read_bytes().split(b"\0"):
                    found.add(f"process {(folder / 'comm').read_text().strip()}")
        if not found or time.monotonic() > end:
            return found
        time.sleep(0.5)


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
    parser.add_argument("--gpu", action="store_true", help="the jobs of benchmarks/gpu_jobs.py")
    parser.add_argument("--odd", action="store_true", help="the jobs of benchmarks/odd_jobs.py")
    parser.add_argument("options", nargs="*", metavar="OPTION", help="of `stepscope run`, after --")
    arguments = parser.parse_args()
    names: Sequence[str] = gpu_jobs.names() if arguments.gpu else list(FAULTS)
    command = gpu_jobs.command if arguments.gpu else fault_command
    if arguments.odd:
        names, command = odd_jobs.names(), odd_jobs.command
        for name, package in odd_jobs.left_out():
            print(f"{name:42} left out: {package} is not installed")
    record = partial(recorded, options=arguments.options, must_record=arguments.gpu)
    chosen = [text.partition("=") for text in arguments.only or names]
    worst = 0
    with ThreadPoolExecutor(arguments.jobs) as pool:
        before = [pool.submit(plain, command(name)) for name, _, _ in chosen]
        now = [
            [pool.submit(record, command(name)) for _ in range(int(times or arguments.times))]
            for name, _, times in chosen
        ]
        for (name, _, _), first_plain, runs in zip(chosen, before, now, strict=True):
            num = len(runs)
            again = cache(partial(plain, command(name)))
            found = Counter(difference(first_plain.result(), run.result(), again) for run in runs)
            differed = num - found[None]
            worst = max(worst, differed)
            first = next((text for text in found if text is not None), "")
            print(
                f"{name:42} {num:4} runs  {differed:3} differed  {found['hung']:3} hung  {first}",
                flush=True,
            )
    return 1 if worst else 0


if __name__ == "__main__":
    sys.exit(main())
