"""What the processes of a running job do, from Linux's /proc: looked at from outside for some
seconds. Nothing is stopped, changed or started.

A process's counters are read once a second, so that one that ends in between has told most of its
own; the state of its main thread is looked at more often. Where looking is slow, as with many
processes, it is done more rarely: it may take a twentieth of a core.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from stepscope.capture.counters.host import MachineCounters, read_held_back, read_io, read_queued
from stepscope.core.recordings.system import (
    COMPILER,
    HELPER,
    PROCESS,
    RANK,
    WORKER,
    HostUse,
    ProcessUse,
)
from stepscope.process.table import PROC, Process, descendants, processes, rank_of, read_process
from stepscope.protocol.control_group import cpu_quota, throttle_file

LOOK_S = 0.05
COUNT_S = 1.0
"""Seconds between two readings of all counters."""
REST = 20.0
"""Seconds of rest for a second of looking."""
MIN_SEEN = 0.2
"""Share of the time: processes that lived for less are counted, and have no line."""
MAX_THREADS = 512
MAX_PROCESSES = 2048
DEVICE_FILES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/render")
NO_DEVICE = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-modeset", "/dev/nvidia-caps")
"""Files of NVIDIA's driver that every process opens which asks whether there is a device."""
COMPILERS = ("compile_worker", "ptxas", "cicc", "nvcc", "cc1plus", "clang", "ld.lld")
LOADER_NAME = "pt_data_worker"
"""What torch 2.6 and later calls a loader's worker."""
HELPERS = ("resource_tracker", "forkserver", "semaphore_tracker")


@dataclass(slots=True)
class _Seen:
    """One process, from the first look to the last."""

    process: Process
    role: str
    parent: int | None
    first_s: float
    last_s: float
    first_cpu: tuple[float, float]
    last_cpu: tuple[float, float]
    io: dict[str, float]
    first_io: dict[str, float]
    queued: dict[str, float] | None
    """Seconds in the run queue by thread; None where the kernel does not count them."""
    queued_s: float = 0.0
    num_threads: int | None = None
    first_sleeps: int | None = None
    sleeps: int | None = None
    states: list[str] = field(default_factory=list)
    uses_device: bool | None = None


class Watch:
    """Processes of a job, watched."""

    def __init__(self, ranks: Sequence[Process], clock: Callable[[], float] = time.monotonic):
        self._ranks = {process.pid: process for process in ranks}
        self._clock = clock
        self._seen: dict[int, _Seen] = {}
        self._machine = _machine()
        self._throttle = throttle_file(process=str(ranks[0].pid)) if ranks else None
        self._held_s = self._held_back_s()
        self._num_looks = 0
        self._begun = self._counted = clock()
        self.count()

    @property
    def pids(self) -> frozenset[int]:
        return frozenset(self._seen)

    def for_seconds(self, seconds: float, also: Callable[[], object] = lambda: None) -> HostUse:
        """Looks for so long, and calls `also` with each reading of counters' pace."""
        until = self._begun + seconds
        while (now := self._clock()) < until:
            self.look()
            if now - self._counted >= COUNT_S:
                self.count()
            also()
            spent = self._clock() - now
            time.sleep(max(0.0, min(max(LOOK_S, REST * spent), until - self._clock())))
        self.count()
        return self.result()

    def look(self) -> None:
        """The state of each main thread."""
        self._num_looks += 1
        for pid, seen in self._seen.items():
            process = read_process(pid, with_words=False)
            if process is not None and process.started_ticks == seen.process.started_ticks:
                seen.states.append(process.state)

    def count(self) -> None:
        """Every counter of every process that is there now."""
        running = processes(with_words=False)
        for rank in self._ranks.values():
            if rank.pid in running:
                self._count(running[rank.pid], rank.pid)
                for child in descendants([rank.pid], running)[:MAX_PROCESSES]:
                    if child.pid not in self._ranks:
                        self._count(child, rank.pid)
        self._counted = self._clock()

    def _count(self, now: Process, rank: int) -> None:
        seen = self._seen.get(now.pid)
        folder = f"{PROC}/{now.pid}"
        # Clock and counters side by side: whatever comes between them, or a core lost there, would
        # count as the process's time.
        at, cpu, queued, io = self._clock(), _cpu_s(folder), _queued(folder), read_io(folder)
        if cpu is None or now.state == "Z":
            return
        if seen is None or seen.process.started_ticks != now.started_ticks:
            known = read_process(now.pid) or now
            self._seen[now.pid] = _Seen(
                process=known,
                role=RANK if now.pid in self._ranks else role_of(known, self._ranks[rank]),
                parent=None if now.pid in self._ranks else rank,
                first_s=at,
                last_s=at,
                first_cpu=cpu,
                last_cpu=cpu,
                first_io=io,
                io=io,
                queued=queued,
                first_sleeps=_sleeps(folder),
                num_threads=_num_threads(folder),
                uses_device=_uses_device(folder),
            )
            return
        seen.last_s, seen.last_cpu, seen.io = at, cpu, io
        seen.sleeps = _sleeps(folder)
        seen.num_threads = _num_threads(folder) or seen.num_threads
        if queued is not None and seen.queued is not None:
            before = seen.queued
            # A thread that is new has waited since it began.
            seen.queued_s += sum(
                max(0.0, waited - before.get(name, 0.0)) for name, waited in queued.items()
            )
        seen.queued = queued

    def _held_back_s(self) -> float | None:
        try:
            return None if self._throttle is None else read_held_back(str(self._throttle))
        except (OSError, ValueError):
            return None

    def result(self) -> HostUse:
        seconds = self._clock() - self._begun
        shown = [
            seen
            for seen in self._seen.values()
            if seen.last_s - seen.first_s >= min(MIN_SEEN * seconds, COUNT_S)
        ]
        uses = tuple(_use(seen) for seen in shown)
        machine = {} if self._machine is None else self._machine.take()
        held_s = self._held_back_s()
        held = None if held_s is None or self._held_s is None else held_s - self._held_s
        busy = _times(machine.get("machine_cpu_share"), os.cpu_count())
        used = sum(use.cores or 0.0 for use in uses)
        # The group counts the time on each core that it took from them.
        num_held = max(1.0, min(sum(use.wanted_cores or 0.0 for use in uses), os.cpu_count() or 1))
        return HostUse(
            seconds=seconds,
            num_looks=self._num_looks,
            processes=uses,
            num_cores=cores_of(self._ranks),
            quota_cores=_quota_of(self._ranks),
            busy_cores=busy,
            other_cores=None if busy is None else max(0.0, busy - used),
            io_wait_share=machine.get("machine_iowait_share"),
            held_back_share=None if held is None else min(1.0, max(0.0, held / seconds / num_held)),
            not_measured=tuple(self._missing(uses, machine, len(self._seen) - len(shown))),
        )

    def _missing(
        self, uses: Sequence[ProcessUse], machine: Mapping[str, object], num_short: int
    ) -> Iterable[str]:
        if not any(use.role == RANK for use in uses):
            yield "the ranks: they ended while they were looked at"
        if any(use.queued_cores is None for use in uses):
            yield "waits for a core: this kernel counts none (CONFIG_SCHED_INFO)"
        if any(use.read_bytes_s is None for use in uses):
            yield "bytes read: /proc/PID/io may be read by the job's user and by root alone"
        if any(use.uses_device is None for use in uses if use.role == RANK):
            yield "whether ranks use a GPU: /proc/PID/fd may be read by the job's user and root"
        if "machine_cpu_share" not in machine:
            yield "what the rest of the machine does: /proc/stat"
        if self._throttle is None:
            yield "being held back by a quota: no control group counts it"
        if num_short:
            yield f"{num_short} process(es) that lived for less than a second of it"


def _use(seen: _Seen) -> ProcessUse:
    span = seen.last_s - seen.first_s
    user = seen.last_cpu[0] - seen.first_cpu[0]
    kernel = seen.last_cpu[1] - seen.first_cpu[1]
    is_counted = seen.sleeps is not None and seen.first_sleeps is not None
    rates = {
        name: max(0.0, value - seen.first_io[name]) / span
        for name, value in seen.io.items()
        if name in seen.first_io
    }
    return ProcessUse(
        pid=seen.process.pid,
        role=seen.role,
        name=name_of(seen.process),
        parent=seen.parent,
        rank=rank_of(seen.process),
        num_threads=seen.num_threads,
        cores=(user + kernel) / span,
        queued_cores=None if seen.queued is None else seen.queued_s / span,
        kernel_share=kernel / (user + kernel) if user + kernel > 0 else None,
        io_wait_share=seen.states.count("D") / len(seen.states) if seen.states else None,
        wakes_per_s=((seen.sleeps or 0) - (seen.first_sleeps or 0)) / span if is_counted else None,
        read_bytes_s=rates.get("read_bytes_s"),
        disk_read_bytes_s=rates.get("disk_read_bytes_s"),
        disk_write_bytes_s=rates.get("disk_write_bytes_s"),
        uses_device=seen.uses_device,
    )


def role_of(process: Process, rank: Process) -> str:
    """What a process is to the rank that started it. A loader's worker is a fork of the rank, or
    one that multiprocessing started anew."""
    words = " ".join((process.name, *process.command))
    if any(name in words for name in COMPILERS):
        return COMPILER
    if any(name in words for name in HELPERS):
        return HELPER
    if process.name == LOADER_NAME or "multiprocessing" in words:
        return WORKER
    if process.is_python and process.command == rank.command:
        return WORKER
    return PROCESS if process.is_python else HELPER


def name_of(process: Process) -> str:
    """The script, where it is one; else the process's own name."""
    for word in process.command[1:]:
        if word.endswith(".py"):
            return os.path.basename(word)
    return process.name


def cores_of(pids: Collection[int]) -> float | None:
    """Cores that these processes may use: any of theirs, and no more than the quota."""
    allowed: set[int] = set()
    for pid in pids:
        with suppress(OSError, AttributeError):
            allowed |= os.sched_getaffinity(pid)
    if not allowed:
        return None
    quota = _quota_of(pids)
    return float(len(allowed) if quota is None else min(len(allowed), quota))


def _quota_of(pids: Iterable[int]) -> float | None:
    """The least that a control group grants one of them."""
    quotas = [cpu_quota(process=str(pid)) for pid in pids]
    return min((quota for quota in quotas if quota is not None), default=None)


def _machine() -> MachineCounters | None:
    try:
        return MachineCounters()
    except (OSError, ValueError, IndexError):
        return None


def _cpu_s(folder: str) -> tuple[float, float] | None:
    """Seconds in user code and in the kernel."""
    try:
        with open(f"{folder}/stat", "rb") as file:
            words = file.read().rpartition(b")")[2].split()
        ticks = os.sysconf("SC_CLK_TCK")
        return int(words[11]) / ticks, int(words[12]) / ticks
    except (OSError, ValueError, IndexError):
        return None


def _queued(folder: str) -> dict[str, float] | None:
    """Seconds in the run queue by thread; None where no thread tells it."""
    try:
        threads = os.listdir(f"{folder}/task")[:MAX_THREADS]
    except OSError:
        return None
    waits = {name: read_queued(f"{folder}/task/{name}/schedstat") for name in threads}
    first = {name: next(iter(wait.values())) for name, wait in waits.items() if wait}
    return first or None


def _sleeps(folder: str) -> int | None:
    """Sleeps of the main thread since it began: the file tells of it alone."""
    try:
        with open(f"{folder}/status", "rb") as file:
            text = file.read().partition(b"\nvoluntary_ctxt_switches:")[2]
        return int(text.split(None, 1)[0])
    except (OSError, ValueError, IndexError):
        return None


def _num_threads(folder: str) -> int | None:
    try:
        return len(os.listdir(f"{folder}/task"))
    except OSError:
        return None


def _uses_device(folder: str) -> bool | None:
    try:
        files = os.listdir(f"{folder}/fd")
    except OSError:
        return None
    for name in files:
        try:
            path = os.readlink(f"{folder}/fd/{name}")
        except OSError:
            continue
        if path.startswith(DEVICE_FILES) and not path.startswith(NO_DEVICE):
            return True
    return False


def _times(share: float | None, num: int | None) -> float | None:
    return None if share is None or num is None else share * num
