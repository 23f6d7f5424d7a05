"""Silences that make one step unlike the others, or lie between two: a clock that jumped, a process
that stood still, events that were lost. They are left out, and said."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from msgspec import Struct
from msgspec.structs import replace as replace_struct

from stepscope.analyses.grouping import median
from stepscope.analyses.links import Links
from stepscope.analyses.steps.clocks import (
    ALIKE,
    MAX_OF_GAP,
    MIN_STRETCH,
    MISSING,
    STEADY_NS,
    is_known_wait,
)
from stepscope.analyses.steps.windows import StepCut, step_numbers
from stepscope.core.numbers import ms_words
from stepscope.core.trace import CLOCK_JUMPED, EVENTS_MISSING, NONE, Int64, Trace

FIRST_STRETCH = 1.0
"""MIN_STRETCH before the first whole step: the profiler has just begun."""
KNOWN_STRETCH = 4.0
"""MIN_STRETCH where the host was seen to wait for its loader, the device or other ranks."""
BETWEEN_NS = 1_000_000
"""Nanoseconds from one ProfilerStep to the next; 0.17 ms at most in 370 recordings."""
MIN_BETWEEN = 0.02
"""The same, as a share of a usual step."""
MAX_STRETCHES = 8


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
        over = f"{ms_words(stretch.over_ns)} in which nothing began"
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
            if is_known_wait(trace, start, end):
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
