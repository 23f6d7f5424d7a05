"""Run folders as a running job leaves them, with a clock that does not move by itself."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stepscope.protocol.run_folder import (
    SCHEMA,
    STEP_COLUMNS,
    STEP_SUMMARY_COLUMNS,
    STEP_SUMMARY_FILE,
    write_json,
)

WALL_NS = 1_800_000_000_000_000_000
"""The wall clock when a rank's perf_counter stood at 0."""
MS = 1_000_000
S = 1_000_000_000


def write_run(folder: Path, **more: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    told = {
        "schema": SCHEMA,
        "command": ["python", "train.py"],
        "options": {},
        "started_wall_ns": WALL_NS,
    }
    write_json(folder / "run.json", told | more)
    return folder


def write_rank(run: Path, rank: int, **notes: Any) -> Path:
    folder = run / f"rank-{rank}"
    folder.mkdir()
    write_json(
        folder / "rank.json",
        {"rank": rank, "perf_ns": 0, "wall_ns": WALL_NS, "world_size": 1, **notes},
    )
    _append(folder / "steps.jsonl", [{"columns": STEP_COLUMNS}])
    _append(folder / STEP_SUMMARY_FILE, [{"columns": STEP_SUMMARY_COLUMNS}])
    return folder


def row(step: int, dur_ms: float = 10.0, **more: int | None) -> list[int | None]:
    usual: dict[str, int | None] = {
        "step": step, "end_ns": step * 10 * MS, "dur_ns": int(dur_ms * MS), "device_ns": None,
        "wait_ns": 0, "num_batches": 1, "backward_ns": 0, "num_backwards": 1, "optimizer_ns": 0,
        "save_ns": 0, "gc_ns": 0, "state": 0, "num_evals": 0,
        "wait_cpu_ns": 0, "device_backward_ns": None, "comm_ns": 0, "log_ns": 0, "between_ns": 0,
    }  # fmt: skip
    return [(usual | more)[name] for name in STEP_COLUMNS]


def add_steps(folder: Path, rows: Sequence[Sequence[int | None]]) -> None:
    _append(folder / "steps.jsonl", rows)


def add_stretches(folder: Path, rows: Sequence[Sequence[int]]) -> None:
    _append(folder / STEP_SUMMARY_FILE, rows)


def add_samples(folder: Path, samples: Sequence[Mapping[str, Any]]) -> None:
    _append(folder / "samples.jsonl", samples)


def sample(at_s: float, step: int, **more: Any) -> dict[str, Any]:
    return {"at_ns": int(at_s * S), "step": step, "rss_bytes": 1_000_000_000, **more}


def wall(at_s: float) -> int:
    return WALL_NS + int(at_s * S)


def _append(path: Path, values: Sequence[Any]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(value) + "\n" for value in values)
