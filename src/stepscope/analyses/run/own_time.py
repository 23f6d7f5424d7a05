"""Each rank's own step time, from steps timed with no profiler: the step less its waits for others.

Ranks that exchange gradients in their backward passes (DDP) leave these together. Without a device
the host itself waits there. The rank with the shortest backward pass of a step waited least, and
what the others' take longer they waited, if they have as much to do in it; else they waited more:
a rank with more work is at least as late as it seems here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from stepscope.analyses.steps.unprofiled import usual_rows
from stepscope.core.run import OwnTime
from stepscope.core.trace import Float64

MIN_STEPS = 8
"""Steps that all ranks timed from which they stand for the run."""
IN_STEP = 0.05
"""Ranks that wait for one another take the same time over many steps; these differ by no more."""

Row = Mapping[str, int | None]


def own_times(rows: Mapping[int, Sequence[Row]]) -> dict[int, OwnTime]:
    """Own times by rank; none where the ranks are not in step, or too few steps are timed on all of
    them."""
    if len(rows) < 2:
        return {}
    timed = [
        {row["step"]: row for row in usual_rows(_timed(mine)) if row["num_backwards"]}
        for mine in rows.values()
    ]
    common = sorted(
        step for step in timed[0] if step is not None and all(step in mine for mine in timed)
    )
    if len(common) < MIN_STEPS:
        return {}

    def column(name: str) -> Float64:
        return np.array([[mine[step][name] or 0 for step in common] for mine in timed], np.float64)

    length, backward, loading = column("dur_ns"), column("backward_ns"), column("wait_ns")
    total = length.sum(axis=1)
    if total.min() <= 0 or np.ptp(total) > IN_STEP * total.mean():
        return {}
    waited = backward - backward.min(axis=0)
    own = np.maximum(length - waited, 0.0)
    longest = np.argmax(own, axis=0)
    spread = np.mean((own.max(axis=0) - own.mean(axis=0)) / np.maximum(length.mean(axis=0), 1.0))
    return {
        rank: OwnTime(
            num_steps=len(common),
            step_ns=round(float(np.median(length[index]))),
            own_ns=round(float(np.median(own[index]))),
            loader_ns=round(float(np.median(loading[index]))),
            backward_ns=round(float(np.median(backward[index] - waited[index]))),
            share_longest=float(np.mean(longest == index)),
            spread=float(spread),
        )
        for index, rank in enumerate(rows)
    }


def _timed(rows: Sequence[Row]) -> list[Row]:
    """Steps of the whole run that no profiler slowed."""
    return [row for row in rows if row["state"] == 0]
