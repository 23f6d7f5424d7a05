"""Where the training thread is while a step takes much longer than those before it."""

from __future__ import annotations

import statistics
import sys
import threading
from collections import Counter, deque

from stepscope.capture import clocks
from stepscope.capture.caller import calling_line

RECENT = 64
MIN_RECENT = 8
TIMES, MIN_NS = 3, 50_000_000
"""Length from which a step is looked at: times the median step, and nanoseconds at least."""
MAX_OF_STEP, MAX_OF_RUN = 3, 1_000
"""Looks: an evaluation may take hours."""


class SlowStep:
    """Asked once a second by the writer's thread; made in the one that trains."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._lengths: deque[int] = deque(maxlen=RECENT)
        self._looks: Counter[int] = Counter()

    @property
    def is_in_its_thread(self) -> bool:
        return threading.get_ident() == self._thread

    def add(self, dur_ns: int) -> None:
        """A step is over."""
        self._lengths.append(dur_ns)

    def line(self, step: int, since_ns: int) -> str | None:
        """Line of the training code, where the step that runs since then is slow."""
        running = clocks.perf_counter_ns() - since_ns
        if running < MIN_NS or len(self._lengths) < MIN_RECENT:
            return None
        if running < TIMES * statistics.median(self._lengths):
            return None
        if self._looks[step] >= MAX_OF_STEP or self._looks.total() >= MAX_OF_RUN:
            return None
        self._looks[step] += 1
        frame = sys._current_frames().get(self._thread)  # noqa: SLF001 - the only way to it
        return None if frame is None else calling_line(frame)
