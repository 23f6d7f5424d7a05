"""Where the steps lie: detected on the host, cut on the device.

The host runs ahead of the device, so its step windows say nothing about the step. A device event
belongs to the step that launched it; the step time is the distance between the ends of consecutive
steps' work.
"""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct

from stepscope.analyses.grouping import distinct, grouped, matching, median
from stepscope.analyses.host.nesting import ancestor_with
from stepscope.analyses.links import Links
from stepscope.core.facts import Steps
from stepscope.core.trace import NONE, Bool, Int64, Kind, Trace

PROFILER_STEP = re.compile(r"^ProfilerStep\s*#")
STEP_NUMBER = re.compile(r"#\s*(\d{1,18})")
OPTIMIZER_STEP = re.compile(r"^Optimizer\.step#")
LIBRARY_MARK = re.compile(
    r"^(ProfilerStep|Optimizer\.|enumerate\((DataLoader|IterableDataset)\)|nccl:|gloo:|rccl:|FSDP::"
    r"|DistributedDataParallel|FullyShardedDataParallel"
    r"|## Call CompiledFxGraph|Torch-Compiled Region|PyTorch "
    r"Profiler|DataParallel|autograd::|aten::)"
)
"""Marks that libraries write: parts of a step, never the step itself."""

WHOLE_TRACE = "whole trace"
MIN_MARK_COVERAGE = 0.6
"""A user's mark is taken for the step when it repeats
and this share of all launches happens inside it."""
MIN_PATTERN_MATCH = 0.9
"""Share of launches that must equal the launch one period later."""
MIN_PATTERN_COVERAGE = 0.8
"""Share of all launches that the rounds must make up."""
MIN_PATTERN_KERNELS = 8
MIN_PERIOD = 4
MAX_PERIODS_TRIED = 20
MAX_RARE_NAMES = 0.1
"""Share of kernel names that may occur less often than the period repeats:
a model's layers repeat too, its head does not."""


class StepCut(Struct, frozen=True, kw_only=True):
    """The steps, and for each event of the trace the step it belongs to (NONE outside)."""

    steps: Steps
    step_of: Int64
    host_start: Int64
    host_end: Int64
    """When the host was in each step."""
    host_window: tuple[int, int]
    """When the host drove the measured windows:
    it runs ahead, so not when the device worked them off."""


class _HostSteps(Struct, frozen=True, kw_only=True):
    """How the steps were detected, and when the host was in each."""

    source: str
    start: Int64
    end: Int64


class _Windows(Struct, frozen=True, kw_only=True):
    """Windows on the timeline, and the step each one measures."""

    bounds: tuple[tuple[int, int], ...]
    step: tuple[int, ...]
    num_seen: int
    is_step_interval: bool


def cut_steps(trace: Trace, links: Links) -> StepCut:
    """Find the steps by the best evidence the trace has, and cut them where the work is."""
    work = np.flatnonzero(trace.device_work)
    on_device = len(work) > 0
    launch_time = (
        _launch_times(trace, links, work) if on_device else trace.start_ns[trace.is_kind(Kind.OP)]
    )
    host = _host_steps(trace, links, work, launch_time)
    step_of = np.full(len(trace), NONE, np.int64)
    if on_device:
        step_of[work] = _step_of_work(trace, links, work, launch_time, host.start)
        windows = _device_windows(trace, work, step_of, host.start)
    else:
        step_of = _step_index(trace.start_ns, host.start)
        windows = _host_windows(host)
    whole = host.source == WHOLE_TRACE
    steps = Steps(
        source=host.source,
        where="device" if on_device else "host",
        num_seen=min(windows.num_seen, 1) if whole else windows.num_seen,
        num_marked=len(host.start),
        windows=windows.bounds,
        is_step_interval=windows.is_step_interval and not whole,
        host_ns=tuple((host.end - host.start).tolist()),
    )
    return StepCut(
        steps=steps,
        step_of=step_of,
        host_start=host.start,
        host_end=host.end,
        host_window=_host_window(host, windows),
    )


def step_numbers(trace: Trace, cut: StepCut) -> Int64:
    """Number in each step's ProfilerStep mark; NONE where it has none, and last for what is in no
    step."""
    numbers = np.full(len(cut.host_start) + 1, NONE, np.int64)
    if cut.steps.source == "ProfilerStep":
        marks = np.flatnonzero(trace.is_kind(Kind.MARK) & matching(trace, PROFILER_STEP))
        matches = [STEP_NUMBER.search(trace.names[name]) for name in trace.name[marks].tolist()]
        numbers[:-1] = [NONE if match is None else int(match[1]) for match in matches]
    return numbers


def _host_window(host: _HostSteps, windows: _Windows) -> tuple[int, int]:
    if not windows.step:
        return (0, 0)
    return int(host.start[min(windows.step)]), int(host.end[max(windows.step)])


def _launch_times(trace: Trace, links: Links, work: Int64) -> Int64:
    """When each piece of work was launched; when it ran, where its launch was not recorded."""
    launch = links.launch[work]
    return np.where(launch == NONE, trace.start_ns[work], trace.start_ns[np.maximum(launch, 0)])


def _host_steps(trace: Trace, links: Links, work: Int64, launch_time: Int64) -> _HostSteps:
    """How the steps are detected, and each step's start and end on the host."""
    marks = trace.is_kind(Kind.MARK)
    profiler = np.flatnonzero(marks & matching(trace, PROFILER_STEP))
    if len(profiler):
        return _HostSteps(
            source="ProfilerStep", start=trace.start_ns[profiler], end=trace.end_ns[profiler]
        )
    user = _user_mark(trace, links, marks, launch_time)
    if user is not None:
        return user
    optimizer = _outer(links, marks & matching(trace, OPTIMIZER_STEP))
    if len(optimizer):
        # With several optimizers a step ends with the last of them.
        optimizer = optimizer[trace.name[optimizer] == trace.name[optimizer[-1]]]
    if len(optimizer) > 1:
        start, end = _from_ends(trace, trace.end_ns[optimizer])
        return _HostSteps(source="Optimizer.step", start=start, end=end)
    rounds = _launch_pattern(trace, work, launch_time)
    if rounds is not None:
        return _HostSteps(
            source="launch pattern",
            start=rounds,
            end=np.append(rounds[1:], int(trace.end_ns.max())),
        )
    events = np.flatnonzero(~trace.is_kind(Kind.OVERHEAD))
    end = np.array([int(trace.end_ns[events].max())] if len(events) else [], np.int64)
    return _HostSteps(source=WHOLE_TRACE, start=trace.start_ns[events[:1]], end=end)


def _outer(links: Links, mask: Bool) -> Int64:
    """The events of the mask that do not stand inside another of them."""
    events = np.flatnonzero(mask)
    outer: Int64 = events[ancestor_with(links.parent, links.parent[events], mask) == NONE]
    return outer


def _from_ends(trace: Trace, ends: Int64) -> tuple[Int64, Int64]:
    """Steps that end with these moments; the first begins with the recording."""
    first = int(trace.start_ns[0])
    return np.concatenate([[first], ends[:-1]]), ends


def _user_mark(trace: Trace, links: Links, marks: Bool, launch_time: Int64) -> _HostSteps | None:
    """A mark of the user's that repeats, does not overlap itself and holds most launches;
    the one that holds most."""
    candidates = _outer(links, marks)
    groups: dict[str, list[int]] = {}
    for code in distinct(trace.name[candidates]).tolist():
        if not LIBRARY_MARK.match(trace.names[code]):
            groups.setdefault(re.sub(r"\d+", "#", trace.names[code]), []).append(code)
    best: tuple[float, _HostSteps] | None = None
    for name, codes in groups.items():
        events = candidates[np.isin(trace.name[candidates], codes)]
        start, end = trace.start_ns[events], trace.end_ns[events]
        if len(events) < 2 or bool((start[1:] < end[:-1]).any()) or len(launch_time) == 0:
            continue
        inside = np.searchsorted(start, launch_time, side="right") - 1
        share = float(((inside >= 0) & (launch_time < end[np.maximum(inside, 0)])).mean())
        if share >= MIN_MARK_COVERAGE and (best is None or share > best[0]):
            best = (share, _HostSteps(source=f"mark {name!r}", start=start, end=end))
    return None if best is None else best[1]


def _launch_pattern(trace: Trace, work: Int64, launch_time: Int64) -> Int64 | None:
    """When each round of a repeating sequence of kernels was launched;
    None when nothing repeats as a whole step would."""
    kernel = trace.kind[work] == Kind.KERNEL if len(work) else np.zeros(0, np.bool_)
    if int(kernel.sum()) < MIN_PATTERN_KERNELS:
        return None
    order = np.argsort(launch_time[kernel], kind="stable")
    names = trace.name[work[kernel]][order]
    codes, counts = np.unique(names, return_counts=True)
    for repeats in sorted(set(counts[counts >= 2].tolist()))[:MAX_PERIODS_TRIED]:
        if float((counts < repeats).mean()) > MAX_RARE_NAMES:
            return None
        occurrences = np.flatnonzero(names == codes[counts == repeats][0])
        period = int(median(np.diff(occurrences)))
        if period < MIN_PERIOD or period * repeats < MIN_PATTERN_COVERAGE * len(names):
            continue
        if float((names[:-period] == names[period:]).mean()) >= MIN_PATTERN_MATCH:
            start = _whole_rounds(trace, work, launch_time, int(codes[counts == repeats][0]))
            return start if len(start) > 1 else None
    return None


def _whole_rounds(trace: Trace, work: Int64, launch_time: Int64, anchor: int) -> Int64:
    """When each round's first work was launched, copies too;
    `anchor` is a kernel's name that each round has once.

    A recording ends with a step's last launch, so rounds are counted from its end: back by a
    period, to where the names of the last few launches stand again. What is left over at the
    beginning is part of a step that began before.
    """
    order = np.argsort(launch_time, kind="stable")
    names, times = trace.name[work][order], launch_time[order]
    period = int(median(np.diff(np.flatnonzero(names == anchor))))
    last, slack = len(names), max(period // 20, MIN_PERIOD)
    tail = names[last - MIN_PERIOD :]
    begins: list[int] = []
    while last >= period - slack and last > 0:
        expected = last - period
        near = sorted(
            range(max(expected - slack, MIN_PERIOD), expected + slack + 1),
            key=lambda i: abs(i - expected),
        )
        begin = next(
            (i for i in near if bool((names[i - MIN_PERIOD : i] == tail).all())), max(expected, 0)
        )
        begins.append(0 if expected <= slack and begin <= slack else begin)
        last = begins[-1]
    return times[begins[::-1]]


def _step_index(times: Int64, edges: Int64) -> Int64:
    """Index of the step that each time falls in: from one step's start to the next one's."""
    return np.searchsorted(edges, times, side="right") - 1


def _step_of_work(
    trace: Trace, links: Links, work: Int64, launch_time: Int64, edges: Int64
) -> Int64:
    """The step that launched each piece of work. Work whose launch was not recorded follows the one
    before it on its stream; what comes before all recorded launches there was launched before the
    recording."""
    step = _step_index(launch_time, edges)
    linked = links.launch[work] != NONE
    if not linked.any():
        return step
    order = np.lexsort((trace.start_ns[work], trace.stream[work], trace.device[work]))
    queue = np.stack([trace.device[work][order].astype(np.int64), trace.stream[work][order]])
    fresh = np.concatenate([[True], (queue[:, 1:] != queue[:, :-1]).any(axis=0)])
    position = np.arange(len(order))
    last_linked = np.maximum.accumulate(np.where(linked[order] | fresh, position, 0))
    result = np.empty(len(work), np.int64)
    source = order[last_linked]
    result[order] = np.where(linked[source], step[source], NONE)
    return result


def _device_windows(trace: Trace, work: Int64, step_of: Int64, edges: Int64) -> _Windows:
    """Windows between the ends of consecutive steps' work; with one step, all of it."""
    end, start, step = trace.end_ns[work], trace.start_ns[work], step_of[work]
    inside = step >= 0
    order, begins = grouped(step[inside])
    seen = step[inside][order[begins]]
    if len(seen) == 0:
        return _Windows(
            bounds=((int(start.min()), int(end.max())),),
            step=(),
            num_seen=0,
            is_step_interval=False,
        )
    finish = np.maximum.accumulate(np.maximum.reduceat(end[inside][order], begins))
    following = np.flatnonzero(np.diff(seen) == 1)
    if len(following):
        bounds = tuple(zip(finish[following].tolist(), finish[following + 1].tolist(), strict=True))
        return _Windows(
            bounds=bounds,
            step=tuple(seen[following + 1].tolist()),
            num_seen=len(seen),
            is_step_interval=True,
        )
    before = end[~inside]
    first, final = int(seen[0]), int(seen[-1])
    if len(seen) == 1 and len(before) and int(before.max()) < int(finish[0]):
        # Work of the step before was still running when the recording began:
        # its end is the same point of the step before.
        return _Windows(
            bounds=((int(before.max()), int(finish[0])),),
            step=(first,),
            num_seen=1,
            is_step_interval=True,
        )
    begin = min(int(start[inside].min()), int(edges[first]))
    return _Windows(
        bounds=((begin, int(finish[-1])),),
        step=tuple(range(first, final + 1)),
        num_seen=len(seen),
        is_step_interval=False,
    )


def _host_windows(host: _HostSteps) -> _Windows:
    """Windows without a device: from the same point of one step to that of the next. A ProfilerStep
    mark ends where the next one begins, so its last one is whole too."""
    n = len(host.start)
    if n == 0:
        return _Windows(bounds=(), step=(), num_seen=0, is_step_interval=False)
    if n == 1 or host.source == "ProfilerStep":
        stops = np.append(host.start[1:], max(int(host.end[-1]), int(host.start[-1])))
        bounds = tuple(zip(host.start.tolist(), stops.tolist(), strict=True))
        return _Windows(bounds=bounds, step=tuple(range(n)), num_seen=n, is_step_interval=n > 1)
    points = host.end if host.source == "Optimizer.step" else host.start
    bounds = tuple(zip(points[:-1].tolist(), points[1:].tolist(), strict=True))
    first = 1 if host.source == "Optimizer.step" else 0
    return _Windows(
        bounds=bounds, step=tuple(range(first, first + n - 1)), num_seen=n, is_step_interval=True
    )
