"""A trial's loss by step, out of what each rank wrote: numbers and the times at which their
backward passes began."""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from pathlib import Path

from stepscope.core.experiments.trials import StepLoss
from stepscope.protocol.run_folder import LOSSES_FILE
from stepscope.readers.run_folder.folder import RankRecord, RunRecord

MAX_BYTES = 64 << 20


def step_losses(run: RunRecord) -> tuple[StepLoss, ...]:
    """The mean of each step over the ranks that have one: with pipelines, the last stage alone
    does."""
    by_step: dict[int, list[float]] = {}
    for rank in run.ranks:
        for step, losses in _of_rank(rank).items():
            by_step.setdefault(step, []).append(_mean(losses))
    return tuple(
        StepLoss(step=step, loss=_mean(losses)) for step, losses in sorted(by_step.items())
    )


def _of_rank(rank: RankRecord) -> dict[int, list[float]]:
    """The losses of each step: a pass belongs to the step that was the next to end after it
    began."""
    times, losses, last = _read(rank.folder / LOSSES_FILE)
    ends = sorted(
        (end, row["step"] or 0) for row in rank.rows if (end := row["end_ns"]) is not None
    )
    by_step: dict[int, list[float]] = {}
    if not ends:
        return by_step
    first = next((row for row in rank.rows if row["end_ns"] == ends[0][0]), rank.rows[0])
    # The step before the first row is the one that made the folder; its end is that row's
    # beginning.
    ends.insert(0, (ends[0][0] - (first["dur_ns"] or 0), ends[0][1] - 1))
    for at_ns, loss in zip(times, losses, strict=False):
        index = bisect_left(ends, (at_ns, -1))
        step = ends[index][1] if index < len(ends) else ends[-1][1] + 1
        by_step.setdefault(step, []).append(loss)
    if last is not None and not by_step:
        # Of a graph that is replayed, the last replay's loss alone is known.
        by_step[ends[-1][1]] = [last]
    return by_step


def _read(path: Path) -> tuple[list[int], list[float], float | None]:
    """What the file says; nothing where it is not there, or not ours."""
    try:
        with path.open("rb") as file:
            stored = json.loads(file.read(MAX_BYTES))
        times = [int(value) for value in stored["ns"]]
        losses = [float(value) for value in stored["loss"]]
        last = None if stored["last"] is None else float(stored["last"])
    except (OSError, ValueError, TypeError, KeyError, OverflowError):
        return [], [], None
    return times, losses, last


def _mean(values: list[float]) -> float:
    """Not finite where one of them is not."""
    mean = sum(values) / len(values)
    return (
        mean if math.isfinite(mean) or not all(map(math.isfinite, values)) else max(values, key=abs)
    )
