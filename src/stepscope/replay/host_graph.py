"""The graph of a run without a device:
its operators are the work, and the host waits for each of them.

Every stretch of operators is a call that launches one task and waits for it. What lies between two
stretches is the host's own time: its loader, a save, Python. Collectives that the host carries out
are in gloo_graph.py, which ties ranks together.

    main thread   [ops ]  python  [ops ]  loader  [ops ]

The steps of a job without a device, as a graph:
the host's own work, and the collectives that its threads carry out (gloo).

A collective is the only task there is. The host hands it over (`c10d::allreduce_`), a worker thread
carries it out (`gloo:all_reduce`), and at some point the host stands still until it is done. That
standing still is recorded by nothing: it is a gap between two operators that ends as a collective
does.

    main thread    [op][c10d][op]............[op]     the gap is a wait: it ends with the collective
    worker               [gloo:all_reduce....]
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np
from msgspec import Struct

from stepscope.analyses.grouping import distinct, matching, median
from stepscope.analyses.host.activity import HostActivity
from stepscope.analyses.intervals import Intervals, join, lengths_in, subtract, union
from stepscope.analyses.links import host_collectives
from stepscope.analyses.rank_context import RankContext
from stepscope.analyses.steps.partition import host_work
from stepscope.analyses.steps.windows import StepCut
from stepscope.core.trace import NONE, Float64, Int64, Kind, Trace
from stepscope.replay.graph import HOST_PARTS, Graph, last_step
from stepscope.replay.profiler_cost import Fitted, cost_of_event_ns, without_cost_ns
from stepscope.replay.resources import TaskKinds
from stepscope.replay.simulate import bisect, play

SCALE_RANGE = (0.02, 50.0)
MIN_HOLD_UP_NS = 500_000
"""Another thread that gets the core keeps it about as long at least (Linux: 0.7 ms and more, for
threads alike)."""
SLICE_NS = 3_000_000
"""Time that a thread keeps its core where others want it (Linux: 0.7 to 6 ms)."""
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


def without_recording(graph: Graph, trace: Trace) -> Graph:
    """Operators without what recording cost them, by how many there are inside of each: a step of
    small ones is lengthened most."""
    starts = np.sort(trace.start_ns[trace.is_kind(Kind.OP)])
    begun = graph.call_start_ns
    events = np.searchsorted(starts, begun + graph.task_ns.astype(np.int64)) - np.searchsorted(
        starts, begun
    )
    middle_ns = max(median(graph.task_ns / np.maximum(events, 1)), 1.0)
    left_ns = without_cost_ns(graph.task_ns, events, cost_of_event_ns(middle_ns), middle_ns)
    return replace(graph, task_ns=left_ns)


def without_hold_ups(graph: Graph, name: Int64, share: float, *, sleeps: bool) -> Graph:
    """Graph of what recurs in a busy machine's steps: whoever takes the core away does so anywhere.
    Each operator, and the host's work after it, takes what it does in all steps, at its place among
    those of its name. An operator that is longer than a thread keeps its core was held up in all of
    them, for `share` of the time; so was what is no operator, where the host never `sleeps`.
    `name`: of each task."""
    step = graph.task_step
    both = name * (int(name.max(initial=0)) + 2) + np.append(name[1:], NONE)
    work = graph.call_parts["work"].copy()
    # What precedes a step's first operator stands with the last one of the step before, and is not
    # in the last step.
    between = np.append(np.diff(step) != 0, False)
    within = ~between
    within[-1:] = False
    # Between two of the same names; of a pair that not every step has, after one of that name.
    for inside, alike in ((within, both), (within, name), (between, np.zeros_like(name))):
        work[inside] = _recurring(work[inside], alike[inside], step[inside])
    return replace(
        graph,
        task_ns=_own(_recurring(graph.task_ns, name, step), share),
        call_parts=graph.call_parts | {"work": work if sleeps else _own(work, share)},
    )


def _own(ns: Float64, share: float) -> Float64:
    own: Float64 = np.maximum(np.minimum(ns, SLICE_NS), ns * (1.0 - share))
    return own


def _recurring(ns: Float64, name: Int64, step: Int64) -> Float64:
    """Where steps have unlike numbers of a name, the longest of one is compared with the longest of
    the others, and so on."""
    steps, of_step = np.unique(step, return_inverse=True)
    _, of_name = np.unique(name, return_inverse=True)
    count = np.zeros((int(of_name.max(initial=0)) + 1, len(steps)), np.int64)
    np.add.at(count, (of_name, of_step), 1)
    is_even = (count == count[:, :1]).all(axis=1)[of_name]
    order = np.lexsort((np.where(is_even, np.arange(len(ns)), -ns), of_step, of_name))
    is_first = np.diff(of_name[order] * len(steps) + of_step[order], prepend=NONE) != 0
    place = np.arange(len(ns))
    rank = place - np.maximum.accumulate(np.where(is_first, place, 0))
    _, alike = np.unique(np.stack((of_name[order], rank)), axis=1, return_inverse=True)
    alike = alike.reshape(-1)
    least = np.full(len(ns), np.inf)
    np.minimum.at(least, alike, ns[order])
    is_in_all = np.bincount(alike, minlength=len(ns)) == len(steps)
    sure = np.where(is_in_all, least, np.inf)[alike]
    kept: Float64 = ns.copy()
    kept[order] = np.where(ns[order] - sure > MIN_HOLD_UP_NS, sure, ns[order])
    return kept


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
        return play(with_pace(graph, factor, measured)).step_interval_ns <= step_ns

    factor, _ = bisect(is_short, *SCALE_RANGE, 24, is_geometric=True)
    fitted = with_pace(graph, factor, measured)
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
            # At either end a step's batch may have been fetched outside, or partly so.
            whole = np.sort(totals)[min(1, len(totals) - 1) :]
            parts[part] = parts[part] * (ns / whole.mean())
        elif part != "input" and totals.all():
            parts[part] = parts[part] * (ns * graph.num_steps / totals.sum())
        elif part != "input":
            is_last = np.append(np.diff(graph.call_step) != 0, True)
            parts[part] = np.where(is_last, ns, 0.0)
    return replace(graph, call_parts=parts)


def with_pace(graph: Graph, factor: float, measured: Collection[str] = ()) -> Graph:
    """All that the host does but what was measured, so much longer or shorter."""
    parts = {
        name: part if name in measured else part * factor for name, part in graph.call_parts.items()
    }
    return replace(
        graph,
        call_parts=parts,
        call_tail_ns=graph.call_tail_ns * factor,
        task_ns=graph.task_ns * factor,
        task_latency_ns=graph.task_latency_ns * factor,
    )


HANDED_OVER = re.compile(r"^c10d::")
NEAR_NS, NEAR_SHARE = 2_000_000, 0.1
"""A gap that ends this near to the end of a collective, or within this share of its own length, was
a wait for it: the host is woken a little later, and the worker's range is closed a little after it
has said that it is done."""
MIN_GAP_NS = 200_000
"""Shorter gaps are Python between two operators."""


class _Calls(Struct, frozen=True, kw_only=True):
    """Where the host hands a collective over or waits for one, in its order."""

    start: Int64
    resumed: Int64
    """When it went on: at once, or after the wait."""
    task: Int64
    """Handed over here; NONE for a wait."""
    wait: Int64
    """Waited for here; NONE for a launch."""


def build_host(context: RankContext) -> Graph | None:
    """The graph of all recorded steps of a job without a device;
    None where one has, or where no two steps or no collective were recorded."""
    trace, cut = context.trace, context.cut
    if cut.steps.where != "host" or len(cut.host_start) < 2 or bool(trace.device_work.any()):
        return None
    tasks, launch = handed_over(context)
    step = np.searchsorted(cut.host_start, trace.start_ns[tasks], side="right") - 1
    if len(distinct(step)) < 2:
        return None
    calls = _calls(context, tasks, launch)
    end = np.append(calls.start[1:], max(int(cut.host_end[-1]), int(calls.resumed[-1])))
    waits = calls.wait != NONE
    target = tasks[np.maximum(calls.wait, 0)]
    _, stream = np.unique(trace.thread[tasks], return_inverse=True)
    nothing = np.zeros(len(tasks))
    return Graph(
        call_event=np.where(waits, target, tasks[np.maximum(calls.task, 0)]),
        call_step=np.maximum(np.searchsorted(cut.host_start, calls.start, side="right") - 1, 0),
        call_start_ns=calls.start,
        call_end_ns=end,
        call_parts=_gloo_parts(context, np.minimum(calls.resumed, end), end),
        call_events=_events(context, calls.start, end),
        call_wait=calls.wait,
        call_tail_ns=np.where(waits, np.maximum(calls.resumed - trace.end_ns[target], 0), 0).astype(
            np.float64
        ),
        call_first=np.concatenate(([0], np.cumsum(~waits))),
        task_event=tasks,
        task_step=step,
        task_stream=stream.reshape(-1),
        task_ns=trace.dur_ns[tasks].astype(np.float64),
        task_latency_ns=np.maximum(trace.start_ns[tasks] - launch, 0).astype(np.float64),
        task_gap_ns=nothing,
        task_after=np.full(len(tasks), NONE, np.int64),
        task_lag_ns=nothing,
        backlog_ns=0.0,
        num_streams=int(stream.max()) + 1,
        num_steps=len(cut.host_start),
        on_host=True,
    )


def _calls(context: RankContext, tasks: Int64, launch: Int64) -> _Calls:
    begun, ended, target = _waits(context, tasks, launch)
    start = np.concatenate((launch, begun))
    order = np.argsort(start, kind="stable")
    return _Calls(
        start=start[order],
        resumed=np.concatenate((launch, ended))[order],
        task=np.concatenate((np.arange(len(tasks)), np.full(len(begun), NONE)))[order],
        wait=np.concatenate((np.full(len(tasks), NONE), target))[order],
    )


def host_kinds(graph: Graph) -> TaskKinds:
    """All tasks are communication."""
    none = np.zeros(len(graph), np.bool_)
    return TaskKinds(transfer=none, comms=~none, arithmetic=none, memory=none)


def handed_over(context: RankContext) -> tuple[Int64, Int64]:
    """The collectives inside the steps, and when the host asked for each: in the order they were
    asked for, and before they began; else as it began."""
    trace = context.trace
    tasks = np.flatnonzero(host_collectives(trace) & (trace.start_ns >= context.cut.host_start[0]))
    tasks = tasks[np.argsort(trace.start_ns[tasks], kind="stable")]
    asked = np.flatnonzero(
        trace.is_kind(Kind.OP) & matching(trace, HANDED_OVER) & context.host.driving
    )
    waiting = deque(np.sort(trace.start_ns[asked]).tolist())
    begun = trace.start_ns[tasks].tolist()
    while waiting and waiting[0] < int(context.cut.host_start[0]):
        waiting.popleft()
    launch = np.array(
        [waiting.popleft() if waiting and waiting[0] <= start else start for start in begun],
        np.int64,
    )
    order = np.argsort(launch, kind="stable")
    return tasks[order], launch[order]


def _waits(context: RankContext, tasks: Int64, launch: Int64) -> tuple[Int64, Int64, Int64]:
    """When the host stood still for a collective, when it went on, and for which."""
    trace, cut = context.trace, context.cut
    whole = union(cut.host_start[:1], cut.host_end[-1:])
    gaps = subtract(whole, _at_work(trace, context))
    ends = trace.end_ns[tasks]
    begun, ended, target = [], [], []
    for low, high in zip(gaps.start.tolist(), gaps.end.tolist(), strict=True):
        near = max(NEAR_NS, NEAR_SHARE * (high - low))
        open_ = np.flatnonzero((launch < low) & (ends > low) & (np.abs(ends - high) <= near))
        if high - low >= MIN_GAP_NS and len(open_):
            begun.append(low)
            ended.append(high)
            target.append(int(open_[np.argmin(np.abs(ends[open_] - high))]))
    return np.array(begun, np.int64), np.array(ended, np.int64), np.array(target, np.int64)


def _at_work(trace: Trace, context: RankContext) -> Intervals:
    """Operators of the driving threads;
    ranges around them say nothing of whether the host stood still inside."""
    ops = trace.is_kind(Kind.OP) & context.host.driving & ~host_collectives(trace)
    return union(trace.start_ns[ops], trace.end_ns[ops])


def _gloo_parts(context: RankContext, start: Int64, end: Int64) -> dict[str, Float64]:
    """The host's time from when each call lets it go on to the next call, by part."""
    parts = {part: np.zeros(len(start)) for part in HOST_PARTS}
    taken = np.zeros(len(start))
    operators = host_work(context.trace, context.host, int(context.cut.host_end[-1]))
    for part in ("compile", "input", "io", "gc", "operators"):
        when = operators if part == "operators" else getattr(context.host, part)
        parts[part] = np.minimum(lengths_in(start, end, when), end - start - taken).astype(
            np.float64
        )
        taken = taken + parts[part]
    parts["work"] = (end - start) - taken
    return parts


def _events(context: RankContext, start: Int64, end: Int64) -> dict[str, Int64]:
    trace = context.trace
    times = np.sort(trace.start_ns[trace.is_kind(Kind.OP, Kind.MARK) & context.host.driving])
    counts = np.searchsorted(times, end) - np.searchsorted(times, start)
    return {
        part: counts if part == "operators" else np.zeros_like(counts)
        for part in ("compile", "allocator", "input", "io", "gc", "operators", "work")
    }
