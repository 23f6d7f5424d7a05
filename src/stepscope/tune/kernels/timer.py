"""One sample of a call's time: by the device's events, or by the host's clock.

With warm caches or with cold ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

CYCLES_PER_S = 2e9
"""A GPU's clock, about: for how long it is kept busy while calls are queued behind."""
MAX_HOLD_S = 0.05
MAX_QUEUED = 100
"""Calls behind a hold; a GPU queues about a thousand launches before the host has to wait."""
COLD_CALLS = 20
"""Most calls of a sample with cold caches: each is flushed for and timed alone."""

Call = Callable[[], object]


class KernelTimer:
    """Times `inner` calls.

    `by` is device (the device alone, the host's part hidden) or call (one call after another).
    """

    def __init__(self, torch: Any, kind: str, cache_bytes: int, *, by: str, cold: bool) -> None:
        self._torch = torch
        self._on_gpu = kind == "cuda"
        self._by = by
        self._flush: Any = None
        if cold:
            device = "cuda" if self._on_gpu else "cpu"
            self._flush = torch.empty(
                max(2 * cache_bytes, 1 << 20), dtype=torch.int8, device=device
            )

    def sample(self, call: Call, inner: int) -> float:
        """Nanoseconds of one call."""
        if self._flush is not None:
            return self._cold(call, min(inner, COLD_CALLS))
        if self._on_gpu and self._by == "device":
            return self._held(call, min(inner, MAX_QUEUED))
        return self._called(call, inner)

    def _called(self, call: Call, inner: int) -> float:
        self._wait()
        start = time.perf_counter_ns()
        for _ in range(inner):
            call()
        self._wait()
        return max((time.perf_counter_ns() - start) / inner, 1.0)

    def _held(self, call: Call, inner: int) -> float:
        """The device waits in a kernel of its own while the calls are queued.

        The events then see them back to back.
        """
        cuda = self._torch.cuda
        start = time.perf_counter()
        call()
        queue_s = time.perf_counter() - start
        hold = getattr(cuda, "_sleep", None)
        first, last = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        cuda.synchronize()
        if hold is not None:
            hold(int(min(1.5 * inner * queue_s + 50e-6, MAX_HOLD_S) * CYCLES_PER_S))
        first.record()
        for _ in range(inner):
            call()
        last.record()
        last.synchronize()
        return max(float(first.elapsed_time(last)) * 1e6 / inner, 1.0)

    def _cold(self, call: Call, inner: int) -> float:
        """The mean of calls that each find their inputs out of the caches."""
        if not self._on_gpu:
            total = 0
            for _ in range(inner):
                self._flush.add_(1)
                start = time.perf_counter_ns()
                call()
                total += time.perf_counter_ns() - start
            return max(total / inner, 1.0)
        cuda = self._torch.cuda
        marks = [
            (cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)) for _ in range(inner)
        ]
        cuda.synchronize()
        for first, last in marks:
            self._flush.zero_()
            first.record()
            call()
            last.record()
        cuda.synchronize()
        return max(sum(float(first.elapsed_time(last)) for first, last in marks) * 1e6 / inner, 1.0)

    def _wait(self) -> None:
        if self._on_gpu:
            self._torch.cuda.synchronize()
