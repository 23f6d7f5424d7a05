"""One job in a process of its own: its changes compiled, or timed and written to the board."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch

from lab.gains import timing
from lab.gains.given import given_jobs
from lab.gains.job import compiled
from lab.gains.jobs import JOBS as FIRST_JOBS
from lab.gains.jobs_eighth import EIGHTH_JOBS
from lab.gains.jobs_fifth import FIFTH_JOBS
from lab.gains.jobs_fourth import FOURTH_JOBS
from lab.gains.jobs_ninth import NINTH_JOBS
from lab.gains.jobs_second import SECOND_JOBS
from lab.gains.jobs_sixth import SIXTH_JOBS
from lab.gains.jobs_third import THIRD_JOBS
from lab.measure import BIG, clear, settle

SETS = {
    "first": FIRST_JOBS,
    "second": SECOND_JOBS,
    "third": THIRD_JOBS,
    "fourth": FOURTH_JOBS,
    "fifth": FIFTH_JOBS,
    "sixth": SIXTH_JOBS,
    "eighth": EIGHTH_JOBS,
    "ninth": NINTH_JOBS,
    "given": given_jobs(),
}
QUICK_BLOCKS, QUICK_BLOCK_S = 3, 0.12
PRELOADED = ["torch._dynamo", "torchvision", "transformers", "lab.gains.job_process"]
JOBS = {name: job for jobs in SETS.values() for name, job in jobs.items()}


def warm(name: str) -> None:
    """Runs what the job and its changes compile, and times nothing."""
    job = JOBS[name]
    for code, settings in compiled(job).items():
        start = time.monotonic()
        clear()
        run = job.build(settings)
        run.enter()
        for _ in range(3):
            run.step()
        settle()
        say(name, code, f"{time.monotonic() - start:.0f} s")


def time_job(
    name: str, out: Path, deadline: float, *, traces_of_changes: bool, quick: bool = False
) -> None:
    start = time.monotonic()
    if quick:
        timing.BLOCKS, timing.BLOCK_S = QUICK_BLOCKS, QUICK_BLOCK_S
    try:
        row = timing.measure(
            JOBS[name], name, out, deadline=deadline, traces_of_changes=traces_of_changes
        )
    except Exception as error:  # noqa: BLE001  the other jobs are still to come
        row = {"failed": f"{type(error).__name__}: {error}"[:300], "changes": {}}
    row["took_s"] = round(time.monotonic() - start, 1)
    device = torch.cuda.get_device_name() if BIG else "cpu"
    keep(out, name, row, {"device": device, "torch": torch.__version__})


def keep(out: Path, name: str, row: dict[str, Any], machine: dict[str, str]) -> None:
    """Puts the job's row into the board, whole at any moment."""
    path, board = out / "board.json", _board(out)
    board = {**machine, **board, "jobs": {**board["jobs"], name: row}}
    part = path.with_suffix(".part")
    part.write_text(json.dumps(board, indent=1))
    part.replace(path)
    say(name, row.get("took_s", "-"), "s", row.get("failed", ""))
    for code, change in row["changes"].items():
        say("   ", code, change.get("speedup", change.get("failed")))
    if "left_out" in row:
        say("    over budget, left out:", *row["left_out"])


def keep_missing(out: Path, name: str, why: str) -> None:
    """A job whose process died; one that died after its row was written keeps the row."""
    if name in _board(out)["jobs"]:
        say(name, why)
    else:
        keep(out, name, {"failed": why, "changes": {}}, {})


def _board(out: Path) -> dict[str, Any]:
    path = out / "board.json"
    board: dict[str, Any] = {"jobs": {}}
    if path.exists():
        board = json.loads(path.read_text())
    return board


def say(*words: object) -> None:
    print(*words, flush=True)  # noqa: T201
