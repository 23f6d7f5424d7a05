"""Clocks that cannot be right: time that jumps or runs back, host and device that disagree, events
that are missing for a stretch; and a step that one silence makes unlike the others.

What can be seen: a host thread makes its calls in the order of their numbers; work begins after its
launch; a wait returns after the work that it waits for; steps resemble one another. In 110 recorded
runs no call began before the one numbered before it, no work before its launch, and a step that one
silence alone made half as long again was a loader's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from msgspec import Struct
from msgspec.structs import replace as replace_struct

from stepscope.analyses.graph_replays import KERNEL_LAUNCH, in_capture
from stepscope.analyses.grouping import Integers, distinct, is_among, matching, median
from stepscope.analyses.links import Links, match_ids
from stepscope.analyses.steps.windows import StepCut, step_numbers
from stepscope.core.trace import (
    CLOCK_BACK,
    CLOCK_JUMPED,
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
FIRST_STRETCH = 1.0
"""The same, before the first whole step: the profiler has just begun."""
MIN_END = 0.1
"""Share of the last step from which a silence at its end counts: the step goes on without an
event."""
KNOWN_STRETCH = 4.0
"""The same, where the host was seen to wait for its loader, the device or other ranks."""
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
BETWEEN_NS = 1_000_000
"""Nanoseconds from one ProfilerStep to the next; 0.17 ms at most in 370 recordings."""
MIN_BETWEEN = 0.02
"""The same, as a share of a usual step."""
MAX_STRETCHES = 8
MAX_STRIDE = 4
"""Distance from one mark's number to the next; further apart they are not of the same one."""
SYNCHRONIZE = re.compile(r"^(cuda|hip|cu|musa)(Device|Stream|Ctx)Synchronize")
STREAM_SYNCHRONIZE = re.compile(r"^(cuda|hip|cu|musa)StreamSynchronize")
KNOWN_WAIT = re.compile(
    r"^enumerate\(|DataLoader|Synchronize|EventQuery|nccl|gloo|all_?reduce|all_?gather|barrier"
    r"|all_?to_?all|broadcast|c10d::|[Cc]heckpoint|save",
)


class Stretch(Struct, frozen=True, kw_only=True):
    """A stretch of one step in which nothing begins, as in no other step."""

    start_ns: int
    """When the device's work of before was done."""
    end_ns: int
    window: int
    """NONE: before the first."""
    usual_ns: int
    """Length of a step without the silence."""

    @property
    def over_ns(self) -> int:
        """Nanoseconds of what is left out."""
        return self.end_ns - self.start_ns


def clock_notes(trace: Trace, links: Links) -> tuple[str, ...]:
    """What clocks that cannot be right make of this recording: no step time or gain can be told."""
    notes = []
    back_ns = ran_back_ns(trace)
    if back_ns:
        notes.append(
            f"{CLOCK_BACK}: calls that were made later stand up to {_ms(back_ns)} before the "
            "earlier ones"
        )
    apart_ns = apart_by_ns(trace, links)
    if apart_ns:
        which = "begins before it was launched" if apart_ns < 0 else "ends after it was waited for"
        notes.append(f"{CLOCKS_DIFFER}: work {which}, by up to {_ms(abs(apart_ns))}")
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


def without_stretches(trace: Trace, links: Links, cut: StepCut) -> tuple[Trace, tuple[str, ...]]:
    """The recording without silences that make one step unlike the others, as if that time had not
    passed; and what to say of it, and of steps that are unlike each other still."""
    notes: list[str] = []
    between = [*_between_marks(trace, cut)]
    inside = [
        each
        for each in _stretches(trace, links, cut)
        if all(each.end_ns <= other.start_ns or other.end_ns <= each.start_ns for other in between)
    ]
    for stretch in sorted((*between, *inside), key=lambda each: -each.start_ns):
        over = f"{_ms(stretch.over_ns)} in which nothing began"
        if stretch in between:
            trace = _without(trace, stretch)
            notes.append(
                f"{CLOCK_JUMPED} or the process stood still: between two steps, where the profiler "
                f"alone runs, lie {over}: they are left out of step time and gains"
            )
            continue
        where = f"one of {len(cut.steps.windows)} steps has"
        if stretch.window == NONE:
            where = "the time before the first whole step has"
        if _lacks_events(trace, cut, stretch):
            notes.append(
                f"{EVENTS_MISSING}: {where} {over}, and fewer events than the others: what "
                "it did then is not known"
            )
        elif _is_longer(cut, stretch):
            trace = _without(trace, stretch)
            notes.append(
                f"{CLOCK_JUMPED} or the run stood still: {where} {over}, on host or device, as "
                "no other has: it is left out of step time and gains"
            )
    return trace, tuple(reversed(notes))


def unlike_note(cut: StepCut) -> tuple[str, ...]:
    """Steps of which one takes many times as long as the usual one."""
    intervals = sorted(cut.steps.step_intervals)
    if len(intervals) < 2 or not cut.steps.is_step_interval:
        return ()
    usual = intervals[(len(intervals) - 1) // 2]
    if intervals[-1] < UNLIKE * max(usual, 1):
        return ()
    span = f"{_ms(intervals[0])} to {_ms(intervals[-1])}"
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


def _ms(ns: int) -> str:
    return f"{ns / 1e6:,.0f} ms" if ns >= 10_000_000 else f"{ns / 1e6:.2g} ms"


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
        after = f"{_ms(min(soonest))} or more after its launch"
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
            longer = f"one of {len(windows)} steps is {_ms(over)} longer than the others"
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
    if end - last < max(MIN_END * (end - begin), STEADY_NS) or _is_known(trace, last, end):
        return ()
    counts = np.diff(np.searchsorted(trace.start_ns, [*cut.host_start.tolist(), end]))
    if len(counts) > 1 and counts[-1] >= (1 - MISSING) * counts[:-1].min():
        return ()
    return (f"{EVENTS_MISSING}: the last step goes on for {_ms(end - last)} after the last event",)


def _stretches(trace: Trace, links: Links, cut: StepCut) -> Iterator[Stretch]:
    """Silences of one window that no other window has: few are long enough to look at."""
    windows = cut.steps.windows
    if not cut.steps.is_step_interval or len(windows) < 2:
        return
    # The host is ahead: before the first window's work ends it is in those that follow.
    head = (int(min(cut.host_start[0], windows[0][0])), windows[0][0])
    gaps = [_longest_gaps(trace, low, high) for low, high in (*windows, head)]
    lengths = [each[0][1] - each[0][0] for each in gaps]
    for window, found in enumerate(gaps):
        others = [end - start for index, (start, end) in enumerate(windows) if index != window]
        usual = sorted(others)[(len(others) - 1) // 2]
        elsewhere = max(ns for index, ns in enumerate(lengths[:-1]) if index != window)
        is_head = window == len(windows)
        for start, end in found:
            least = MIN_STRETCH
            if is_head and not _has_work(trace, links, start, end):
                least = FIRST_STRETCH
            if is_head and not (~trace.device_work & (trace.start_ns >= end)).any():
                # The host is done: a device that is behind begins when it has done what it had.
                continue
            if end - start - elsewhere <= max(least * usual, STEADY_NS):
                continue
            if _is_known(trace, start, end):
                # The first batch, and a device that works off what was launched, take their time.
                least = math.inf if is_head else KNOWN_STRETCH
            if end - start - elsewhere > max(least * usual, STEADY_NS):
                yield Stretch(
                    start_ns=max(start + elsewhere, _device_done(trace, start, end)),
                    end_ns=end,
                    window=NONE if is_head else window,
                    usual_ns=usual,
                )


def _between_marks(trace: Trace, cut: StepCut) -> Iterator[Stretch]:
    """Silences between two ProfilerSteps, where none of the job's code runs. Where most of the
    steps are so far apart, the marks are of something else; of one silence alone that is not known
    where the device works all through it."""
    if cut.steps.source != "ProfilerStep" or len(cut.host_start) < 2:
        return
    usual = int(median(cut.host_end - cut.host_start))
    follows = np.flatnonzero(np.diff(step_numbers(trace, cut)[:-1]) == 1)
    apart = cut.host_start[follows + 1] - cut.host_end[follows]
    long = follows[apart >= max(BETWEEN_NS, MIN_BETWEEN * usual)]
    if 2 * len(long) > max(len(follows), 2):
        return
    for index in long.tolist():
        low, high = int(cut.host_end[index]), int(cut.host_start[index + 1])
        start, end = _longest_gaps(trace, low, high)[0]
        if len(follows) == 1 and _is_device_busy(trace, start, end):
            continue
        start = max(start, _device_done(trace, start, end))
        if end - start > MAX_OF_GAP * (high - low):
            yield Stretch(start_ns=start, end_ns=end, window=NONE, usual_ns=usual)


def _is_device_busy(trace: Trace, start_ns: int, end_ns: int) -> bool:
    """Whether work of the device runs through most of the gap."""
    began = int(np.searchsorted(trace.start_ns, start_ns, side="right"))
    ends = trace.end_ns[:began][trace.device_work[:began]]
    return bool((ends >= start_ns + MAX_OF_GAP * (end_ns - start_ns)).any())


def _has_work(trace: Trace, links: Links, start_ns: int, end_ns: int) -> bool:
    """Whether the device had begun work before the gap, and had more to do that was launched."""
    work = np.flatnonzero(trace.device_work)
    launch = links.launch[work[trace.start_ns[work] >= end_ns]]
    is_launched = trace.start_ns[launch[launch != NONE]] < start_ns
    return bool(is_launched.any() and len(work) and trace.start_ns[work[0]] <= start_ns)


def _longest_gaps(trace: Trace, low: int, high: int) -> list[tuple[int, int]]:
    """The longest stretches of a window in which no event begins, the longest first."""
    begin, end = np.searchsorted(trace.start_ns, (low, high))
    starts = np.concatenate([[low], trace.start_ns[begin:end], [max(low, high)]])
    longest = np.argsort(-np.diff(starts), kind="stable")[:MAX_STRETCHES]
    return [(int(starts[gap]), int(starts[gap + 1])) for gap in longest.tolist()]


def _device_done(trace: Trace, start_ns: int, end_ns: int) -> int:
    """When the device's work that ran at the start of the gap was done: later on, the gap is no
    one's."""
    began = int(np.searchsorted(trace.start_ns, start_ns, side="right"))
    ends = trace.end_ns[:began][trace.device_work[:began]]
    # What seems to run through most of it was made longer by the jump.
    short = ends < start_ns + MAX_OF_GAP * (end_ns - start_ns)
    return int(ends[short].max(initial=start_ns))


def _is_known(trace: Trace, start_ns: int, end_ns: int) -> bool:
    """Whether the host was seen to wait through all of it, or ranks for each other."""
    began = int(np.searchsorted(trace.start_ns, start_ns, side="right"))
    across = np.flatnonzero(trace.end_ns[:began] >= start_ns + MAX_OF_GAP * (end_ns - start_ns))
    return bool(matching(trace, KNOWN_WAIT)[across].any())


def _is_longer(cut: StepCut, stretch: Stretch) -> bool:
    """Whether the step is like the others but for the silence."""
    if stretch.window == NONE:
        return True
    start, end = cut.steps.windows[stretch.window]
    return abs(end - start - stretch.over_ns - stretch.usual_ns) <= ALIKE * stretch.usual_ns


def _lacks_events(trace: Trace, cut: StepCut, stretch: Stretch) -> bool:
    """Whether fewer events began in its step than in any other, which is as long."""
    if stretch.window == NONE:
        return False
    bounds = np.array(cut.steps.windows)
    counts = np.diff(np.searchsorted(trace.start_ns, bounds), axis=1)[:, 0]
    others = np.delete(counts, stretch.window)
    lengths = np.diff(bounds, axis=1)[:, 0]
    return bool(
        counts[stretch.window] < (1 - MISSING) * others.min()
        and abs(lengths[stretch.window] - median(np.delete(lengths, stretch.window)))
        <= ALIKE * stretch.usual_ns
    )


def _without(trace: Trace, stretch: Stretch) -> Trace:
    """What begins after the silence, earlier by its length. An event that ends in it keeps its
    length: a recorder that took the time before and after the clock jumped has the one, a recorder
    of durations the other."""

    def moved(times: Int64) -> Int64:
        earlier: Int64 = times - stretch.over_ns * (times >= stretch.end_ns)
        return earlier

    start = moved(trace.start_ns)
    is_across = (trace.start_ns < stretch.end_ns) & (trace.end_ns >= stretch.end_ns)
    is_across |= trace.device_work & (trace.end_ns > stretch.start_ns) & (start < stretch.start_ns)
    is_across &= trace.dur_ns >= stretch.over_ns
    memory = trace.memory
    if memory is not None:
        memory = replace_struct(memory, time_ns=moved(memory.time_ns))
    dur = trace.dur_ns - stretch.over_ns * is_across
    return replace(trace, start_ns=start, dur_ns=dur, memory=memory)
