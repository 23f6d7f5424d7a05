"""Work of a rank without a device that no other rank has: operators on inputs of other sizes."""

from __future__ import annotations

from collections import Counter

import numpy as np

from stepscope.analyses.grouping import grouped
from stepscope.core.trace import NONE, Kind, OpInputs
from stepscope.rules.job_case import JobCase

Sized = tuple[str, str]
"""An operator's name and its inputs' dimensions."""


def own_share(job: JobCase, index: int) -> float:
    """Share of the time in this rank's operators that is in calls on inputs of sizes that no other
    rank calls them on; 0 where sizes were not recorded."""
    by_rank = [_times(job, other) for other in range(len(job.cases))]
    own = by_rank.pop(index)
    others = {key for times in by_rank for key in times}
    return sum(ns for key, ns in own.items() if key not in others) / max(own.total(), 1)


def _times(job: JobCase, index: int) -> Counter[Sized]:
    """Time in operators with inputs, within the steps; inner calls count with the outer ones."""
    case = job.cases[index]
    trace, cut = case.context.trace, case.context.cut
    ops = np.flatnonzero(
        trace.is_kind(Kind.OP)
        & case.context.host.driving
        & (trace.detail != NONE)
        & (trace.start_ns >= cut.host_start[0])
        & (trace.start_ns < cut.host_end[-1])
    )
    order, begins = grouped(
        trace.name[ops].astype(np.int64) * (len(trace.details) + 1) + trace.detail[ops]
    )
    times: Counter[Sized] = Counter()
    for alike in np.split(ops[order], begins[1:]) if len(ops) else ():
        detail = trace.details[trace.detail[alike[0]]]
        if isinstance(detail, OpInputs) and detail.dims is not None:
            times[trace.names[trace.name[alike[0]]], detail.dims] += int(trace.dur_ns[alike].sum())
    return times
