"""Whether a rank is still there: by its samples, and by the steps they count."""

from __future__ import annotations

from itertools import pairwise
from statistics import median

from stepscope.live.samples import usual_ns
from stepscope.live.shapes.live import RUNS, SILENT, STALLED, SWITCHED_OFF
from stepscope.readers.run_folder.tail import RankTail

SILENT_S = 10.0
SILENT_STEPS = 5
SILENT_SAMPLES = 3
"""Usual distances between samples: they come every ten seconds once a run is an hour old."""
STALLED_S = 120.0
"""An evaluation or a large save makes no steps either."""
STALLED_STEPS = 20


def liveness(
    tail: RankTail, wall_ns: int, stalled_s: float = STALLED_S
) -> tuple[str, float | None]:
    """The rank's state, and for how many seconds where that is not `runs`."""
    if tail.problem is not None:
        return SWITCHED_OFF, None
    lengths = [length for row in tail.rows if (length := usual_ns(row)) is not None]
    lengths = lengths or [row["dur_ns"] or 0 for row in tail.rows]
    step_s = median(lengths) / 1e9 if lengths else 0.0
    silent_s = (wall_ns - tail.sign_wall_ns) / 1e9
    if silent_s > max(SILENT_S, SILENT_STEPS * step_s, SILENT_SAMPLES * _between_samples_s(tail)):
        return SILENT, silent_s
    # By its samples alone: where these are rare,
    # that none has come yet does not say that no step was made.
    still_s = (tail.sign_wall_ns - tail.step_wall_ns) / 1e9
    if tail.samples and still_s > max(stalled_s, STALLED_STEPS * step_s):
        return STALLED, still_s
    return RUNS, None


def _between_samples_s(tail: RankTail) -> float:
    times = [time_ns for sample in tail.samples if isinstance(time_ns := sample.get("at_ns"), int)]
    gaps = [b - a for a, b in pairwise(times)]
    return median(gaps) / 1e9 if gaps else 0.0
