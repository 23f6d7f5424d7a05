"""A job whose ranks wait, or make their batches themselves: for whom, or by what."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.core.recordings.system import DeviceSeries, HostStacks, ProcessUse
from stepscope.live.judge.job import (
    Job,
    attach,
    each,
    hottest,
    io_share,
    loader_share,
    makers_words,
    mb,
    mean_wanted,
    named,
    read_rate,
    standing_words,
    verb_s,
    while_devices,
)
from stepscope.live.judge.policy import LARGER_QUOTA, POLICY, Answer
from stepscope.live.shapes.triage import COMPILING, HOST, INPUT_CPU, INPUT_IO, SAVES, UNCLEAR

READ_AHEAD = (
    "read ahead: more workers and prefetch_factor, larger files (shards) in place of many small "
    "ones, or a copy on a local disk"
)


def waiting(job: Job, used: Sequence[DeviceSeries], stacks: Sequence[HostStacks]) -> Answer:
    """No rank is busy: who is it that they wait for?"""
    where = while_devices(used)
    compiling = sum(process.wanted_cores or 0.0 for process in job.compilers)
    if compiling >= POLICY.least_busy:
        return Answer(
            COMPILING,
            f"Compiling: {len(job.compilers)} compilers want {compiling:.1f} cores, and the ranks "
            "wait.",
            "wait for the first steps to end; TORCHINDUCTOR_CACHE_DIR on a disk that stays spares "
            "the next run",
        )
    return (
        _saving(job, where)
        or _slow_workers(job, stacks, where)
        or _slow_input(job, stacks, where)
        or _other_program(job, where)
        or Answer(
            UNCLEAR,
            f"Not known: {named(job.ranks)} want{verb_s(job.ranks)} {mean_wanted(job.ranks):.2f} "
            f"cores{each(job.ranks)} and wait{verb_s(job.ranks)}, for no disk{_at_rest(job)}"
            f"{where}: for another rank, the network or a lock"
            f"{standing_words(job.ranks, stacks)}.",
            f"{attach(job.ranks)}: where each stands",
        )
    )


def _at_rest(job: Job) -> str:
    if not job.workers:
        return ""
    rest = f"rest{verb_s(job.workers)} too ({mean_wanted(job.workers):.2f} cores)"
    return f"; {makers_words(job)} {rest}"


def own_batches(
    job: Job, working: Sequence[ProcessUse], stacks: Sequence[HostStacks], where: str
) -> Answer | None:
    """Ranks without workers that are busy in their loader; None where they are not."""
    loader = loader_share(stacks, job.ranks)
    if job.workers or loader < POLICY.least_loader:
        return None
    spot = hottest(stacks, working)
    within = "" if spot is None else f", most in {spot.label}"
    is_disk, rate = _waits_for_disk(working), mb(read_rate(working) or 0.0)
    disk = f", waiting for the disk in {io_share(working):.0%} of the looks at {rate}"
    return Answer(
        INPUT_IO if is_disk else INPUT_CPU,
        f"Input, by {'IO' if is_disk else 'CPU'}: {named(working)} make{verb_s(working)} batches "
        f"between the steps, {loader:.0%} of the time{within}{disk if is_disk else ''}{where}.",
        f"DataLoader(num_workers={_workers_for(job)}): batches are then made beside the step",
    )


def _waits_for_disk(processes: Sequence[ProcessUse]) -> bool:
    """Whether they read from the disk and are seen waiting. Copies of what was read take them a
    core as well."""
    is_reading = (read_rate(processes) or 0.0) >= POLICY.least_read
    return is_reading and io_share(processes) >= POLICY.least_io


def _workers_for(job: Job) -> int:
    """A core each, beside the rank's own; four where the cores are not known."""
    if job.num_cores is None:
        return 4
    return max(1, min(4, int(job.num_cores / len(job.ranks)) - 1))


def _saving(job: Job, where: str) -> Answer | None:
    written = sum(process.disk_write_bytes_s or 0.0 for process in job.all)
    read, io = read_rate((*job.ranks, *job.workers)) or 0.0, io_share(job.ranks)
    if written < POLICY.least_read or written <= read or io < POLICY.least_io:
        return None
    return Answer(
        SAVES,
        f"Saves: {named(job.ranks)} write{verb_s(job.ranks)} {mb(written)}, waiting for the "
        f"disk {io:.0%} of the time{where}.",
        "torch.distributed.checkpoint.async_save, a faster disk, or fewer saves",
    )


def _slow_workers(job: Job, stacks: Sequence[HostStacks], where: str) -> Answer | None:
    """Workers that never rest: half of them or more."""
    busy = [
        process for process in job.workers if (process.wanted_cores or 0.0) >= POLICY.least_busy
    ]
    if not busy or 2 * len(busy) < len(job.workers) or _waits_for_disk(busy):
        return None
    first = f"more workers (now {len(job.workers)})"
    if job.is_held_back:
        first = f"{LARGER_QUOTA}: the quota held the job back {job.held_back:.0%} of the time"
    elif job.num_cores is not None and job.wanted >= job.num_cores:
        first = (
            f"cheaper batches: all {job.num_cores:g} cores are taken, so more workers bring "
            "nothing (decode smaller images, prepare data before the run, more cores)"
        )
    spot = hottest(stacks, job.workers)
    within = "" if spot is None else f", in {spot.label} {spot.total_share:.0%} of the time"
    return Answer(
        INPUT_CPU,
        f"Input, by CPU: {len(busy)} of {len(job.workers)} workers never rest "
        f"({mean_wanted(busy):.2f} cores each{within}) while {named(job.ranks)} "
        f"want{verb_s(job.ranks)} {mean_wanted(job.ranks):.2f}{where}.",
        first,
    )


def _slow_input(job: Job, stacks: Sequence[HostStacks], where: str) -> Answer | None:
    """Answer where who makes the batches waits, for a disk, or for something that leaves no trace
    in counters of disks."""
    everyone, makers = (*job.ranks, *job.workers), job.workers or job.ranks
    loader, read = loader_share(stacks, job.ranks), read_rate(everyone)
    cores = f"at {mean_wanted(makers):.2f} cores{each(makers)}"
    if io_share(everyone) >= POLICY.least_io or (read or 0.0) >= POLICY.least_read:
        rate = "" if read is None else f"; {mb(read)} are read"
        return Answer(
            INPUT_IO,
            f"Input, by IO: {makers_words(job)} wait{verb_s(makers)} for the disk in "
            f"{io_share(makers):.0%} of the looks{rate}, {cores}{where}.",
            READ_AHEAD,
        )
    if loader < POLICY.least_loader:
        return None
    spot = hottest(stacks, makers)
    place = "" if spot is None else f" in {spot.label}"
    disk = "" if read is None else f" ({mb(read)} from disks)"
    whose, first = "", "DataLoader(num_workers=4): batches are then waited for beside the step"
    if job.workers:
        whose, first = f" and {makers_words(job)} wait{verb_s(makers)}", READ_AHEAD
    return Answer(
        INPUT_IO,
        f"Input, by IO: {named(job.ranks)} wait{verb_s(job.ranks)} for batches {loader:.0%} of the "
        f"time,{whose}{place} {cores}, for no disk{disk}: for the network, a lock or a pause"
        f"{where}.",
        first,
    )


def _other_program(job: Job, where: str) -> Answer | None:
    at_work = max(job.rest, key=lambda process: process.wanted_cores or 0.0, default=None)
    if at_work is None or (at_work.wanted_cores or 0.0) < POLICY.least_busy:
        return None
    return Answer(
        HOST,
        f"Host: {named(job.ranks)} wait{verb_s(job.ranks)} while {at_work.name} "
        f"({at_work.pid}), started by the job, wants {at_work.wanted_cores:.2f} cores{where}.",
        "start it beside the training, or before it: does a step need what it does?",
    )
