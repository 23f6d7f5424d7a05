"""Times each job and each of its single changes on a GPU, and records a trace of the base.

    python -m lab.gains --warm [--set fourth] [--jobs A,B]     # fills the compiler's caches
    python -m lab.gains --out DIR [--set fourth] [--jobs A,B] [--budget SECONDS]

Each job has a process of its own; `--warm` runs several at once, timing one after the other.
DIR/board.json is written after every job, and rows of other jobs that it has are kept. The base
is timed before, between and after two timings of every change, with the pace of the host beside
each: a host is at times twice as slow as at others.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lab.gains.job import compiled
from lab.gains.job_process import JOBS, PRELOADED, SETS, keep_missing, say, time_job, warm

GRACE_S = 90  # for a job that the budget ends in: one change more, and the recording
PROCESS = multiprocessing.get_context("spawn").Process
NVML_CHECK = "PYTORCH_NVML_BASED_CUDA_CHECK"
"""In the environment: torch looks for a GPU without taking it, so that a process may fork then."""


def preloaded() -> type[multiprocessing.process.BaseProcess]:
    """Processes that are forked from one that has imported the libraries and taken no device."""
    os.environ[NVML_CHECK] = "1"
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context.Process


def time_jobs(
    names: list[str], out: Path, budget_s: float, *, traces_of_changes: bool, quick: bool = False
) -> None:
    process = preloaded() if quick else PROCESS
    out.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + budget_s
    for i, name in enumerate(names):
        if time.monotonic() > deadline:
            say("over budget, left out:", ",".join(names[i:]))
            return
        child = process(
            target=time_job,
            args=(name, out, deadline),
            kwargs={"traces_of_changes": traces_of_changes, "quick": quick},
        )
        child.start()
        child.join(None if budget_s == math.inf else deadline - time.monotonic() + GRACE_S)
        if child.is_alive():
            child.kill()
            child.join()
        if child.exitcode:
            keep_missing(out, name, f"its process ended with {child.exitcode}")


def warm_jobs(names: list[str], processes: int) -> None:
    def warm_job(name: str) -> None:
        child = PROCESS(target=warm, args=(name,))
        child.start()
        child.join()
        if child.exitcode:
            say(name, "ended with", child.exitcode)

    ours = [name for name in names if compiled(JOBS[name])]
    with ThreadPoolExecutor(processes) as pool:
        list(pool.map(warm_job, ours))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("gains"))
    parser.add_argument("--set", choices=tuple(SETS), help="one set of jobs")
    parser.add_argument("--jobs", help="names, with commas between")
    parser.add_argument("--budget", type=float, default=math.inf, metavar="SECONDS")
    parser.add_argument("--warm", action="store_true")
    parser.add_argument(
        "--quick", action="store_true", help="shorter blocks, libraries imported once"
    )
    parser.add_argument("--processes", type=int, default=8, help="at once, with --warm")
    parser.add_argument("--traces-of-changes", action="store_true")
    arguments = parser.parse_args()
    names = list(SETS.get(arguments.set, JOBS))
    if arguments.jobs:
        names = [name for name in arguments.jobs.split(",") if name]
        unknown = [name for name in names if name not in JOBS]
        if unknown:
            parser.error(f"no such job: {', '.join(unknown)}")
    if arguments.warm:
        warm_jobs(names, arguments.processes)
    else:
        time_jobs(
            names,
            arguments.out,
            arguments.budget,
            traces_of_changes=arguments.traces_of_changes,
            quick=arguments.quick,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
