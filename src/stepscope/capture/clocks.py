"""Python's clocks, as they are when torch is imported: the job may put others in their place, which
count their calls or give so many answers and no more."""

from __future__ import annotations

from time import monotonic, perf_counter_ns, sleep, thread_time_ns, time_ns

__all__ = ["monotonic", "perf_counter_ns", "sleep", "thread_time_ns", "time_ns"]
