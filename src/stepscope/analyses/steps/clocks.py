"""Clocks that cannot be right: time that runs back, host and device that disagree, steps that are
unlike each other, work that is missing.

What can be seen: a host thread makes its calls in the order of their numbers; work begins after its
launch; a wait returns after the work that it waits for; steps resemble one another. In 110 recorded
runs no call began before the one numbered before it, no work before its launch, and a step that one
silence alone made half as long again was a loader's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from stepscope.analyses.graph_replays import KERNEL_LAUNCH, in_capture
from stepscope.analyses.grouping import Integers, distinct, is_among, matching
from stepscope.analyses.links import Links, match_ids
from stepscope.analyses.steps.windows import StepCut, step_numbers
from stepscope.core.numbers import ms_words
from stepscope.core.trace import (
    CLOCK_BACK,
    CLOCK_STOOD,
    CLOCKS_DIFFER,
    EVENTS_MISSING,
    NONE,
    Bool,
    Int64,
    Kind,
    Trace,
)

STEADY_NS = 50_000
"""Clocks that are right differ by less: recorders align them to within microseconds."""
DIFFERING_SHARE = 0.05
"""Share of linked work that begins before its launch from which it is the clocks, and no number
that was used again."""
LATE_SHARE = 0.5
"""Share of waits that must return before the work that they wait for has ended."""
MIN_WAITS = 3
MIN_STRETCH = 0.3
"""Share of a usual step below which a silence in one step alone is part of it."""
MIN_END = 0.1
"""Share of the last step from which a silence at its end counts: the step goes on without an
event."""
MAX_OF_GAP = 0.5
"""Share of a silence from which an event that reaches into it is taken to go through it."""
ALIKE = 0.25
"""Share of a usual step by which the rest of that step may differ from it."""
MISSING = 0.1
"""Share of a usual step's events that a step with such a silence must lack."""
UNLIKE = 10.0
"""Times a usual step, from which another is told, whatever it holds."""
LOST = 0.02
"""Share of the kernels launched in the steps from which their work is missing: none of 403
recordings lacks a single one."""
MAX_STRIDE = 4
"""Distance from one mark's number to the next; further apart they are not of the same one."""
SYNCHRONIZE = re.compile(r"^(cuda|hip|cu|musa)(Device|Stream|Ctx)Synchronize")
STREAM_SYNCHRONIZE = re.compile(r"^(cuda|hip|cu|musa)StreamSynchronize")
KNOWN_WAIT = re.compile(
    r"^enumerate\(|DataLoader|Synchronize|EventQuery|nccl|gloo|all_?reduce|all_?gather|barrier"
    r"|all_?to_?all|broadcast|c10d::|[Cc]heckpoint|save",
)


def clock_notes(trace: Trace, links: Links) -> tuple[str, ...]:
    """What clocks that cannot be right make of this recording: no step time or gain can be told."""
    notes = []
    back_ns = ran_back_ns(trace)
    if back_ns:
        notes.append(
            f"{CLOCK_BACK}: calls that were made later stand up to {ms_words(back_ns)} before the "
            "earlier ones"
        )
    apart_ns = apart_by_ns(trace, links)
    if apart_ns:
        which = "begins before it was launched" if apart_ns < 0 else "ends after it was waited for"
        notes.append(f"{CLOCKS_DIFFER}: work {which}, by up to {ms_words(abs(apart_ns))}")
    return tuple(notes)


def ran_back_ns(trace: Trace) -> int:
    """Nanoseconds by which time runs back: the longest way back from one call of a thread to the
    next, in the order of their numbers. 0 where it does not, or where only the numbers begin
    anew."""
    calls = _in_order(trace.is_kind(Kind.RUNTIME), trace.correlation, trace.thread)
    ops = _in_order(trace.is_kind(Kind.OP), trace.external, trace.thread)
    queue = trace.stream * (int(trace.device.max(initial=0)) + 2) + trace.device
    work = _in_order(trace.device_work, trace.correlation, queue)
    by_calls, by_ops = _way_back(trace, calls, trace.thread), _way_back(trace, ops, trace.thread)
    by_work = _way_back(trace, work, queue)
    if not by_calls or not len(ops):
        # The host may have been done when time ran back.
        return max(by_calls, by_work)
    # Numbers that begin anew do so for calls alone.
    return max(by_calls, by_ops) if by_ops else 0


def _in_order(mask: Bool, numbers: Int64, queue: Integers) -> Int64:
    """The numbered events of the mask, by queue and number."""
    events = np.flatnonzero(mask & (numbers > 0))
    of_queue = queue[events]
    if len(events) < 2 or ((of_queue == of_queue[0]).all() and _is_sorted(numbers[events])):
        return events
    return events[np.lexsort((numbers[events], of_queue))]


def _is_sorted(numbers: Int64) -> bool:
    return bool((np.diff(numbers) >= 0).all())


def _way_back(trace: Trace, events: Int64, queue: Integers) -> int:
    if len(events) < 2:
        return 0
    steps, of_queue = np.diff(trace.start_ns[events]), queue[events]
    back = -int(steps[of_queue[1:] == of_queue[:-1]].min(initial=0))
    return back if back > STEADY_NS else 0


def apart_by_ns(trace: Trace, links: Links) -> int:
    """How far the device's clock is ahead of the host's (negative: work begins before its launch)
    or behind it; 0 where nothing shows that it is."""
    work = np.flatnonzero(trace.device_work)
    calls = np.flatnonzero(trace.is_kind(Kind.RUNTIME) & (trace.correlation != NONE))
    if len(work) == 0 or len(calls) == 0:
        return 0
    launch = links.launch[work]
    if float((launch == NONE).mean()) > DIFFERING_SHARE:
        # Links drop work that is far too early, as if its number had been used again.
        numbers = np.sort(trace.correlation[calls])
        again = numbers[1:][numbers[1:] == numbers[:-1]]
        calls = calls[~is_among(trace.correlation[calls], again)]
        launch = match_ids(trace.correlation[work], trace.correlation[calls], calls)
    linked = work[launch != NONE]
    launch = launch[launch != NONE]
    latency = trace.start_ns[linked] - trace.start_ns[launch]
    early = latency[latency < -STEADY_NS]
    if len(early) > DIFFERING_SHARE * max(len(linked), 1):
        return int(early.min())
    return _late_ns(trace, linked, launch)


def _late_ns(trace: Trace, work: Int64, launch: Int64) -> int:
    """Nanoseconds by which work ends after a wait for it, where it does at most waits.

    A device is done when all its streams are. Which stream another wait is for is not recorded:
    the work of every stream must end after it.
    """
    waits = np.flatnonzero(trace.is_kind(Kind.RUNTIME) & matching(trace, SYNCHRONIZE))
    if len(work) == 0 or len(waits) < MIN_WAITS:
        return 0
    streams = distinct(trace.stream[work])
    ends = np.stack(
        [
            _ends_before(trace, work[at], launch[at], waits)
            for at in trace.stream[work] == streams[:, None]
        ]
    )
    of_one_stream = matching(trace, STREAM_SYNCHRONIZE)[waits]
    over = np.where(of_one_stream, ends.min(axis=0), ends.max(axis=0)) - trace.end_ns[waits]
    over = over[ends.max(axis=0) != NONE]
    late = over[over > STEADY_NS]
    return int(late.max()) if len(late) >= max(LATE_SHARE * len(over), MIN_WAITS) else 0


def _ends_before(trace: Trace, work: Int64, launch: Int64, waits: Int64) -> Int64:
    """When the work ends that each wait's thread launched last before it; NONE where it had
    launched none."""
    ends = np.full(len(waits), NONE, np.int64)
    for thread in distinct(trace.thread[waits]):
        mine = np.flatnonzero(trace.thread[launch] == thread)
        mine = mine[np.argsort(launch[mine], kind="stable")]
        of_thread = np.flatnonzero(trace.thread[waits] == thread)
        last = np.searchsorted(launch[mine], waits[of_thread]) - 1
        ends[of_thread[last >= 0]] = trace.end_ns[work[mine[last[last >= 0]]]]
    return ends


def unlike_note(cut: StepCut) -> tuple[str, ...]:
    """Steps of which one takes many times as long as the usual one."""
    intervals = sorted(cut.steps.step_intervals)
    if len(intervals) < 2 or not cut.steps.is_step_interval:
        return ()
    usual = intervals[(len(intervals) - 1) // 2]
    if intervals[-1] < UNLIKE * max(usual, 1):
        return ()
    span = f"{ms_words(intervals[0])} to {ms_words(intervals[-1])}"
    return (f"steps do not resemble one another ({span}): which is the usual one is not known",)


def lost_work_note(trace: Trace, links: Links, cut: StepCut) -> tuple[str, ...]:
    """Kernels that were launched in the steps and stand nowhere."""
    begin, end = cut.host_start.min(initial=0), cut.host_end.max(initial=0)
    calls = trace.is_kind(Kind.RUNTIME) & (trace.correlation != NONE)
    launches = calls & matching(trace, KERNEL_LAUNCH) & ~in_capture(trace)
    launches &= (trace.start_ns >= begin) & (trace.start_ns < end)
    # A call of the runtime makes one of the driver.
    launches &= (links.parent == NONE) | ~launches[np.maximum(links.parent, 0)]
    work = np.flatnonzero(trace.device_work)
    if not launches.any() or (trace.correlation[work] == NONE).any():
        return ()
    lost = launches & ~is_among(trace.correlation, trace.correlation[work])
    num, num_lost = int(launches.sum()), int(lost.sum())
    if num_lost <= max(LOST * num, 1):
        return ()
    lacking = f"{num_lost:,} of {num:,} kernels launched in the steps"
    return (f"{EVENTS_MISSING}: {lacking} are not on the device",)


def device_note(trace: Trace, links: Links, cut: StepCut) -> tuple[str, ...]:
    """A device that stood still in one step with work to do, or a kernel that took that much longer
    than all others of its name: as if its own clock had jumped. Or one that does so in all steps
    with all work: its clock is behind."""
    windows = cut.steps.windows
    intervals = cut.steps.step_intervals
    if not cut.steps.is_step_interval or len(windows) < 2 or cut.steps.where != "device":
        return ()
    idle = _idle_with_work_ns(trace, links, windows)
    soonest = _soonest_ns(trace, links, windows)
    if all(STEADY_NS < least <= most for least, most in zip(soonest, idle, strict=True)):
        after = f"{ms_words(min(soonest))} or more after its launch"
        return (f"{CLOCKS_DIFFER}: work begins {after}, on a device that had nothing else to do",)
    longest = int(np.argmax(intervals))
    usual = sorted(np.delete(intervals, longest).tolist())[(len(windows) - 2) // 2]
    over = intervals[longest] - usual
    if over < MIN_STRETCH * usual:
        return ()
    kernels = _longest_of_name(trace, windows)
    for found in (np.array(idle), *kernels):
        alone = int(found[longest] - np.delete(found, longest).max())
        if abs(alone - over) <= ALIKE * usual and alone > MIN_STRETCH * usual:
            longer = f"one of {len(windows)} steps is {ms_words(over)} longer than the others"
            return (f"{CLOCK_STOOD}: {longer}, for one silence or one kernel",)
    return ()


def _soonest_ns(trace: Trace, links: Links, windows: Sequence[tuple[int, int]]) -> list[int]:
    """The shortest time from a launch to its work in each window; 0 where none is known."""
    work = np.flatnonzero(trace.device_work & (links.launch != NONE))
    after = trace.start_ns[work] - trace.start_ns[links.launch[work]]
    bounds = np.searchsorted(trace.start_ns[work], np.array(windows))
    return [int(after[low:high].min()) if low < high else 0 for low, high in bounds.tolist()]


def _idle_with_work_ns(trace: Trace, links: Links, windows: Sequence[tuple[int, int]]) -> list[int]:
    """The longest time in each window in which the device idled with launched work to do."""
    work = np.flatnonzero(trace.device_work)
    if len(work) < 2:
        return [0] * len(windows)
    reach = np.maximum.accumulate(trace.end_ns[work])[:-1]
    launch, following = links.launch[work[1:]], trace.start_ns[work[1:]]
    launched = np.where(launch == NONE, following, trace.start_ns[np.maximum(launch, 0)])
    idle = following - np.maximum(reach, launched)
    bounds = np.searchsorted(following, np.array(windows))
    return [int(idle[low:high].max(initial=0)) for low, high in bounds.tolist()]


def _longest_of_name(trace: Trace, windows: Sequence[tuple[int, int]]) -> Iterator[Int64]:
    """Longest kernel in each window of the name of the kernel that takes longest, no collective."""
    bounds = np.searchsorted(trace.start_ns, np.array(windows))
    first, last = int(bounds[0, 0]), int(bounds[-1, 1])
    kernels = np.flatnonzero(trace.device_work[first:last]) + first
    kernels = kernels[~matching(trace, KNOWN_WAIT)[kernels]]
    if not len(kernels):
        return
    name = trace.name[kernels[np.argmax(trace.dur_ns[kernels])]]
    same = kernels[trace.name[kernels] == name]
    window = np.searchsorted(bounds[:, 1], same, side="right")
    most = np.zeros(len(windows), np.int64)
    np.maximum.at(most, np.minimum(window, len(windows) - 1), trace.dur_ns[same])
    yield most


def number_note(trace: Trace, cut: StepCut) -> tuple[str, ...]:
    """Steps whose marks are missing: between others two steps are taken for one, and so they are
    where the last has none."""
    numbers = step_numbers(trace, cut)[:-1]
    numbers = numbers[numbers != NONE]
    if not len(numbers) or (np.diff(numbers) > MAX_STRIDE).any():
        return ()
    lacking = int((np.diff(numbers) - 1).clip(0).sum())
    if lacking:
        return (f"{EVENTS_MISSING}: {lacking} steps between the others have no mark",)
    edges = int(cut.host_start[0]), int(cut.host_end.max())
    low, high = np.searchsorted(ops := trace.start_ns[trace.is_kind(Kind.OP)], edges)
    if len(ops) - high <= MISSING * (high - low) / len(numbers):
        return ()
    return (f"{EVENTS_MISSING}: {len(ops) - high} operators after the last step have no mark",)


def end_note(trace: Trace, cut: StepCut) -> tuple[str, ...]:
    """A last step that goes on for long after its last event, and has fewer than the others."""
    if cut.steps.source != "ProfilerStep":
        return ()
    begin, end = int(cut.host_start[-1]), int(cut.host_end[-1])
    last = int(trace.start_ns[np.searchsorted(trace.start_ns, end) - 1])
    if end - last < max(MIN_END * (end - begin), STEADY_NS) or is_known_wait(trace, last, end):
        return ()
    counts = np.diff(np.searchsorted(trace.start_ns, [*cut.host_start.tolist(), end]))
    if len(counts) > 1 and counts[-1] >= (1 - MISSING) * counts[:-1].min():
        return ()
    return (
        f"{EVENTS_MISSING}: the last step goes on for {ms_words(end - last)} after the last event",
    )


def is_known_wait(trace: Trace, start_ns: int, end_ns: int) -> bool:
    """Whether the host was seen to wait through all of it, or ranks for each other."""
    began = int(np.searchsorted(trace.start_ns, start_ns, side="right"))
    across = np.flatnonzero(trace.end_ns[:began] >= start_ns + MAX_OF_GAP * (end_ns - start_ns))
    return bool(matching(trace, KNOWN_WAIT)[across].any())
