"""How long a call takes: device events on a GPU, the host's clock on a CPU.

Calls rotate through copies of their tensors that together are larger than the device's cache, so
that none finds its inputs there. On a GPU a kernel that only waits holds the device while the calls
of a sample are queued: what is timed is the device, not the host that launches.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

SAMPLE_S = 1e-3
"""A sample has calls enough to last this long: shorter ones are the clock's own noise."""
MAX_QUEUED = 400
"""Launches behind a held device; it takes about a thousand before the host has to wait."""
MIN_SAMPLES, MAX_SAMPLES = 5, 30
MIN_LONG_SAMPLES, LONG_S = 3, 0.01
"""Samples of a call that takes so long: nothing but itself is in its way."""
CASE_S = 0.012
"""Spent on a case's samples, as far as a few of them fit into it."""
CYCLES_PER_S = 2e9
"""Cycles a second of a GPU, about: they tell for how long it is held."""
LONGEST_HOLD_S = 0.03
WARM_CALLS = 2
LAST_ROUNDS = 10

Call = Callable[[], object]


def summary(samples: Sequence[float], host: Sequence[float] = ()) -> dict[str, Any]:
    """Median, tenth and ninetieth percentile, in nanoseconds."""
    ordered = sorted(samples)
    last = len(ordered) - 1
    row = {
        "ns": median(ordered) * 1e9,
        "low_ns": ordered[round(0.1 * last)] * 1e9,
        "high_ns": ordered[round(0.9 * last)] * 1e9,
        "samples": len(ordered),
    }
    return {**row, "host_ns": median(host) * 1e9} if host else row


def _goes_on(num: int, once: float, spent_s: float, case_s: float) -> bool:
    """Whether a case of so many samples needs another."""
    least = MIN_LONG_SAMPLES if once > LONG_S else MIN_SAMPLES
    return num < least or (num < MAX_SAMPLES and spent_s < case_s)


class DeviceTimer:
    """Timer for calls that are queued on a GPU."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self._hold = getattr(torch.cuda, "_sleep", None)

    def time(self, calls: Sequence[Call], case_s: float = CASE_S) -> dict[str, Any]:
        """One call's time, from rounds over all of them."""
        calls[0]()
        once = self._sample(calls[:1], 1, 0.0)
        calls = calls[: max(int(case_s / once), 1)]
        for _ in range(WARM_CALLS):
            for call in calls:
                call()
        self.torch.cuda.synchronize()
        host = [self._launch_s(calls) for _ in range(MIN_LONG_SAMPLES)]
        queue_s = median(host)
        once = self._sample(calls, 1, queue_s)
        rounds = max(int(SAMPLE_S / max(once * len(calls), 1e-9)), 1)
        rounds = max(min(rounds, MAX_QUEUED // len(calls)), 1)
        samples: list[float] = []
        begun = time.perf_counter()
        while _goes_on(len(samples), once, time.perf_counter() - begun, case_s):
            samples.append(self._sample(calls, rounds, queue_s))
        return summary(samples, host)

    def _launch_s(self, calls: Sequence[Call]) -> float:
        """The host's time for one call while the device does not hold it up."""
        begun = time.perf_counter()
        for call in calls:
            call()
        spent = time.perf_counter() - begun
        self.torch.cuda.synchronize()
        return spent / len(calls)

    def _sample(self, calls: Sequence[Call], rounds: int, queue_s: float) -> float:
        cuda = self.torch.cuda
        start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        num = rounds * len(calls)
        if self._hold is not None:
            self._hold(int(min(1.5 * num * queue_s + 50e-6, LONGEST_HOLD_S) * CYCLES_PER_S))
        start.record()
        for _ in range(rounds):
            for call in calls:
                call()
        end.record()
        end.synchronize()
        return max(float(start.elapsed_time(end)) * 1e-3 / num, 1e-9)


class HostTimer:
    """Timer for calls whose work is done when they return."""

    def time(self, calls: Sequence[Call], case_s: float = CASE_S) -> dict[str, Any]:
        """One call's time, from rounds over all of them."""
        calls[0]()
        once = self._sample(calls[:1], 1)
        calls = calls[: max(int(case_s / once), 1)]
        once = self._sample(calls, 1)
        rounds = min(max(int(SAMPLE_S / max(once * len(calls), 1e-9)), 1), MAX_QUEUED)
        samples: list[float] = []
        begun = time.perf_counter()
        while _goes_on(len(samples), once, time.perf_counter() - begun, case_s):
            samples.append(self._sample(calls, rounds))
        return summary(samples)

    def _sample(self, calls: Sequence[Call], rounds: int) -> float:
        begun = time.perf_counter()
        for _ in range(rounds):
            for call in calls:
                call()
        return max((time.perf_counter() - begun) / (rounds * len(calls)), 1e-9)


def warm_up(torch: Any, device: str, warm_s: float) -> float:
    """Keep a GPU busy until its clocks have risen. Returns how much longer the slowest of the last
    rounds took than the quickest: of a device that somebody else uses, too, much."""
    if device == "cpu":
        return 1.0
    matrix = torch.randn(4096, 4096, device=device, dtype=torch.bfloat16)
    rounds: list[float] = []
    begun = time.perf_counter()
    while time.perf_counter() - begun < warm_s or len(rounds) < 2 * LAST_ROUNDS:
        start = time.perf_counter()
        for _ in range(20):
            torch.mm(matrix, matrix)
        torch.cuda.synchronize()
        rounds.append(time.perf_counter() - start)
    last = sorted(rounds[-LAST_ROUNDS:])
    return last[-2] / last[0]
