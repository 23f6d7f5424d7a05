"""A job as triage sees it: all its processes on all machines; and words for them."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median

from msgspec import Struct

from stepscope.core.numbers import number_ranges
from stepscope.core.recordings.system import (
    COMPILER,
    HELPER,
    PROCESS,
    RANK,
    WORKER,
    DeviceSeries,
    HostStacks,
    HostUse,
    HotSpot,
    ProcessUse,
)
from stepscope.live.judge.policy import POLICY

MAX_NAMED = 4


class Job(Struct, frozen=True):
    """All hosts as one."""

    ranks: tuple[ProcessUse, ...]
    workers: tuple[ProcessUse, ...]
    compilers: tuple[ProcessUse, ...]
    wanted: float
    num_cores: float | None
    other_cores: float | None
    held_back: float | None
    rest: tuple[ProcessUse, ...]
    """What ranks started besides."""
    has_quota: bool
    """Whether its cores are what a control group grants, and not the machine's."""

    @property
    def all(self) -> tuple[ProcessUse, ...]:
        return (*self.ranks, *self.workers, *self.compilers, *self.rest)

    @property
    def is_held_back(self) -> bool:
        return self.held_back is not None and self.held_back >= POLICY.least_held


def joined(hosts: Sequence[HostUse]) -> Job:
    """Where nothing says which process trains, those that nothing is known of stand for it."""

    def of(role: str) -> tuple[ProcessUse, ...]:
        return tuple(process for host in hosts for process in host.of_role(role))

    cores = [host.num_cores for host in hosts if host.num_cores is not None]
    others = [host.other_cores for host in hosts if host.other_cores is not None]
    held = [host.held_back_share for host in hosts if host.held_back_share is not None]
    return Job(
        of(RANK) or of(PROCESS),
        of(WORKER),
        of(COMPILER),
        sum(process.wanted_cores or 0.0 for host in hosts for process in host.processes),
        sum(cores) if cores else None,
        sum(others) if others else None,
        max(held, default=None),
        (*(of(PROCESS) if of(RANK) else ()), *of(HELPER)),
        any(host.quota_cores is not None and host.quota_cores == host.num_cores for host in hosts),
    )


def io_share(processes: Sequence[ProcessUse]) -> float:
    """The middle of their shares in an uninterruptible wait."""
    shares = [process.io_wait_share for process in processes if process.io_wait_share is not None]
    return median(shares) if shares else 0.0


def read_rate(processes: Sequence[ProcessUse]) -> float | None:
    """Bytes a second from disks; what memory's cache gives costs CPU, and shows there. None where
    nobody counted them."""
    rates = [
        process.disk_read_bytes_s for process in processes if process.disk_read_bytes_s is not None
    ]
    return sum(rates) if rates else None


def moved_rate(process: ProcessUse) -> float | None:
    """Bytes a second that it reads from anywhere and writes to disks; None where neither was
    measured."""
    rates = [
        rate
        for rate in (process.read_bytes_s, process.disk_read_bytes_s, process.disk_write_bytes_s)
        if rate is not None
    ]
    return max(rates, default=None)


def stacks_of(
    stacks: Sequence[HostStacks], processes: Sequence[ProcessUse]
) -> tuple[HostStacks, ...]:
    """Stacks of these; a file's, which names no process, are taken for the ranks'."""
    pids: set[int | None] = {process.pid for process in processes}
    if all(process.role != WORKER for process in processes):
        pids.add(None)
    return tuple(one for one in stacks if one.pid in pids)


def loader_share(stacks: Sequence[HostStacks], ranks: Sequence[ProcessUse]) -> float:
    """Share of the ranks' stacks with the loader in them."""
    shares = [
        spot.total_share
        for process in stacks_of(stacks, ranks)
        for spot in process.functions
        if "torch/utils/data" in (spot.file or "")
    ]
    return max(shares, default=0.0)


def hottest(stacks: Sequence[HostStacks], processes: Sequence[ProcessUse]) -> HotSpot | None:
    """The training code's call that most of their stacks stand in; None where nobody looked. A
    worker that was forked has the calls of its rank below its own: where it stands in those, it is
    in the loader's code."""
    spots = [spot for one in stacks_of(stacks, processes) for spot in one.training]
    if any(process.role == WORKER for process in processes):
        pids = {process.pid for process in processes}
        forked = {spot.label for one in stacks if one.pid not in pids for spot in one.training}
        spots = [spot for spot in spots if spot.label not in forked]
    return max(spots, key=lambda spot: spot.total_share, default=None)


def standing_words(processes: Sequence[ProcessUse], stacks: Sequence[HostStacks]) -> str:
    """Where each of the first few stands most of the time."""
    places = [
        f"{named([process])} in {spot.label}"
        for process in processes[:MAX_NAMED]
        if (spot := hottest([one for one in stacks if one.pid == process.pid], [process]))
    ]
    return f" ({'; '.join(places)})" if places else ""


def samples_words(stacks: Sequence[HostStacks]) -> str:
    """Words for a profiler's file alone: whose the samples are, and where most of them stand."""
    if not stacks:
        return ""
    one = stacks[0]
    spots = one.training or one.functions
    words = [f"{thread.share:.0%} {thread.name}" for thread in one.threads[:3] if thread.share]
    if spots:
        spot = max(spots, key=lambda spot: spot.total_share)
        words.append(f"{spot.total_share:.0%} in {spot.label}")
    return f"; of {one.tool}'s samples: {', '.join(words)}" if words else ""


def attach(processes: Sequence[ProcessUse]) -> str:
    return f"stepscope attach {' '.join(str(process.pid) for process in processes[:8])}"


def mean_wanted(processes: Sequence[ProcessUse]) -> float:
    return fmean([process.wanted_cores or 0.0 for process in processes] or [0.0])


def mean_busy(devices: Sequence[DeviceSeries]) -> float:
    return fmean(device.used_share or 0.0 for device in devices)


def named(processes: Sequence[ProcessUse]) -> str:
    ranks = [process.rank for process in processes if process.rank is not None]
    if ranks and len(ranks) == len(processes):
        return (
            f"rank {number_ranges(ranks)}" if len(ranks) == 1 else f"ranks {number_ranges(ranks)}"
        )
    if len(processes) == 1:
        return f"process {processes[0].pid}"
    return f"{len(processes)} processes"


def verb_s(things: Sequence[object]) -> str:
    """The ending of a verb."""
    return "s" if len(things) == 1 else ""


def each(processes: Sequence[ProcessUse]) -> str:
    return "" if len(processes) == 1 else " each"


def with_workers(job: Job) -> str:
    return f" and {count(len(job.workers), 'worker')}" if job.workers else ""


def makers_words(job: Job) -> str:
    return count(len(job.workers), "worker") if job.workers else named(job.ranks)


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def devices_words(devices: Sequence[DeviceSeries]) -> str:
    return devices[0].label if len(devices) == 1 else f"{len(devices)} devices"


def while_devices(used: Sequence[DeviceSeries]) -> str:
    if used:
        return f"; {devices_words(used)} work{verb_s(used)} {mean_busy(used):.0%} of the time"
    return ""


def of_cores(job: Job) -> str:
    return "" if job.num_cores is None else f" of {job.num_cores:g}"


def mb(rate: float) -> str:
    return f"{rate / 1e6:.0f} MB/s"


def lower(text: str) -> str:
    return text[0].lower() + text[1:]
