"""The children of this process: loader workers above all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stepscope.capture import clocks
from stepscope.capture.counters.host import SELDOM, TOP, read_all, read_io, read_stat
from stepscope.capture.counters.rates import CounterRates

MAX_CHILDREN = 128


class ChildCounters:
    """Cores that children use.

    A loader worker near one core has no room left; the busiest child says so.
    """

    def __init__(self, root: Path = TOP, clock: Callable[[], int] = clocks.perf_counter_ns) -> None:
        self.notes: list[str] = []
        self._proc = f"{root}/proc/"
        self._rates = CounterRates(clock)
        self._children: set[int] = set()
        self._num_taken = 0
        self.take()

    def take(self) -> dict[str, Any]:
        # Any thread may have children, but it is the main one that makes workers: the others are
        # asked seldom.
        self._look(every_thread=self._num_taken % SELDOM == 0)
        self._num_taken += 1
        counters: dict[str, float] = {}
        private_bytes = 0
        for child in sorted(self._children)[:MAX_CHILDREN]:
            folder = f"{self._proc}{child}"
            try:
                cpu_s, parent, _ = read_stat(folder + "/stat")
            except (OSError, IndexError, ValueError):
                parent = -1
            if parent != os.getpid():
                # It has ended, and its number may be somebody else's by now.
                self._children.discard(child)
                continue
            counters[f"{child} cores"] = cpu_s
            private_bytes += _private_bytes(folder)
            counters |= {f"{child} {name}": value for name, value in read_io(folder).items()}
        rates = self._rates.of(counters)
        self._rates.keep(counters)
        return self._summed(rates) | {"children_private_bytes": private_bytes}

    def _look(self, *, every_thread: bool) -> None:
        tasks = self._proc + "self/task"
        threads = os.listdir(tasks) if every_thread else [str(os.getpid())]
        for thread in threads:
            try:
                words = read_all(f"{tasks}/{thread}/children").split()
            except OSError:
                # The thread has ended, or this kernel does not list children.
                if thread == str(os.getpid()):
                    raise
                continue
            self._children.update(map(int, words))

    def _summed(self, rates: dict[str, float]) -> dict[str, Any]:
        sample: dict[str, Any] = {"num_children": len(self._children)}
        sums: dict[str, list[float]] = {}
        for name, rate in rates.items():
            sums.setdefault(name.partition(" ")[2], []).append(rate)
        cores = sums.pop("cores", None)
        if cores:
            sample |= {"children_cores": sum(cores), "busiest_child_cores": max(cores)}
        return sample | {f"children_{name}": sum(values) for name, values in sums.items()}


def _private_bytes(folder: str) -> int:
    """Bytes of its memory that it does not share; 0 where that cannot be read."""
    try:
        resident, shared = map(int, read_all(f"{folder}/statm").split()[1:3])
    except (OSError, ValueError):
        return 0
    return max(0, resident - shared) * os.sysconf("SC_PAGE_SIZE")
