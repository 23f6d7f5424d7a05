"""Where the steps lie: told apart on the host, cut on the device.

The host runs ahead of the device, so its step windows say nothing about the step. A device event belongs to the step that
launched it; the step time is the distance between the ends of consecutive steps' work.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from stepscope.analyses.links import Links
from stepscope.core.facts import Steps
from stepscope.core.trace import NONE, Int64, Kind, Trace

PROFILER_STEP = re.compile(r"^ProfilerStep\s*#")
OPTIMIZER_STEP = re.compile(r"^Optimizer\.step#")
LIBRARY_MARK = re.compile(
    r"^(ProfilerStep|Optimizer\.|enumerate\(DataLoader\)|nccl:|gloo:|rccl:|FSDP::|DistributedDataParallel|FullyShardedDataParallel"
    r"|## Call CompiledFxGraph|Torch-Compiled Region|PyTorch Profiler|DataParallel|autograd::|aten::)"
)
"""Marks that libraries write: parts of a step, never the step itself."""

MIN_MARK_COVERAGE = 0.6
"""A user's mark is taken for the step when it repeats and this share of all launches happens inside it."""
MIN_PATTERN_MATCH = 0.9
"""Share of launches that must equal the launch one period later."""
MAX_RARE_NAMES = 0.1
"""Share of kernel names that may occur less often than the period repeats: a model's layers repeat too, its head does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCut:
    """The steps, and for each event of the trace the step it belongs to (NONE outside)."""

    steps: Steps
    step_of: Int64
    host_start: Int64
    host_end: Int64

    @property
    def host_window(self) -> tuple[int, int]:
        """When the host drove the measured windows: it runs ahead, so not when the device worked them off."""
        if len(self.host_start) == 0:
            return (0, 0)
        first = len(self.host_start) - len(self.steps.windows) if self.steps.where == "device" else 0
        first = min(max(first, 0), len(self.host_start) - 1)
        return int(self.host_start[first]), int(self.host_end[-1])


def cut_steps(trace: Trace, links: Links) -> StepCut:
    """Find the steps by the best evidence the trace has, and cut them where the work is."""
    work = np.flatnonzero(trace.device_work)
    on_device = len(work) > 0
    launch_time = _launch_times(trace, links, work) if on_device else _op_times(trace)
    source, edges, ends = _host_steps(trace, links, launch_time)
    step_of = np.full(len(trace), NONE, np.int64)
    if on_device:
        step_of[work] = _step_of_work(trace, links, work, launch_time, edges)
        windows, num_seen, is_pitch = _device_windows(trace, work, step_of, edges)
    else:
        step_of = _step_index(trace.start_ns, edges)
        windows, num_seen, is_pitch = _host_windows(edges, ends)
    if source == "whole trace":
        num_seen, is_pitch = (1 if windows else 0), False
    steps = Steps(
        source=source,
        where="device" if on_device else "host",
        num_seen=num_seen,
        windows=windows,
        is_pitch=is_pitch,
        host_ns=tuple((ends - edges).tolist()),
    )
    return StepCut(steps=steps, step_of=step_of, host_start=edges, host_end=ends)


def _launch_times(trace: Trace, links: Links, work: Int64) -> Int64:
    """When each piece of work was launched; when it ran, where its launch was not recorded."""
    launch = links.launch[work]
    return np.where(launch == NONE, trace.start_ns[work], trace.start_ns[np.maximum(launch, 0)])


def _op_times(trace: Trace) -> Int64:
    return trace.start_ns[trace.is_kind(Kind.OP)]


def _host_steps(trace: Trace, links: Links, launch_time: Int64) -> tuple[str, Int64, Int64]:
    """What tells the steps apart, and each step's start and end on the host."""
    marks = np.flatnonzero(trace.is_kind(Kind.MARK))
    names = [trace.names[code] for code in trace.name[marks].tolist()]
    profiler = marks[[PROFILER_STEP.match(name) is not None for name in names]] if names else marks
    if len(profiler):
        return "ProfilerStep", trace.start_ns[profiler], trace.end_ns[profiler]
    user = _user_mark(trace, links, marks, names, launch_time)
    if user is not None:
        return user
    optimizer = marks[[OPTIMIZER_STEP.match(name) is not None for name in names]] if names else marks
    optimizer = optimizer[_top_most(links, optimizer)]
    if len(optimizer) > 1:
        return "Optimizer.step", *_from_ends(trace, trace.end_ns[optimizer])
    period = _launch_pattern(trace)
    if period is not None:
        return "launch pattern", period, np.append(period[1:], _last_host_end(trace))
    return "whole trace", *_whole(trace)


def _top_most(links: Links, marks: Int64) -> Int64:
    """Which of these marks do not stand inside another of them."""
    return np.array([i for i, mark in enumerate(marks.tolist()) if links.parent[mark] not in marks], dtype=np.int64)


def _from_ends(trace: Trace, ends: Int64) -> tuple[Int64, Int64]:
    """Steps that end with these moments; the first begins with the recording."""
    first = int(trace.start_ns[0])
    return np.concatenate([[first], ends[:-1]]), ends


def _whole(trace: Trace) -> tuple[Int64, Int64]:
    if len(trace) == 0:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    return trace.start_ns[:1].copy(), np.array([_last_host_end(trace)], np.int64)


def _last_host_end(trace: Trace) -> int:
    return int(trace.end_ns.max())


def _user_mark(trace: Trace, links: Links, marks: Int64, names: list[str], launch_time: Int64) -> tuple[str, Int64, Int64] | None:
    """A mark of the user's that repeats, does not overlap itself and holds most launches; the one that holds most."""
    groups: dict[str, list[int]] = {}
    for mark, name in zip(marks.tolist(), names, strict=True):
        if not LIBRARY_MARK.match(name) and links.parent[mark] == NONE:
            groups.setdefault(re.sub(r"\d+", "#", name), []).append(mark)
    best: tuple[float, str, Int64] | None = None
    for name, members in groups.items():
        events = np.array(members, np.int64)
        start, end = trace.start_ns[events], trace.end_ns[events]
        if len(events) < 2 or bool((start[1:] < end[:-1]).any()) or len(launch_time) == 0:
            continue
        inside = np.searchsorted(start, launch_time, side="right") - 1
        share = float(((inside >= 0) & (launch_time < end[np.maximum(inside, 0)])).mean())
        if share >= MIN_MARK_COVERAGE and (best is None or share > best[0]):
            best = (share, name, events)
    if best is None:
        return None
    return f"mark {best[1]!r}", trace.start_ns[best[2]], trace.end_ns[best[2]]


def _launch_pattern(trace: Trace) -> Int64 | None:
    """Starts of a repeating sequence of kernels, as times; None when nothing repeats as a whole step would."""
    kernels = np.flatnonzero(trace.is_kind(Kind.KERNEL))
    names = trace.name[kernels]
    if len(names) < 8:
        return None
    codes, counts = np.unique(names, return_counts=True)
    for repeats in sorted(set(counts[(counts >= 2) & (counts <= 1000)].tolist()))[:20]:
        if float((counts < repeats).mean()) > MAX_RARE_NAMES:
            return None
        anchor = codes[counts == repeats][0]
        at = np.flatnonzero(names == anchor)
        period = int(np.median(np.diff(at)))
        if period < 4 or period * repeats < 0.8 * len(names):
            continue
        if float((names[:-period] == names[period:]).mean()) >= MIN_PATTERN_MATCH:
            return trace.start_ns[kernels[at]]
    return None


def _step_index(times: Int64, edges: Int64) -> Int64:
    """Which step each time falls in: from one step's start to the next one's."""
    return np.searchsorted(edges, times, side="right") - 1


def _step_of_work(trace: Trace, links: Links, work: Int64, launch_time: Int64, edges: Int64) -> Int64:
    """The step that launched each piece of work. Work whose launch was not recorded follows the one before it on its stream; what
    comes before all recorded launches there was launched before the recording."""
    step = _step_index(launch_time, edges)
    linked = links.launch[work] != NONE
    if not linked.any():
        return step
    order = np.lexsort((trace.start_ns[work], trace.stream[work], trace.device[work]))
    lane = np.stack([trace.device[work][order].astype(np.int64), trace.stream[work][order]])
    fresh = np.concatenate([[True], (lane[:, 1:] != lane[:, :-1]).any(axis=0)])
    position = np.arange(len(order))
    last_linked = np.maximum.accumulate(np.where(linked[order] | fresh, position, 0))
    result = np.empty(len(work), np.int64)
    source = order[last_linked]
    result[order] = np.where(linked[source], step[source], NONE)
    return result


def _device_windows(trace: Trace, work: Int64, step_of: Int64, edges: Int64) -> tuple[tuple[tuple[int, int], ...], int, bool]:
    """Windows between the ends of consecutive steps' work; with one step, all of it."""
    end, start, step = trace.end_ns[work], trace.start_ns[work], step_of[work]
    inside = step >= 0
    seen = np.unique(step[inside])
    if len(seen) == 0:
        return ((int(start.min()), int(end.max())),), 0, False
    last = np.full(int(seen[-1]) + 1, np.iinfo(np.int64).min, np.int64)
    np.maximum.at(last, step[inside], end[inside])
    finish = np.maximum.accumulate(last[seen])
    if len(seen) > 1:
        windows = tuple(zip(finish[:-1].tolist(), finish[1:].tolist(), strict=True))
        return windows, len(seen), True
    before = end[~inside]
    if len(before) and int(before.max()) < int(finish[0]):
        # Work of the step before was still running when the recording began: its end is the same point of the step before.
        return ((int(before.max()), int(finish[0])),), 1, True
    begin = min(int(start[inside].min()), int(edges[seen[0]]))
    return ((begin, int(finish[0])),), 1, False


def _host_windows(edges: Int64, ends: Int64) -> tuple[tuple[tuple[int, int], ...], int, bool]:
    """Without a device: from one step's start to the next one's; the last to its own end."""
    if len(edges) == 0:
        return (), 0, False
    stops = np.append(edges[1:], max(int(ends[-1]), int(edges[-1])))
    return tuple(zip(edges.tolist(), stops.tolist(), strict=True)), len(edges), len(edges) > 1
