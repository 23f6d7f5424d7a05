"""Times each job and each of its single changes on a GPU, and records a trace of the base.

    python -m lab.gains --out DIR [--jobs A,B] [--budget SECONDS] [--traces-of-changes]
    python -m lab.gains --warm --jobs A,B     # fills the compiler's caches, times nothing

The base is timed before and after every change: a host is at times twice as slow as at others.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import statistics
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from lab.gains.job import Job, build, changed
from lab.gains.jobs import JOBS as FIRST_JOBS
from lab.gains.jobs_second import SECOND_JOBS
from lab.measure import BIG, Run, clear, record, settle

JOBS = {**FIRST_JOBS, **SECOND_JOBS}
BLOCKS, BLOCK_S, MOST = 6, 0.2, 60


def clock(run: Run, warm: int) -> tuple[float, float, float]:
    """Median, least and most ms a step over blocks of steps; inside one the host runs ahead."""
    run.enter()
    for _ in range(warm):
        run.step()
    settle()
    blocks = []
    for _ in range(BLOCKS):
        start, num_steps = time.perf_counter(), 0
        while num_steps < 4 or (time.perf_counter() - start < BLOCK_S and num_steps < MOST):
            run.step()
            num_steps += 1
        settle()
        blocks.append((time.perf_counter() - start) / num_steps * 1e3)
    return statistics.median(blocks), min(blocks), max(blocks)


def measure(job: Job, name: str, out: Path, *, traces_of_changes: bool) -> dict[str, Any]:
    clear()
    base = build(job, job.base)
    first, *_ = clock(base, 8)
    record(base, out / f"{name}.pt.trace.json.gz", 0)
    again, *_ = clock(base, 2)
    row: dict[str, Any] = {
        "step_ms": round(min(first, again), 4),
        "again_ms": round(max(first, again), 4),
        "base": {key: value for key, value in asdict(job.base).items() if value},
        "changes": {},
    }
    traces = out if traces_of_changes else None
    for code in job.changes:
        try:
            row["changes"][code] = _change(job, name, code, base, traces)
        except Exception as error:  # noqa: BLE001  a change that does not run is a result, too
            row["changes"][code] = {"failed": f"{type(error).__name__}: {error}"[:200]}
        row["changes"][code]["change"] = dict(job.changes[code])
    return row


def _change(job: Job, name: str, code: str, base: Run, traces: Path | None) -> dict[str, Any]:
    clear()
    before, *_ = clock(base, 2)
    run = build(job, changed(job, code))
    times = [ms / (job.samples or {}).get(code, 1) for ms in clock(run, 8)]
    if traces is not None:
        record(run, traces / f"{name}@{code}.pt.trace.json.gz", 0)
    del run
    gc.collect()
    after, *_ = clock(base, 2)
    ms, low, high = times
    return {
        "ms": round(ms, 4),
        "base_ms": [round(before, 4), round(after, 4)],
        "speedup": round(math.sqrt(before * after) / ms, 4),
        "speedup_low": round(min(before, after) / high, 4),
        "speedup_high": round(max(before, after) / low, 4),
    }


def warm(names: list[str]) -> None:
    for name in names:
        job = JOBS[name]
        for code in [code for code, change in job.changes.items() if "compile" in change]:
            clear()
            run = build(job, changed(job, code))
            run.enter()
            for _ in range(3):
                run.step()
            settle()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("gains"))
    parser.add_argument("--jobs", default=",".join(JOBS))
    parser.add_argument("--budget", type=float, default=math.inf)
    parser.add_argument("--warm", action="store_true")
    parser.add_argument("--traces-of-changes", action="store_true")
    arguments = parser.parse_args()
    names = [name for name in arguments.jobs.split(",") if name]
    if arguments.warm:
        warm(names)
        return 0
    arguments.out.mkdir(parents=True, exist_ok=True)
    device = torch.cuda.get_device_name() if BIG else "cpu"
    board: dict[str, Any] = {"device": device, "torch": torch.__version__, "jobs": {}}
    begun = time.monotonic()
    for name in names:
        if time.monotonic() - begun > arguments.budget:
            break
        start = time.monotonic()
        try:
            row = measure(
                JOBS[name], name, arguments.out, traces_of_changes=arguments.traces_of_changes
            )
        except Exception as error:  # noqa: BLE001  the other jobs are still to come
            row = {"failed": f"{type(error).__name__}: {error}"[:300], "changes": {}}
        row["took_s"] = round(time.monotonic() - start, 1)
        board["jobs"][name] = row
        (arguments.out / "board.json").write_text(json.dumps(board, indent=1))
        failed = [code for code, change in row["changes"].items() if "failed" in change]
        print(name, row["took_s"], "s", row.get("failed", ""), *failed, flush=True)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
