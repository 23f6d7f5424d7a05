"""The graph of a run without a device:
its operators are the work, and the host waits for each of them.

Every stretch of operators is a call that launches one task and waits for it. What lies between two
stretches is the host's own time: its loader, a save, Python. Collectives that the host carries out
are in gloo_graph.py, which ties ranks together.

    main thread   [ops ]  python  [ops ]  loader  [ops ]
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np

from stepscope.analyses.collectives.events import host_collectives
from stepscope.analyses.host.activity import HostActivity
from stepscope.analyses.intervals import Intervals, join, lengths_in, subtract, union
from stepscope.analyses.steps.windows import StepCut
from stepscope.core.trace import NONE, Float64, Int64, Kind, Trace
from stepscope.replay.bisection import bisect
from stepscope.replay.graph import HOST_PARTS, Graph, last_step
from stepscope.replay.profiler_cost import Fitted
from stepscope.replay.simulate import play

SCALE_RANGE = (0.02, 50.0)
SPLIT = ("compile", "allocator", "input", "io", "gc", "comms")


def build_on_host(trace: Trace, cut: StepCut, host: HostActivity) -> Graph | None:
    """The graph of the recorded steps; None when there are fewer than two, or no operators."""
    steps = cut.steps
    if (
        steps.where != "host"
        or steps.num_seen < 2
        or not steps.is_step_interval
        or not trace.is_kind(Kind.OP).any()
    ):
        return None
    inside = (trace.start_ns >= cut.host_start[0]) & (trace.end_ns <= cut.host_end[-1])
    ops = np.flatnonzero(trace.is_kind(Kind.OP) & ~host_collectives(trace) & inside)
    work = subtract(union(trace.start_ns[ops], trace.end_ns[ops]), join(host.input, host.io))
    if len(work) < 2:
        return None
    step = np.searchsorted(cut.host_start, work.start, side="right") - 1
    last = last_step(step)
    num = int(np.searchsorted(step, last, side="right"))
    work, step = Intervals(work.start[:num], work.end[:num]), step[:num]
    ops = ops[np.argsort(trace.start_ns[ops], kind="stable")]
    first_op = ops[np.minimum(np.searchsorted(trace.start_ns[ops], work.start), len(ops) - 1)]
    end = np.append(work.start[1:], max(int(cut.host_end[last]), int(work.end[-1])))
    nothing = np.zeros(num)
    return Graph(
        call_event=first_op,
        call_step=step,
        call_start_ns=work.start,
        call_end_ns=end,
        call_parts=_parts(host, work, end),
        call_events={
            part: np.zeros(num, np.int64)
            for part in ("compile", "allocator", "input", "io", "gc", "work")
        },
        call_wait=np.arange(num),
        call_tail_ns=nothing,
        call_first=np.arange(num + 1),
        task_event=first_op,
        task_step=step,
        task_stream=np.zeros(num, np.int64),
        task_ns=(work.end - work.start).astype(np.float64),
        task_latency_ns=nothing,
        task_gap_ns=nothing,
        task_after=np.full(num, NONE, np.int64),
        task_lag_ns=nothing,
        backlog_ns=0.0,
        num_streams=1,
        num_steps=last + 1,
        on_host=True,
    )


def _parts(host: HostActivity, work: Intervals, end: Int64) -> dict[str, Float64]:
    """The host's time from each call to the next, by part, without operators."""
    start, taken = work.start, work
    parts: dict[str, Float64] = {part: np.zeros(len(start)) for part in HOST_PARTS}
    left: Float64 = ((end - start) - lengths_in(start, end, taken)).astype(np.float64)
    for part in SPLIT:
        mine = subtract(host.collective if part == "comms" else getattr(host, part), taken)
        parts[part] = lengths_in(start, end, mine).astype(np.float64)
        taken = join(taken, mine)
        left = left - parts[part]
    parts["work"] = np.maximum(left, 0.0)
    return parts


def fit_on_host(graph: Graph, step_ns: float | None, measured: Mapping[str, float]) -> Fitted:
    """The graph of the unprofiled run: `measured` parts as long as they were in it, a step, and all
    else longer or shorter by one factor.

    The profiler's cost lies inside the operators here, in proportion to how many there are.
    """
    graph = with_measured(graph, measured)
    if step_ns is None:
        return Fitted(
            graph=graph, step_interval_ns=play(graph).step_interval_ns, cost_ns=0.0, error=None
        )

    def is_short(factor: float) -> bool:
        return play(_scaled(graph, factor, measured)).step_interval_ns <= step_ns

    factor, _ = bisect(is_short, *SCALE_RANGE, 24, is_geometric=True)
    fitted = _scaled(graph, factor, measured)
    step_interval = play(fitted).step_interval_ns
    return Fitted(
        graph=fitted, step_interval_ns=step_interval, cost_ns=0.0, error=step_interval / step_ns - 1
    )


def with_measured(graph: Graph, measured: Mapping[str, float]) -> Graph:
    """Parts of the host's time stretched or shrunk to this much a step. One that not every recorded
    step has, such as a collection every tenth step, is put at each step's end; but a loader that
    was not recorded is not known to be this one."""
    parts = dict(graph.call_parts)
    for part, ns in measured.items():
        inside = graph.call_step >= 0
        totals = np.bincount(graph.call_step[inside], parts[part][inside], graph.num_steps)
        if part == "input" and totals.any():
            # The last step's batch may have been fetched before it, outside.
            parts[part] = parts[part] * (ns * max(graph.num_steps - 1, 1) / totals.sum())
        elif part != "input" and totals.all():
            parts[part] = parts[part] * (ns * graph.num_steps / totals.sum())
        elif part != "input":
            is_last = np.append(np.diff(graph.call_step) != 0, True)
            parts[part] = np.where(is_last, ns, 0.0)
    return replace(graph, call_parts=parts)


def _scaled(graph: Graph, factor: float, measured: Collection[str]) -> Graph:
    parts = {
        name: part if name in measured else part * factor for name, part in graph.call_parts.items()
    }
    return replace(graph, call_parts=parts, task_ns=graph.task_ns * factor)
