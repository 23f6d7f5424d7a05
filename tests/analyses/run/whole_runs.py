"""A rank's record with steps one after the other, and where its time went."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stepscope.analyses.run.whole_run import rank_whole_run
from stepscope.core.run import OwnTime, WholeRun
from stepscope.protocol.run_folder import STEP_COLUMNS
from stepscope.readers.run_folder.folder import RankRecord

MS = 1_000_000
S = 1_000 * MS
WALL = 10**18
"""Of the wall's clock, when the rank's own was 0."""
Row = dict[str, int | None]


def row(step: int, ms: float, **more: int | None) -> Row:
    usual: Row = {**dict.fromkeys(STEP_COLUMNS, 0), "device_ns": None, "num_backwards": 1}
    return {**usual, "step": step, "dur_ns": round(ms * MS), "num_batches": 1, **more}


def record(
    rows: list[Row], *events: dict[str, Any], first_ns: int = 5 * S, **notes: Any
) -> RankRecord:
    """Steps one after the other from the first one's end on."""
    now = first_ns
    for each in rows:
        now += each["dur_ns"] or 0
        each["end_ns"] = now
    metadata = {"perf_ns": first_ns, "wall_ns": WALL + first_ns, **notes}
    return RankRecord(
        rank=0,
        folder=Path("rank-0"),
        metadata=metadata,
        rows=tuple(rows),
        samples=(),
        events=events,
        windows={},
        problem=None,
    )


def accounted(made: RankRecord, own: OwnTime | None = None, tail_ns: int = S) -> WholeRun:
    ended = (made.rows[-1]["end_ns"] or 0) + tail_ns
    run = rank_whole_run(made, {"started_wall_ns": WALL, "ended_wall_ns": WALL + ended}, own)
    assert run is not None
    run.self_check()
    assert run.dur_ns == ended
    return run
