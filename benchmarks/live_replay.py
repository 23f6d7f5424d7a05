"""A recorded run, looked at second by second as if it ran."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stepscope.protocol.run_folder import RANK_FOLDER, STEP_COLUMNS
from stepscope.readers.run_folder.tail import RankTail, RunTail

S = 1_000_000_000
SLACK_S = 2


class Rank:
    """One rank's lines, in order."""

    def __init__(self, folder: Path) -> None:
        match = RANK_FOLDER.match(folder.name)
        assert match is not None
        self.rank = int(match[1])
        self.notes = json.loads((folder / "rank.json").read_text())
        self.shift_ns = self.notes["wall_ns"] - self.notes["perf_ns"]
        rows = [line for line in _lines(folder / "steps.jsonl") if isinstance(line, list)]
        self.rows = [
            dict.fromkeys(STEP_COLUMNS) | dict(zip(STEP_COLUMNS, line, strict=False))
            for line in rows
        ]
        self.samples = list(_lines(folder / "samples.jsonl"))

    def until(self, wall_ns: int) -> tuple[list[Any], list[Any]]:
        """What it has written by then, since the last call."""
        at_ns = wall_ns - self.shift_ns
        rows = [row for row in self.rows if row["end_ns"] <= at_ns]
        samples = [sample for sample in self.samples if sample["at_ns"] <= at_ns]
        self.rows, self.samples = self.rows[len(rows) :], self.samples[len(samples) :]
        return rows, samples


def looks(run: Path) -> Iterator[RunTail]:
    """One a second, from its first step to its last."""
    ranks = [Rank(folder) for folder in sorted(run.glob("rank-*"))]
    first = min(rank.rows[0]["end_ns"] + rank.shift_ns for rank in ranks)
    last = max(rank.rows[-1]["end_ns"] + rank.shift_ns for rank in ranks)
    for wall_ns in range(first, last + SLACK_S * S, S):
        tails = tuple(_tail(rank, *rank.until(wall_ns), wall_ns) for rank in ranks)
        yield RunTail(path=run, metadata={}, diagnosis=None, ranks=tails, wall_ns=wall_ns)


def _tail(rank: Rank, rows: list[Any], samples: list[Any], wall_ns: int) -> RankTail:
    return RankTail(
        rank=rank.rank,
        metadata=rank.notes,
        head=(),
        rows=tuple(rows),
        stretches=(),
        samples=tuple(samples),
        new_rows=tuple(rows),
        new_samples=tuple(samples),
        num_windows=0,
        sign_wall_ns=wall_ns,
        step_wall_ns=wall_ns,
        problem=None,
    )


def _lines(path: Path) -> Iterator[Any]:
    yield from (json.loads(line) for line in path.read_text().splitlines())
