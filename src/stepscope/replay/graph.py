"""The recorded steps as a graph of tasks that can be simulated.

The host is one sequence of *calls* that touch the device: launches and waits, in the order they
were made, whichever thread made them (autograd's thread works while the main one waits for it).
Between two calls the host does something that takes time. Each launch puts *tasks* on the device's
streams; a task begins when it has been launched, its stream is free, and what it waits for on
another stream is done.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np
from msgspec import Struct

from stepscope.analyses.checkpoints import TO_HOST
from stepscope.analyses.grouping import distinct, is_among, matching, median
from stepscope.analyses.host.activity import HostActivity
from stepscope.analyses.intervals import (
    Intervals,
    contains,
    empty,
    join,
    lengths_in,
    subtract,
    union,
)
from stepscope.analyses.links import Links
from stepscope.analyses.steps.windows import StepCut
from stepscope.core.trace import HOST_RANGES, NONE, Bool, Float64, Int64, Kind, Trace
from stepscope.replay.constraints import QUEUED_NS, read_constraints

HOST_PARTS = (
    "input", "allocator", "compile", "io", "gc", "transfer", "comms", "operators", "work",
)  # fmt: skip
"""What the host's time between two calls is spent on: its loader, the allocator, the compiler,
saving or loading, the garbage collector, feeding a copy from memory that is not pinned,
a collective it carries out itself (gloo); `work` is all the rest: operators, Python, the calls
themselves."""

MAX_TASKS = 24_000
"""Steps are left off the end until no more tasks than this are replayed; two are always kept."""

SLOW_COPY_NS = 100_000
"""A copy's call takes microseconds; one that takes longer moves the bytes itself."""
FULL_QUEUE = 500
"""Launches in flight from which the driver may make
the host wait (CUDA's queue holds about a thousand)."""
CALL_WEIGHT = 2
"""What recording a runtime call costs the host, in operators: 2.2 to 3.6 us against 1.4 us (one
H200's host, torch 2.11, loops of views, sums, layers and optimizers timed with and without the
profiler, with shapes)."""
LIGHT_CALL_NS = 1_000
"""A runtime call shorter than that (an error looked up, an event recorded, an attribute asked for)
puts nothing on the device, and recording it costs next to nothing."""
LONG_LAUNCH = 3.0
"""Times the usual launch, from which one that found the
queue full is taken to have waited for room in it."""
MAX_QUEUED = 4096
"""Tasks before a wait, among which the one it waits for is sought."""
USUAL_LAUNCH_NS = 10_000
"""The host's time in a launch, where too few were recorded with room in the queue to measure it."""
LAUNCH = re.compile(r"LaunchKernel")
FREE_CALL = re.compile(r"^(cuda|hip)Free$|^cuMemFree(_v2)?$")
"""Memory goes back to the driver when all that was launched is done."""
BLOCKING_SHARE = 0.5
"""Share of launches that wait for their kernel from which all are made to."""


Columns = tuple[Int64 | Float64, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """Calls in host order (`call_*`), tasks in launch order (`task_*`).
    Times in nanoseconds; a Change returns another Graph."""

    call_event: Int64
    """The trace's event, a runtime call."""
    call_step: Int64
    call_start_ns: Int64
    call_end_ns: Int64
    """Recorded time to the start of the next call, from the start of this one."""
    call_parts: dict[str, Float64]
    """Host's time by part of HOST_PARTS, from the start of each call to the next, waits left
    out."""
    call_events: dict[str, Int64]
    """Operators that were recorded of the host in that time, by part: each cost the profiler's own
    time too."""
    call_wait: Int64
    """The task whose end this call waits for; NONE: it does not wait."""
    call_tail_ns: Float64
    """How long after that end the host goes on."""
    call_first: Int64
    """The first task of the call; tasks of call i are [call_first[i], call_first[i + 1])."""

    task_event: Int64
    task_step: Int64
    task_stream: Int64
    """Streams numbered from 0."""
    task_ns: Float64
    task_latency_ns: Float64
    """Time from the start of its call to its start, on an idle device."""
    task_gap_ns: Float64
    """Time from the end of the one before on its stream to its start."""
    task_after: Int64
    """A task of another stream it waits for; NONE: none."""
    task_lag_ns: Float64
    """How long after that one's end it begins, at the earliest."""
    backlog_ns: float
    """How long the device was busy at first with work from before the recording."""

    num_streams: int
    num_steps: int
    on_host: bool = False
    """Whether nothing ran on a device: the tasks are the host's own operators, or collectives that
    it carries out, and it goes on when those that it needs are done."""
    plays: list[tuple[Columns, Float64]] = field(default_factory=list, repr=False, compare=False)
    """When the tasks of this graph, and of those it was changed to, ended in the simulation,
    by the columns that decide it."""

    def __len__(self) -> int:
        return len(self.task_event)

    def of_trace(self, trace: Trace) -> Trace:
        """The part of the trace that it was made of: what began before its steps were over."""
        return _began_by(trace, int(self.call_end_ns.max()), self.call_event, self.task_event)

    @property
    def has_step_length(self) -> bool:
        """Whether two steps have work in them:
        without, the distance from one to the next is not known."""
        return len(distinct(self.task_step)) > 1

    @property
    def call_ns(self) -> Float64:
        """The host's time per call, all parts."""
        first, *others = (self.call_parts[part] for part in HOST_PARTS)
        total: Float64 = first.copy()
        for part in others:
            total += part
        return total

    def self_check(self) -> None:
        assert len(self.call_first) == len(self.call_event) + 1
        assert bool((np.diff(self.call_first) >= 0).all())
        assert int(self.call_first[-1]) == len(self.task_event)
        assert all(bool((part >= 0).all()) for part in self.call_parts.values())
        after = self.task_after
        assert bool((after < np.arange(len(after))).all()), "a task waits for a later one"
        waits = self.call_wait
        assert bool((waits < self.call_first[1:]).all()), "a call waits for work not yet launched"


def build(
    trace: Trace, links: Links, cut: StepCut, host: HostActivity, collective: Bool
) -> Graph | None:
    """The graph of all recorded steps;
    None when no two of them follow one another, or no launch was recorded."""
    if cut.steps.where != "device" or cut.steps.num_seen < 2 or not cut.steps.is_step_interval:
        return None
    tasks = np.flatnonzero(trace.device_work & (links.launch != NONE) & (cut.step_of >= 0))
    tasks = tasks[trace.kind[links.launch[tasks]] == Kind.RUNTIME]
    tasks = tasks[cut.step_of[tasks] <= last_step(cut.step_of[tasks])]
    if len(distinct(cut.step_of[tasks])) < 2:
        return None
    last = int(cut.step_of[tasks].max())
    host_window = int(cut.host_start[0]), int(cut.host_end[last])
    waits = _waiting_calls(trace, links, host, host_window)
    calls = distinct(np.concatenate([links.launch[tasks], waits]))
    tasks = tasks[np.lexsort((trace.start_ns[tasks], links.launch[tasks]))]
    first = np.searchsorted(np.searchsorted(calls, links.launch[tasks]), np.arange(len(calls) + 1))
    trace = _began_by(trace, host_window[1], calls, tasks)
    names, stream = np.unique(trace.stream[tasks], return_inverse=True)
    queues = trace.device[tasks].astype(np.int64) * len(names) + stream
    streams, stream = np.unique(queues, return_inverse=True)
    wait, tail = _wait_targets(trace, tasks, first, calls, waits)
    wait = np.where(wait == NONE, _feeding_targets(trace, tasks, stream, first, calls), wait)
    start = trace.start_ns[calls]
    end = np.append(start[1:], max(host_window[1], int(start[-1])))
    constraints = read_constraints(
        trace, links, tasks, stream, (trace.kind[tasks] == Kind.KERNEL) & ~collective[tasks]
    )
    return Graph(
        call_event=calls,
        call_step=np.searchsorted(cut.host_start, start, side="right") - 1,
        call_start_ns=start,
        call_end_ns=end,
        call_parts=_host_parts(
            trace,
            links,
            host,
            _Calls(calls=calls, start=start, end=end, wait=wait, tail=tail),
            tasks,
        ),
        call_events=_recorded_events(trace, host, start, end),
        call_wait=wait,
        call_tail_ns=tail,
        call_first=first,
        task_event=tasks,
        task_step=cut.step_of[tasks],
        task_stream=stream,
        task_ns=trace.dur_ns[tasks].astype(np.float64),
        task_latency_ns=constraints.latency_ns,
        task_gap_ns=constraints.gap_ns,
        task_after=constraints.after,
        task_lag_ns=constraints.lag_ns,
        backlog_ns=constraints.backlog_ns,
        num_streams=len(streams),
        num_steps=last + 1,
    )


def blocking_launches(trace: Trace, graph: Graph) -> Intervals:
    """When the host stood in a launch call while its own kernel ran, where most launches do
    that."""
    launches = np.flatnonzero(
        matching(trace, LAUNCH)[graph.call_event] & (np.diff(graph.call_first) == 1)
    )
    kernel = graph.task_event[graph.call_first[launches]]
    end = trace.end_ns[graph.call_event[launches]]
    blocks = end >= trace.end_ns[kernel]
    if blocks.sum() < BLOCKING_SHARE * max(len(launches), 1):
        return empty()
    return union(trace.start_ns[kernel[blocks]], end[blocks])


def _began_by(trace: Trace, time_ns: int, *events: Int64) -> Trace:
    """The part of the trace that began by then, and no less than these events."""
    num_began = int(np.searchsorted(trace.start_ns, time_ns, side="right"))
    last = np.concatenate(events).max(initial=NONE)
    return trace.first(max(num_began, int(last) + 1))


class _Calls(Struct, frozen=True, kw_only=True):
    calls: Int64
    start: Int64
    end: Int64
    wait: Int64
    tail: Float64


def last_step(steps: Int64) -> int:
    """The last step to replay: as many as MAX_TASKS allows, and two at least."""
    if len(steps) == 0:
        return NONE
    counts = np.cumsum(np.bincount(steps))
    enough = int(np.searchsorted(counts, MAX_TASKS, side="right")) - 1
    two = int(distinct(steps)[:2].max())
    return max(enough, two)


def _waiting_calls(
    trace: Trace, links: Links, host: HostActivity, window: tuple[int, int]
) -> Int64:
    """Calls that held the host until the device was done, inside the window."""
    # The host waits for what it fetches; a copy to the device only keeps it busy (part `transfer`).
    to_host = host.blocking_copy & matching(trace, TO_HOST)
    blocking = links.launch[np.flatnonzero(to_host)]
    frees = trace.is_kind(Kind.RUNTIME) & host.driving[: len(trace)] & matching(trace, FREE_CALL)
    syncs = np.flatnonzero(host.sync_call | frees)
    low, high = window
    calls = distinct(np.concatenate([syncs, blocking[blocking != NONE]]))
    start = trace.start_ns[calls]
    inside: Int64 = calls[(start >= low) & (start < high)]
    return inside


def _wait_targets(
    trace: Trace, tasks: Int64, first: Int64, calls: Int64, waits: Int64
) -> tuple[Int64, Float64]:
    """Last task to end before each waiting call returned, of those launched by then, and the time
    from there on."""
    target = np.full(len(calls), NONE, np.int64)
    tail = np.zeros(len(calls))
    ends, waiting = trace.end_ns[tasks], np.searchsorted(calls, waits)
    returned, began = trace.end_ns[waits], trace.start_ns[waits]
    best = _last_done(ends, first[waiting + 1], returned)
    ended = ends[best]
    # A call that frees memory is long by itself.
    is_long = (trace.dur_ns[waits] >= QUEUED_NS * 10) & ~matching(trace, FREE_CALL)[waits]
    is_held = (ended > began) | is_long
    held = np.flatnonzero((best != NONE) & is_held)
    target[waiting[held]] = best[held]
    tail[waiting[held]] = (returned - np.maximum(began, ended))[held]
    return target, tail


def _last_done(ends: Int64, launched: Int64, returned: Int64) -> Int64:
    """Last task to end by the time in `returned`, of those up to each of `launched`; NONE where
    none did."""
    low = np.maximum(launched - MAX_QUEUED, 0)
    if bool((ends[1:] >= ends[:-1]).all()):
        last = np.minimum(np.searchsorted(ends, returned, side="right"), launched) - 1
        first = np.maximum(np.searchsorted(ends, ends[last]), low)
        return np.where(last >= low, first, NONE)
    best = np.full(len(launched), NONE, np.int64)
    for wait, (begin, end) in enumerate(zip(low.tolist(), launched.tolist(), strict=True)):
        done = ends[begin:end]
        seen = np.flatnonzero(done <= returned[wait])
        if len(seen):
            best[wait] = begin + int(seen[np.argmax(done[seen])])
    return best


def _feeding_targets(
    trace: Trace, tasks: Int64, stream: Int64, first: Int64, calls: Int64
) -> Int64:
    """Task before the copy, for each call that copies from memory that is not pinned and found its
    stream busy: the host stands still until that ends, and only then moves bytes."""
    target = np.full(len(calls), NONE, np.int64)
    slow = (trace.kind[tasks] == Kind.MEMCPY) & ~matching(trace, TO_HOST)[tasks]
    call_of = np.repeat(np.arange(len(calls)), np.diff(first))
    slow &= trace.dur_ns[calls[call_of]] > SLOW_COPY_NS
    for task in np.flatnonzero(slow).tolist():
        call = int(call_of[task])
        before = np.flatnonzero(stream[: first[call]] == stream[task])
        if len(before) == 0:
            continue
        end = int(trace.end_ns[tasks[before[-1]]])
        if trace.start_ns[calls[call]] < end <= trace.start_ns[tasks[task]]:
            target[call] = before[-1]
    return target


def _host_parts(
    trace: Trace, links: Links, host: HostActivity, calls: _Calls, tasks: Int64
) -> dict[str, Float64]:
    """The host's time from each call to the next, by part,
    without what it spent waiting for the device."""
    queue = _queue(trace, links, calls, tasks)
    # When the host stood still for the device: in waits until their target ended, and in launches
    # that found the queue full.
    waits = np.flatnonzero(calls.wait != NONE)
    began = calls.start[waits]
    target = np.maximum(trace.end_ns[tasks[calls.wait[waits]]], began)
    stuck = calls.calls[queue.full]
    stood = trace.start_ns[stuck] + queue.usual_ns
    taken = union(np.concatenate([began, stood]), np.concatenate([target, trace.end_ns[stuck]]))
    waited = lengths_in(calls.start, calls.end, taken)
    feeding = _feeding_time(trace, links, calls, queue.full, tasks)
    parts: dict[str, Float64] = {}
    own = {"transfer": feeding, "comms": subtract(host.collective, host.at_work)}
    for part in ("compile", "allocator", "input", "io", "gc", "transfer", "comms"):
        mine = subtract(own[part] if part in own else getattr(host, part), taken)
        parts[part] = lengths_in(calls.start, calls.end, mine).astype(np.float64)
        taken = join(taken, mine)
    tail = np.where(calls.wait != NONE, calls.tail, 0.0)
    work = (calls.end - calls.start) - waited - np.sum(list(parts.values()), axis=0) - tail
    parts["work"] = np.maximum(work, 0.0)
    parts["operators"] = np.zeros(len(work))
    return parts


def recorded_weights(trace: Trace, host: HostActivity) -> tuple[Int64, Int64]:
    """When each event of the host began, and what recording it cost, in operators: a runtime call
    weighs CALL_WEIGHT, but for one that is over at once."""
    recorded = np.flatnonzero(trace.is_kind(*HOST_RANGES) & host.driving[: len(trace)])
    of_call = np.where(trace.dur_ns[recorded] < LIGHT_CALL_NS, 0, CALL_WEIGHT)
    weight: Int64 = np.where(trace.kind[recorded] == Kind.RUNTIME, of_call, 1)
    return trace.start_ns[recorded], weight


def _recorded_events(
    trace: Trace, host: HostActivity, start: Int64, end: Int64
) -> dict[str, Int64]:
    """What was recorded of the host from each call to the next, by the part it began in."""
    times, weight = recorded_weights(trace, host)
    first, last = np.searchsorted(times, start), np.searchsorted(times, end)
    left = np.ones(len(times), np.bool_)
    counts: dict[str, Int64] = {}
    for part in ("compile", "allocator", "input", "io", "gc", "work"):
        mine = left if part == "work" else left & contains(getattr(host, part), times)
        left = left & ~mine
        total = np.concatenate([[0], np.cumsum(weight * mine)])
        counts[part] = total[last] - total[first]
    return counts


class _Launches(Struct, frozen=True, kw_only=True):
    """What the calls say of the device's queue."""

    full: Bool
    """Took long because the queue had no room."""
    usual_ns: int
    """What a launch takes that finds room."""


def _queue(trace: Trace, links: Links, calls: _Calls, tasks: Int64) -> _Launches:
    """Launches that waited for room in the device's queue.

    Work queued before the recording began is not in it, so what is pending follows from how long
    the launched work waited: so many of the tasks that the device gets done in that time lay before
    it.
    """
    start, launched = trace.start_ns[tasks], np.searchsorted(calls.calls, links.launch[tasks])
    task_interval = max(float(trace.end_ns[tasks].max() - start.min()) / len(tasks), 1.0)
    behind = np.zeros(len(calls.calls))
    np.maximum.at(behind, launched, (start - calls.start[launched]).astype(np.float64))
    dur, launches = trace.dur_ns[calls.calls], np.zeros(len(calls.calls), np.bool_)
    launches[launched] = True
    crowded = (behind / task_interval > FULL_QUEUE) & launches & (calls.wait == NONE)
    with_room = dur[launches & ~crowded & (calls.wait == NONE)]
    usual = int(median(with_room)) if len(with_room) > len(dur) // 20 else USUAL_LAUNCH_NS
    return _Launches(full=crowded & (dur > LONG_LAUNCH * usual), usual_ns=usual)


def _feeding_time(trace: Trace, links: Links, calls: _Calls, full: Bool, tasks: Int64) -> Intervals:
    """When the host was inside a copy's call that took long:
    it moves the bytes itself, as from memory that is not pinned."""
    fed = (trace.kind[tasks] == Kind.MEMCPY) & ~matching(trace, TO_HOST)[tasks]
    copies = is_among(calls.calls, links.launch[tasks[fed]])
    slow = calls.calls[copies & ~full & (trace.dur_ns[calls.calls] > SLOW_COPY_NS)]
    return union(trace.start_ns[slow], trace.end_ns[slow])
