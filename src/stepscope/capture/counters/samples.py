"""Counters of the device and the host, once a second."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from stepscope.capture import clocks
from stepscope.capture.counters.children import ChildCounters
from stepscope.capture.counters.host import (
    TOP,
    FabricCounters,
    MachineCounters,
    NetworkCounters,
    ProcessCounters,
    ThreadCounters,
    ThrottleCounters,
    read_all,
)
from stepscope.capture.counters.torch_devices import (
    AllocatorCounters,
    DeviceCounters,
    DynamoCounters,
)
from stepscope.protocol.control_group import memory_group

RECLAIMABLE = (b"inactive_file", b"total_inactive_file")
"""Cache of files that the kernel drops before it ends a process; the second counts a group of
version 1 with its children."""


class MemoryLeft:
    """What the process may still take of the host's memory before a limit ends it: of the control
    group, whose limit its processes share, and of this process's address space."""

    def __init__(self, root: Path = TOP) -> None:
        self.notes: list[str] = []
        self._statm = f"{root}/proc/self/statm"
        self._group = memory_group(root)

    def take(self) -> dict[str, Any]:
        return self._of_group() | self._of_address_space()

    def _of_group(self) -> dict[str, int]:
        if self._group is None:
            return {}
        limit, used, kinds = self._group
        words = read_all(str(kinds)).split()
        sizes = dict(zip(words[::2], words[1::2], strict=False))
        reclaimable = max(int(sizes.get(name, 0)) for name in RECLAIMABLE)
        left = limit - int(read_all(str(used))) + reclaimable
        return {"cgroup_memory_left_bytes": max(left, 0)}

    def _of_address_space(self) -> dict[str, int]:
        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit == resource.RLIM_INFINITY:
            return {}
        held = int(read_all(self._statm).split(None, 1)[0]) * os.sysconf("SC_PAGE_SIZE")
        return {"address_space_left_bytes": max(limit - held, 0)}


class Source(Protocol):
    """One thing that can be asked.

    It is made once; `notes` gets a line for each value that it gave up.
    """

    notes: list[str]

    def take(self) -> dict[str, Any]: ...


SOURCES: tuple[Callable[[], Source], ...] = (
    ProcessCounters,
    ThreadCounters,
    ChildCounters,
    MachineCounters,
    NetworkCounters,
    ThrottleCounters,
    MemoryLeft,
    FabricCounters,
    AllocatorCounters,
    DeviceCounters,
    DynamoCounters,
)


class Sampler:
    """Takes one sample after the other; what this machine does not report is not in them.

    A source that fails is dropped for good, and the sample has a line about it under `notes`.
    """

    def __init__(self, sources: tuple[Callable[[], Source], ...] = SOURCES) -> None:
        self._make = sources
        self._pid = 0
        self._notes: list[str] = []
        self._sources: list[Source] = []
        self._start()

    def take(self) -> dict[str, Any]:
        if os.getpid() != self._pid:
            # After a fork the counters are another process's, and the driver's handles are not
            # ours.
            self._start()
        begun, begun_cpu = clocks.perf_counter_ns(), clocks.thread_time_ns()
        sample: dict[str, Any] = {}
        for source in list(self._sources):
            try:
                sample.update(source.take())
            except Exception as problem:  # noqa: BLE001 - part of the boundary: the next second must not bring it again
                self._sources.remove(source)
                self._drop(type(source).__name__, problem)
            self._notes += source.notes
            source.notes.clear()
        if self._notes:
            sample["notes"], self._notes = self._notes, []
        sample["sample_wall_s"] = (clocks.perf_counter_ns() - begun) / 1e9
        sample["sample_cpu_s"] = (clocks.thread_time_ns() - begun_cpu) / 1e9
        return sample

    def _start(self) -> None:
        self._pid = os.getpid()
        self._notes, self._sources = [], []
        for make in self._make:
            try:
                self._sources.append(make())
            except Exception as problem:  # noqa: BLE001 - as above
                self._drop(getattr(make, "__name__", "source"), problem)

    def _drop(self, name: str, problem: Exception) -> None:
        reason = (
            problem.strerror if isinstance(problem, OSError) and problem.strerror else str(problem)
        )
        self._notes.append(
            f"{name} not measured on {sys.platform}: {type(problem).__name__}: {reason}"[:300]
        )
