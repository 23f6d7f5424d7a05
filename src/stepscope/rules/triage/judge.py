"""What limits a job, by what can be seen from outside: its devices' samples and its processes'
counters, live or from files. One judge for both.

A process *wants* the cores that it uses and those that it waits for: so judged, a busy machine does
not make a rank that computes look like one that sleeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from msgspec import Struct

from stepscope.core.recordings.auxiliary import Auxiliary
from stepscope.core.recordings.nccl import NcclLog
from stepscope.core.recordings.processes import PROCESS, ProcessUse
from stepscope.core.recordings.system import DeviceSeries, HostStacks, SystemReport
from stepscope.core.triage import (
    COMPILING,
    FAILED,
    GPU,
    HOST,
    HUNG,
    INPUT_CPU,
    INPUT_IO,
    OVERSUBSCRIBED,
    SAVES,
    THROTTLED,
    UNCLEAR,
    UNDERLOADED,
    Triage,
)
from stepscope.rules.comms import shared_device
from stepscope.rules.compute import underloaded_gpu
from stepscope.rules.host.thread_oversubscription import POLICY as THREADS
from stepscope.rules.imbalance import throttled_gpu
from stepscope.rules.triage.job import (
    Job,
    devices_words,
    each,
    io_share,
    joined,
    loader_share,
    lower,
    makers_words,
    mb,
    mean_wanted,
    moved_rate,
    named,
    of_cores,
    read_rate,
    verb_s,
    while_devices,
    with_workers,
)

RECORD = "stepscope run -- python train.py records a trace"


class Policy(Struct, frozen=True, kw_only=True):
    most_idle: float = 0.02
    """Cores below which a process does nothing: one that only wakes to look whether it may go
    on."""
    most_resting: float = 0.1
    """Cores below which a rank rests, beside one that does not."""
    most_moved: float = 1e5
    """Bytes a second, over all processes, below which nothing is read or written: logs and
    heartbeats take less."""
    least_device: float = 0.7
    """Of the time with a kernel, from which the device is what the job waits for."""
    full_device: float = 0.9
    """From which its idle time is not worth a word."""
    least_busy: float = 0.7
    """Cores wanted, from which a process that does one thing after the other hardly rests."""
    least_io: float = 0.2
    """Of the looks in an uninterruptible wait: a process that reads from memory's cache is never
    seen in one."""
    least_read: float = 10e6
    """Bytes a second, over all workers, that show that input is read at all."""
    least_held: float = 0.1
    """Of the time held back by a quota."""
    least_queued: float = 0.25
    """Of what ranks want, waited for: below it others on the machine cost little."""
    least_others: float = 0.25
    """Of the job's cores, used by others."""
    least_loader: float = 0.3
    """Of a rank's stacks, in the loader."""


POLICY = Policy()


class Answer(Struct, frozen=True):
    state: str
    summary: str
    first: str


def judge(
    system: SystemReport, nccl: NcclLog | None = None, not_measured: Sequence[str] = ()
) -> Triage:
    """The answer, by devices first, then by what the host's processes do."""
    devices = underloaded_gpu.with_limits(system.devices)
    used = [device for device in devices if device.used_share is not None]
    is_asked = any(device.busy_share is not None for device in devices)
    job = joined(system.hosts)
    missing = [*not_measured, *(note for host in system.hosts for note in host.not_measured)]
    answer = (
        _failed(nccl)
        or _hung(job, used, is_asked=is_asked)
        or _by_devices(system, used)
        or _by_host(job, used, system.stacks, is_asked=is_asked)
    )
    return Triage(
        state=answer.state,
        summary=answer.summary,
        first=answer.first,
        also=tuple(_also(answer.state, job, used)),
        devices=devices,
        hosts=system.hosts,
        stacks=system.stacks,
        not_measured=tuple(dict.fromkeys(missing)),
    )


def _failed(nccl: NcclLog | None) -> Answer | None:
    advice = None if nccl is None else shared_device.advise_by_log(nccl)
    if advice is None:
        return None
    return Answer(FAILED, f"The job cannot begin: {lower(advice.summary)}", advice.action)


def _hung(job: Job, used: Sequence[DeviceSeries], *, is_asked: bool) -> Answer | None:
    """Nothing runs anywhere: no core, no disk, no device. A device that nobody asked may be at work
    for them."""
    measured = [process for process in job.all if process.wanted_cores is not None]
    may_compute = any(process.uses_device for process in job.ranks) and not is_asked
    if not job.ranks or not measured or used or may_compute:
        return None
    moved = [rate for process in job.all if (rate := moved_rate(process)) is not None]
    is_idle = all((process.wanted_cores or 0.0) < POLICY.most_idle for process in measured)
    if not is_idle or sum(moved) >= POLICY.most_moved:
        return None
    most = max(process.wanted_cores or 0.0 for process in measured)
    if io_share(job.ranks) >= 1 - POLICY.least_io:
        return Answer(
            HUNG,
            f"Hung: {named(job.ranks)} waited in the kernel {io_share(job.ranks):.0%} of the time"
            f"{', and read nothing' if moved else ''}.",
            "dmesg, and the mount of its data (a network file system that does not answer): the "
            "process cannot even be interrupted",
        )
    return Answer(
        HUNG,
        f"Hung: {named(job.ranks)}{with_workers(job)} used {most:.2f} cores at most"
        f"{', and read nothing' if moved else ''}.",
        f"stepscope attach {' '.join(str(one.pid) for one in job.ranks[:8])}: where each rank "
        "stands, and which is elsewhere",
    )


def _by_devices(system: SystemReport, used: Sequence[DeviceSeries]) -> Answer | None:
    if not used:
        return None
    busy = fmean(device.used_share or 0.0 for device in used)
    if busy < POLICY.least_device:
        return None
    told = throttled_gpu.advise(Auxiliary(system=system))
    if told:
        summary = f"Throttled: {lower(told[0].summary)} Busy {busy:.0%} of the time."
        return Answer(THROTTLED, summary, told[0].action)
    advice = underloaded_gpu.advise(Auxiliary(system=system))
    if advice is not None:
        return Answer(UNDERLOADED, f"GPU, and not full: {lower(advice.summary)}", advice.action)
    idle = "" if busy >= POLICY.full_device else f"; it waits for the other {1 - busy:.0%}"
    worst = min(used, key=lambda device: device.used_share or 0.0)
    return Answer(
        GPU,
        f"GPU: {devices_words(used)} work{verb_s(used)} {busy:.0%} of the time at "
        f"{underloaded_gpu.power_words(worst)}{idle}.",
        f"{RECORD}: which kernels fill the time, and what each costs",
    )


def _by_host(
    job: Job, used: Sequence[DeviceSeries], stacks: Sequence[HostStacks], *, is_asked: bool
) -> Answer:
    if not any(process.wanted_cores is not None for process in job.ranks):
        words = "no process was measured"
        if used:
            words = f"what the host does was not measured{while_devices(used)}"
        return Answer(UNCLEAR, f"Not known: {words}.", "stepscope triage PID, while the job runs")
    working = [
        process for process in job.ranks if (process.wanted_cores or 0.0) >= POLICY.least_busy
    ]
    if not working:
        return _waiting(job, used, stacks)
    if len(job.ranks) > 1 and all(process.role == PROCESS for process in job.ranks):
        return Answer(
            UNCLEAR,
            f"Host, or input by CPU: {len(working)} of {len(job.ranks)} processes never rest, and "
            "nothing says which of them train.",
            "stepscope triage PID: it tells ranks from their loader's workers",
        )
    if not is_asked and all(process.uses_device for process in working):
        return Answer(
            UNCLEAR,
            f"Not known: {named(working)} want{verb_s(working)} {mean_wanted(working):.2f} cores, "
            "to launch work or to wait for the device in a loop, and the device was not measured.",
            "run triage where the driver answers (nvidia-smi on the host), or stepscope attach",
        )
    crowded = _crowded(job, working)
    if crowded is not None:
        return crowded
    loader = loader_share(stacks)
    where = while_devices(used)
    if loader >= POLICY.least_loader and not job.workers:
        return Answer(
            INPUT_CPU,
            f"Input, by CPU: {named(working)} make{verb_s(working)} batches between the steps, "
            f"{loader:.0%} of the time{where}.",
            f"DataLoader(num_workers={_workers_for(job)}): batches are then made beside the step",
        )
    return Answer(
        HOST,
        f"Host: {named(working)} want{verb_s(working)} {mean_wanted(working):.2f} cores"
        f"{each(working)} without a rest{where}.",
        f"{RECORD}: which Python code, operators or launches; py-spy record -p "
        f"{working[0].pid} shows the functions",
    )


def _workers_for(job: Job) -> int:
    """A core each, beside the rank's own; four where the cores are not known."""
    if job.num_cores is None:
        return 4
    return max(1, min(4, int(job.num_cores / len(job.ranks)) - 1))


def _crowded(job: Job, working: Sequence[ProcessUse]) -> Answer | None:
    """More threads than cores: the job's own, by its quota, or because of others."""
    if job.held_back is not None and job.held_back >= POLICY.least_held:
        return Answer(
            OVERSUBSCRIBED,
            f"Oversubscribed: the control group's quota held the job back {job.held_back:.0%} of "
            f"the time; it wants {job.wanted:.1f} cores{of_cores(job)}.",
            "a larger CPU limit (Kubernetes: resources.limits.cpu), or fewer threads and workers",
        )
    if job.num_cores is None:
        return None
    threads = sum(process.num_threads or 0 for process in job.ranks)
    if job.wanted > THREADS.most_per_core * job.num_cores:
        fitting = max(1, int(job.num_cores / len(job.ranks)))
        return Answer(
            OVERSUBSCRIBED,
            f"Oversubscribed: the job wants {job.wanted:.1f} cores{of_cores(job)} "
            f"({threads} threads in {named(job.ranks)}{with_workers(job)}).",
            f"OMP_NUM_THREADS={fitting}, torch.set_num_threads(1) in workers, and no more workers "
            "than cores",
        )
    queued = sum(process.queued_cores or 0.0 for process in working)
    wanted = sum(process.wanted_cores or 0.0 for process in working)
    if (
        job.other_cores is not None
        and job.other_cores >= POLICY.least_others * job.num_cores
        and queued >= POLICY.least_queued * wanted
    ):
        return Answer(
            OVERSUBSCRIBED,
            f"Oversubscribed: other processes use {job.other_cores:.1f} cores, and "
            f"{named(working)} had none for {queued / wanted:.0%} of the time that one was wanted.",
            "top -o %CPU: end or move what is not the job's, or pin the job (taskset, --cpu-bind)",
        )
    return None


def _waiting(job: Job, used: Sequence[DeviceSeries], stacks: Sequence[HostStacks]) -> Answer:
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
    io, makers = io_share((*job.ranks, *job.workers)), job.workers or job.ranks
    read = sum(read_rate(process) for process in (*job.ranks, *job.workers))
    written = sum(process.disk_write_bytes_s or 0.0 for process in job.all)
    if written >= POLICY.least_read and written > read and io_share(job.ranks) >= POLICY.least_io:
        return Answer(
            SAVES,
            f"Saves: {named(job.ranks)} write{verb_s(job.ranks)} {mb(written)}, waiting for the "
            f"disk {io_share(job.ranks):.0%} of the time{where}.",
            "torch.distributed.checkpoint.async_save, a faster disk, or fewer saves",
        )
    busy = [
        process for process in job.workers if (process.wanted_cores or 0.0) >= POLICY.least_busy
    ]
    if busy and 2 * len(busy) >= len(job.workers):
        return _slow_workers(job, busy, where)
    is_reading = io >= POLICY.least_io or read >= POLICY.least_read
    if is_reading or loader_share(stacks) >= POLICY.least_loader:
        return Answer(
            INPUT_IO,
            f"Input, by IO: {makers_words(job)} wait{verb_s(makers)} for the disk in "
            f"{io_share(makers):.0%} of the looks; {mb(read)} are read, at "
            f"{mean_wanted(makers):.2f} cores{each(makers)}{where}.",
            "read ahead: more workers and prefetch_factor, larger files (shards) in place of many "
            "small ones, or a copy on a local disk",
        )
    at_work = max(job.rest, key=lambda process: process.wanted_cores or 0.0, default=None)
    if at_work is not None and (at_work.wanted_cores or 0.0) >= POLICY.least_busy:
        return Answer(
            HOST,
            f"Host: {named(job.ranks)} wait{verb_s(job.ranks)} while {at_work.name} "
            f"({at_work.pid}), started by the job, wants {at_work.wanted_cores:.2f} cores{where}.",
            "start it beside the training, or before it: does a step need what it does?",
        )
    return Answer(
        UNCLEAR,
        f"Not known: {named(job.ranks)} want{verb_s(job.ranks)} {mean_wanted(job.ranks):.2f} cores"
        f"{each(job.ranks)} and wait{verb_s(job.ranks)}, "
        f"for neither disk nor workers{where}: for another rank, the network or a lock.",
        f"stepscope attach {' '.join(str(one.pid) for one in job.ranks[:8])}: where each stands",
    )


def _slow_workers(job: Job, busy: Sequence[ProcessUse], where: str) -> Answer:
    first = f"more workers (now {len(job.workers)})"
    if job.num_cores is not None and job.wanted >= job.num_cores:
        first = (
            f"cheaper batches: all {job.num_cores:g} cores are taken, so more workers bring "
            "nothing (decode smaller images, prepare data before the run, more cores)"
        )
    return Answer(
        INPUT_CPU,
        f"Input, by CPU: {len(busy)} of {len(job.workers)} workers never rest "
        f"({mean_wanted(busy):.2f} cores each) while {named(job.ranks)} want{verb_s(job.ranks)} "
        f"{mean_wanted(job.ranks):.2f}{where}.",
        first,
    )


def _also(state: str, job: Job, used: Sequence[DeviceSeries]) -> list[str]:
    """What is so beside the answer."""
    lines = []
    for device in used:
        spread = device.busy_run_share or device.busy_share
        if spread is None or spread.mean is None or spread.high - spread.low < POLICY.least_device:
            continue
        lines.append(
            f"{device.label} works in bursts: {spread.mean:.0%} of the time, between "
            f"{spread.low:.0%} and {spread.high:.0%} (the median, {spread.median:.0%}, says little)"
        )
    unlimited = [device for device in used if device.power_limit_w is None]
    if unlimited and state == GPU:
        lines.append("whether the device is full is not known: its power limit was not recorded")
    busy = [process for process in job.ranks if (process.wanted_cores or 0.0) >= POLICY.least_busy]
    resting = [
        process
        for process in job.ranks
        if process.wanted_cores is not None and process.wanted_cores < POLICY.most_resting
    ]
    if busy and resting:
        lines.append(
            f"{named(resting)} rest{verb_s(resting)} ({mean_wanted(resting):.2f} cores) while "
            f"{named(busy)} work{verb_s(busy)}: in step, who rests waits for who works"
        )
    if state != OVERSUBSCRIBED and job.num_cores is not None:
        if job.wanted > THREADS.most_per_core * job.num_cores:
            lines.append(f"the job wants {job.wanted:.1f} cores{of_cores(job)}")
        if job.other_cores is not None and job.other_cores >= POLICY.least_others * job.num_cores:
            lines.append(f"other processes use {job.other_cores:.1f} cores of this machine")
    return lines[:8]
