"""Counters that only grow, as growth per second."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from stepscope.capture import clocks


class CounterRates:
    """Remembers each counter's last value, and when that was."""

    def __init__(self, clock: Callable[[], int] = clocks.perf_counter_ns) -> None:
        self._clock = clock
        self._last: dict[str, tuple[int, float]] = {}

    def of(self, counters: dict[str, float]) -> dict[str, float]:
        """Growth per second since each counter was last given. One that is new, or began anew, is
        left out this time.

        {"rx": 100} then, a second later, {"rx": 150} -> {"rx": 50.0}
        """
        now = self._clock()
        rates = {}
        for name, value in counters.items():
            before = self._last.get(name)
            self._last[name] = (now, value)
            if before is not None and now > before[0] and value >= before[1]:
                rates[name] = round((value - before[1]) * 1e9 / (now - before[0]), 4)
        return rates

    def keep(self, names: Iterable[str]) -> None:
        """Forgets all counters but these: those of processes that have ended would pile up."""
        self._last = {name: self._last[name] for name in names if name in self._last}
