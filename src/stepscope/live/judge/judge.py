"""What limits a job, by what can be seen from outside: its devices' samples and its processes'
counters, live or from files. One judge for both.

A process *wants* the cores that it uses and those that it waits for: so judged, a busy machine does
not make a rank that computes look like one that sleeps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

from stepscope.core.recordings.auxiliary import Auxiliary
from stepscope.core.recordings.nccl import NcclLog
from stepscope.core.recordings.system import (
    PROCESS,
    DeviceSeries,
    HostStacks,
    ProcessUse,
    Spread,
    SystemReport,
)
from stepscope.live.judge.job import (
    Job,
    attach,
    devices_words,
    each,
    hottest,
    io_share,
    joined,
    loader_share,
    lower,
    mean_wanted,
    moved_rate,
    named,
    of_cores,
    samples_words,
    standing_words,
    verb_s,
    while_devices,
    with_workers,
)
from stepscope.live.judge.policy import LARGER_QUOTA, POLICY, RECORD, Answer
from stepscope.live.judge.waiting import own_batches, waiting
from stepscope.live.shapes.triage import (
    FAILED,
    GPU,
    HOST,
    HUNG,
    OVERSUBSCRIBED,
    THROTTLED,
    UNCLEAR,
    UNDERLOADED,
    Triage,
    TriagedDevice,
    TriagedFunction,
)
from stepscope.recordings.system import underloaded_gpu
from stepscope.rules.comms import shared_device
from stepscope.rules.host.thread_oversubscription import POLICY as THREADS
from stepscope.rules.imbalance import throttled_gpu

MAX_FUNCTIONS = 8


def device_line(device: DeviceSeries) -> TriagedDevice:
    """Device with its samples in one figure each: those at work, where they are known."""
    busy = device.busy_run_share or device.busy_share
    return TriagedDevice(
        device=device.label,
        name=device.name,
        num_samples=device.num_samples,
        busy_share=None if busy is None else busy.mean,
        busy_median_share=_median(busy),
        power_w=_median(device.power_working_w or device.power_w),
        power_limit_w=device.power_limit_w,
        sm_clock_mhz=_median(device.sm_clock_working_mhz or device.sm_clock_mhz),
        max_sm_clock_mhz=device.max_sm_clock_mhz,
        temperature_c=_median(device.temperature_c),
        throttled=device.throttled,
    )


def functions_of(stacks: Sequence[HostStacks]) -> tuple[TriagedFunction, ...]:
    """The most seen first; those of the training code, where it was seen at all."""
    spots = [
        TriagedFunction(name=spot.label, share=spot.total_share, pid=each.pid)
        for each in stacks
        for spot in each.training or each.functions
    ]
    return tuple(sorted(spots, key=lambda spot: -spot.share)[:MAX_FUNCTIONS])


def _median(spread: Spread | None) -> float | None:
    return None if spread is None else spread.median


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
        or _hung(job, used, system.stacks, is_asked=is_asked)
        or _by_devices(system, used)
        or _by_host(job, used, system.stacks, is_asked=is_asked)
    )
    return Triage(
        state=answer.state,
        summary=answer.summary,
        first=answer.first,
        also=(*_of_devices(devices, used), *_also(answer.state, job))[:8],
        devices=tuple(map(device_line, devices)),
        hosts=system.hosts,
        functions=functions_of(system.stacks),
        not_measured=tuple(dict.fromkeys(missing)),
    )


def _failed(nccl: NcclLog | None) -> Answer | None:
    advice = None if nccl is None else shared_device.advise_by_log(nccl)
    if advice is None:
        return None
    return Answer(FAILED, f"The job cannot begin: {lower(advice.summary)}", advice.action)


def _hung(
    job: Job, used: Sequence[DeviceSeries], stacks: Sequence[HostStacks], *, is_asked: bool
) -> Answer | None:
    """Nothing runs anywhere: no core, no disk, no device. A device that nobody asked may be at work
    for them."""
    measured = [process for process in job.all if process.wanted_cores is not None]
    may_compute = any(process.uses_device for process in job.ranks) and not is_asked
    if not job.ranks or not measured or used or may_compute:
        return None
    moved = [rate for process in job.all if (rate := moved_rate(process)) is not None]
    if not all(map(_is_still, measured)) or sum(moved) >= POLICY.most_moved:
        return None
    most = max(process.cores or 0.0 for process in measured)
    if io_share(job.ranks) >= 1 - POLICY.least_io:
        return Answer(
            HUNG,
            f"Hung: {named(job.ranks)} waited in the kernel {io_share(job.ranks):.0%} of the time"
            f"{', and read nothing' if moved else ''}.",
            "dmesg, and the mount of its data (a network file system that does not answer): the "
            "process cannot even be interrupted",
        )
    first = f"{attach(job.ranks)}: where each rank stands, and which is elsewhere"
    if job.workers and loader_share(stacks, job.ranks) >= POLICY.least_loader:
        first = f"{attach(job.workers)}: where the workers stand, whose batches the ranks wait for"
    elif len(job.ranks) == 1:
        first = f"{attach(job.ranks)}: where it stands"
    return Answer(
        HUNG,
        f"Hung: {named(job.ranks)}{with_workers(job)} used {most:.2f} cores at most"
        f"{', and read nothing' if moved else ''}{standing_words(job.ranks, stacks)}.",
        first,
    )


def _is_still(process: ProcessUse) -> bool:
    """Whether it hardly runs and hardly wakes. Where nobody counted how often it does, what it
    wants decides; a thread that only looks at the clock queues for a core too."""
    if process.wakes_per_s is None:
        return (process.wanted_cores or 0.0) < POLICY.most_idle
    is_asleep = process.wakes_per_s < POLICY.most_wakes
    return is_asleep and (process.cores or 0.0) < POLICY.most_idle


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
    # What was sampled is judged, be it one moment: nobody reads it as a whole run.
    advice = underloaded_gpu.advise(Auxiliary(system=system), least_working=1)
    if advice is not None:
        return Answer(UNDERLOADED, f"GPU, and not full: {lower(advice.summary)}", advice.action)
    idle = "" if busy >= POLICY.full_device else f"; it waits for the other {1 - busy:.0%}"
    worst = min(used, key=lambda device: device.used_share or 0.0)
    words = (
        f"GPU: {devices_words(used)} work{verb_s(used)} {busy:.0%} of the time at "
        f"{underloaded_gpu.power_words(worst)}{idle}"
    )
    if any(underloaded_gpu.power_share(device) is None for device in used):
        return Answer(
            GPU,
            f"{words}. Whether it is full is not known: its power limit was not recorded.",
            "nvidia-smi --query-gpu=index,power.draw,power.limit --format=csv > limit.csv, and "
            "give it too: at less than 40% of its limit a device is not full",
        )
    return Answer(GPU, f"{words}.", f"{RECORD}: which kernels fill the time, and what each costs")


def _by_host(
    job: Job, used: Sequence[DeviceSeries], stacks: Sequence[HostStacks], *, is_asked: bool
) -> Answer:
    if not any(process.wanted_cores is not None for process in job.ranks):
        words = "no process was measured"
        if used:
            words = f"what the host does was not measured{while_devices(used)}"
        words += samples_words(stacks)
        return Answer(UNCLEAR, f"Not known: {words}.", "stepscope triage PID, while the job runs")
    working = [
        process for process in job.ranks if (process.wanted_cores or 0.0) >= POLICY.least_busy
    ]
    if not working:
        return waiting(job, used, stacks)
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
    where = while_devices(used)
    batches = own_batches(job, working, stacks, where)
    if batches is not None:
        return batches
    spot = hottest(stacks, working)
    first = f"{RECORD}: which Python code, operators or launches"
    if spot is not None:
        first = f"{spot.label}, {spot.total_share:.0%} of the samples: {RECORD} of what it does"
    return Answer(
        HOST,
        f"Host: {named(working)} want{verb_s(working)} {mean_wanted(working):.2f} cores"
        f"{each(working)} without a rest{where}.",
        first,
    )


def _crowded(job: Job, working: Sequence[ProcessUse]) -> Answer | None:
    """More threads than cores: the job's own, by its quota, or because of others."""
    if job.is_held_back:
        return Answer(
            OVERSUBSCRIBED,
            f"Oversubscribed: the control group's quota held the job back {job.held_back:.0%} of "
            f"the time; it wants {job.wanted:.1f} cores{of_cores(job)}.",
            f"{LARGER_QUOTA}, or fewer threads and workers",
        )
    if job.num_cores is None:
        return None
    queued = sum(process.queued_cores or 0.0 for process in working)
    wanted = sum(process.wanted_cores or 0.0 for process in working)
    is_queued = queued >= POLICY.least_queued * wanted
    has_others = (job.other_cores or 0.0) >= POLICY.least_others * job.num_cores
    is_alone = job.other_cores is not None and not has_others and job.wanted > job.num_cores
    if job.wanted > THREADS.most_per_core * job.num_cores or (is_queued and is_alone):
        return _own_threads(job)
    if has_others and is_queued:
        return Answer(
            OVERSUBSCRIBED,
            f"Oversubscribed: other processes use {job.other_cores:.1f} cores, and "
            f"{named(working)} had none for {queued / wanted:.0%} of the time that one was wanted.",
            "top -o %CPU: end or move what is not the job's, or pin the job (taskset, --cpu-bind)",
        )
    return None


def _own_threads(job: Job) -> Answer:
    """Threads that wait for each other at the end of every operator want fewer cores than there are
    of them: what they want is the least of it."""
    threads = sum(process.num_threads or 0 for process in job.ranks)
    fitting = max(1, int((job.num_cores or 1) / len(job.ranks)))
    fewer = (
        f"OMP_NUM_THREADS={fitting}, torch.set_num_threads(1) in workers, and no more workers "
        "than cores"
    )
    return Answer(
        OVERSUBSCRIBED,
        f"Oversubscribed: the job wants {job.wanted:.1f} cores{of_cores(job)} "
        f"({threads} threads in {named(job.ranks)}{with_workers(job)}).",
        f"{LARGER_QUOTA}; else {fewer}" if job.has_quota else fewer,
    )


def _of_devices(devices: Sequence[DeviceSeries], used: Sequence[DeviceSeries]) -> Iterator[str]:
    """What is so of devices beside the answer."""
    for device in used:
        spread = device.busy_run_share or device.busy_share
        if spread is None or spread.mean is None or spread.high - spread.low < POLICY.least_device:
            continue
        yield (
            f"{device.label} works in bursts: {spread.mean:.0%} of the time, between "
            f"{spread.low:.0%} and {spread.high:.0%} (the median, {spread.median:.0%}, says little)"
        )
    idle = [device for device in devices if device.num_working == 0]
    if used and idle:
        named_idle = ", ".join(device.label for device in idle[:8])
        yield f"{named_idle} {'does' if len(idle) == 1 else 'do'} nothing beside those at work"
    powers = {device.label: spread.median for device in used if (spread := device.power_working_w)}
    if len(powers) > 1:
        least, most = min(powers, key=powers.__getitem__), max(powers, key=powers.__getitem__)
        if powers[least] < underloaded_gpu.POLICY.most_power * powers[most]:
            yield (
                f"{least} draws {powers[least]:.0f} W and {most} {powers[most]:.0f} W: {least} "
                "waits, or has far smaller kernels"
            )
    if used and max(device.num_samples for device in used) < underloaded_gpu.POLICY.least_working:
        yield "a device was sampled less than 5 times: that is a moment, not a run"


def _also(state: str, job: Job) -> list[str]:
    """What is so of the host beside the answer."""
    lines = []
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
        if job.is_held_back:
            lines.append(f"the control group's quota held the job back {job.held_back:.0%}")
    return lines
