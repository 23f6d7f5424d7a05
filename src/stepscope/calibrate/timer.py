"""How long one call takes: device events on a GPU, the host's clock on a CPU; the median of
repeats, with their spread.

A burst is too short for a device to run into its power limit; `sustained` repeats a call without
pause for as long as it takes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, Protocol

from stepscope.core.calibrated import Timing

MIN_REPEATS = 3
MAX_REPEATS = 30
MIN_SAMPLE_S = 500e-6
"""A sample is made of calls enough to last this long: shorter ones are the clock's own noise."""
MAX_INNER = 100
"""Calls in a sample. A GPU queues about a thousand launches before the host has to wait."""
CYCLES_PER_S = 2e9
"""A GPU's clock, about: for how long it is kept busy while calls are queued behind."""
MAX_HOLD_S = 0.05
SUSTAINED_SAMPLE_S = 0.02
"""Calls of a sustained rate are timed in samples of about this length,
with no pause between them."""


class Timer(Protocol):
    """Times calls, within about `budget_s` each."""

    def time(self, call: Callable[[], object], budget_s: float) -> Timing: ...

    def sustained(self, call: Callable[[], object], warm_s: float, for_s: float) -> Timing: ...

    def sample(self, call: Callable[[], object], inner: int, queue_s: float = 0.0) -> float: ...


def timing(samples: Sequence[float]) -> Timing:
    """Median, and the tenth and ninetieth percentile (nearest rank)."""
    assert samples, "nothing was timed"
    ordered = sorted(samples)
    last = len(ordered) - 1
    return Timing(
        seconds=median(ordered),
        low_s=ordered[round(0.1 * last)],
        high_s=ordered[round(0.9 * last)],
        repeats=len(ordered),
    )


def how_many(call_s: float, budget_s: float, most_inner: int = MAX_INNER) -> tuple[int, int]:
    """Calls in a sample, and samples, for a call that takes about so long."""
    call_s = max(call_s, 1e-9)
    inner = min(max(int(MIN_SAMPLE_S / call_s), 1), most_inner)
    return inner, min(max(int(budget_s / (inner * call_s)), MIN_REPEATS), MAX_REPEATS)


def calls_of_a_sample(call_s: float) -> int:
    """Calls of a sample of a sustained rate."""
    return min(max(int(SUSTAINED_SAMPLE_S / max(call_s, 1e-9)), 1), MAX_INNER)


class HostTimer:
    """Timer for work that is done when the call returns."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now

    def time(self, call: Callable[[], object], budget_s: float) -> Timing:
        call()
        inner, repeats = how_many(self.sample(call, 1), budget_s)
        return timing([self.sample(call, inner) for _ in range(repeats)])

    def sustained(self, call: Callable[[], object], warm_s: float, for_s: float) -> Timing:
        """One call among many, after `warm_s` of the same."""
        inner = calls_of_a_sample(self.sample(call, 1))
        start = self._now()
        while self._now() - start < warm_s:
            self.sample(call, inner)
        samples: list[float] = []
        start = self._now()
        while len(samples) < MIN_REPEATS or self._now() - start < for_s:
            samples.append(self.sample(call, inner))
        return timing(samples)

    def sample(self, call: Callable[[], object], inner: int, queue_s: float = 0.0) -> float:  # noqa: ARG002
        """Seconds of one call, from `inner` of them."""
        start = self._now()
        for _ in range(inner):
            call()
        return max((self._now() - start) / inner, 1e-9)


class DeviceTimer:
    """Timer for work that is queued on a GPU.

    The device is held by a kernel that only waits while the calls are queued, so that the events
    time the calls one after another on the device, and not the host that starts them.
    """

    def __init__(self, torch: Any, now: Callable[[], float] = time.perf_counter) -> None:
        self._torch = torch
        self._now = now
        self._hold = getattr(torch.cuda, "_sleep", None)

    def time(self, call: Callable[[], object], budget_s: float) -> Timing:
        cuda = self._torch.cuda
        for _ in range(3):
            call()
        cuda.synchronize()
        start = self._now()
        call()
        queue_s = self._now() - start
        cuda.synchronize()
        device_s = self.sample(call, 1, queue_s)
        # Calls that cannot be queued while the device is held would show the host's gaps.
        most = max(min(MAX_INNER, int(MAX_HOLD_S / 2 / max(queue_s, 1e-6))), 1)
        inner, repeats = how_many(device_s, budget_s, most)
        return timing([self.sample(call, inner, queue_s) for _ in range(repeats)])

    def sustained(self, call: Callable[[], object], warm_s: float, for_s: float) -> Timing:
        """One call among many, after `warm_s` of the same.

        A sample is always queued behind the one that runs.
        """
        cuda = self._torch.cuda
        call()
        inner = calls_of_a_sample(self.sample(call, 1))
        marks = [cuda.Event(enable_timing=True)]
        marks[0].record()
        start, first = self._now(), 0
        while (
            first == 0
            or len(marks) - 1 - first < MIN_REPEATS
            or self._now() - start < warm_s + for_s
        ):
            for _ in range(inner):
                call()
            marks.append(cuda.Event(enable_timing=True))
            marks[-1].record()
            marks[-2].synchronize()
            if first == 0 and self._now() - start >= warm_s:
                first = len(marks) - 1
        marks[-1].synchronize()
        pairs = zip(marks[first:-1], marks[first + 1 :], strict=True)
        return timing(
            [
                max(float(start_mark.elapsed_time(end_mark)) * 1e-3 / inner, 1e-9)
                for start_mark, end_mark in pairs
            ]
        )

    def sample(self, call: Callable[[], object], inner: int, queue_s: float = 0.0) -> float:
        """Seconds of one call, from `inner` of them.

        `queue_s` is what the host needs to queue one.
        """
        cuda = self._torch.cuda
        start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        cuda.synchronize()
        if self._hold is not None:
            self._hold(int(min(2 * inner * queue_s + 50e-6, MAX_HOLD_S) * CYCLES_PER_S))
        start.record()
        for _ in range(inner):
            call()
        end.record()
        end.synchronize()
        return max(float(start.elapsed_time(end)) * 1e-3 / inner, 1e-9)
