"""DDP looks for unused parameters in every step.

What it sees: the range `search_unused_parameters` of DDP's reducer at the end of each forward, and
the small int32 all-reduce in which the ranks tell one another what they used.

Why it costs: the whole autograd graph is walked on the host while nothing is launched, and one more
exchange is waited for. Where the host runs ahead of the device neither is seen in the step: the
replay decides.

Evidence it needs: DDP's ranges (`ProfilerActivity.CPU`), the collectives' types, which c10d records
by itself.

What to do: find_unused_parameters=False when every parameter gets a gradient in every step (DDP
says so in a warning after the first step); static_graph=True when the same ones go without.

Example: in one recorded run find_unused_parameters=False gave nothing; the pattern alone is no
fault.
"""

from __future__ import annotations

import re

import numpy as np

from stepscope.analyses.grouping import matching
from stepscope.analyses.intervals import Intervals, union
from stepscope.core.trace import NONE, Bool
from stepscope.replay.changes import without_host_ranges
from stepscope.replay.job import with_graphs
from stepscope.replay.simulate_job import JobGraph
from stepscope.rules.job_case import JobCase, JobProposal, without_collectives
from stepscope.rules.rule import Rule
from stepscope.rules.shared.messages import messages

CODE = "unused-parameter-scan"
BOUND = "comms"
SCAN = re.compile(r"reducer::search_unused_parameters")
MAP_DTYPES = ("int32",)
"""Types of the map of used parameters that the reducer exchanges; gradients are no integers."""


def propose_job(job: JobCase) -> JobProposal | None:
    """The walk over the graph and the exchange of its result are gone."""
    scans = [_scans(job, index) for index in range(len(job.cases))]
    if not all(len(ranges) for ranges in scans):
        return None
    masks = [_map_exchange(job, index) for index in range(len(job.cases))]
    steps = max(job.job_graph.parts[0].graph.num_steps, 1)
    walked = (
        float((scans[0].end - scans[0].start).sum())
        / max(job.cases[0].facts.steps.num_seen, 1)
        / 1e6
    )
    return JobProposal(
        summary=f"DDP walks the graph for unused parameters in every step: {walked:.1f} ms of the "
        "host.",
        action="DistributedDataParallel(..., find_unused_parameters=False), if every parameter is "
        "used; else static_graph=True",
        evidence=(
            f"{walked:.1f} ms a step in the reducer's search_unused_parameters, as recorded",
            f"{int(masks[0].sum()) / steps:.0f} exchanges a step of what was used",
        ),
        change=lambda job_graph: _unscanned(job_graph, scans, masks),
    )


def _scans(job: JobCase, index: int) -> Intervals:
    trace = job.cases[index].context.trace
    events = np.flatnonzero(matching(trace, SCAN) & ~trace.device_work)
    return union(trace.start_ns[events], trace.end_ns[events])


def _map_exchange(job: JobCase, index: int) -> Bool:
    """Integer all-reduces of the backward pass."""
    sent = messages(job, index, lambda kind: kind.op == "all_reduce" and kind.dtype in MAP_DTYPES)
    mask = np.zeros(len(job.job_graph.parts[index].graph), np.bool_)
    mask[sent.task[sent.step != NONE]] = True
    if mask.any():
        mask &= job.cases[index].table.backward
    return mask


def _unscanned(job_graph: JobGraph, scans: list[Intervals], masks: list[Bool]) -> JobGraph:
    graphs = [
        without_host_ranges(part.graph, gone)
        for part, gone in zip(job_graph.parts, scans, strict=True)
    ]
    return without_collectives(with_graphs(job_graph, graphs), masks)


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, propose_job=propose_job)
