"""A device runs slower than it could: one rank's against the others', or by what its driver says.

What it sees: kernels of the same name and launch geometry, launched equally often on all ranks,
that take longer on one of them by about the same factor throughout. In a run recorded by `stepscope
run`: the clock, and the reasons the driver gives for holding it down.

Why it costs: every collective waits for that rank, so the whole job runs at its speed. The factor
is that of a clock: heat, a power cap, a device of another make, or another process on it.

Evidence it needs: traces of all ranks, or of several at least, with kernels' launch geometry
(Kineto records it).

What to do: nvidia-smi -q -d CLOCK,POWER,PERFORMANCE on that node names the throttle reason; look at
cooling, power limit, other processes; drain the node. Ranks with unlike kernels or counts have
unlike work: see uneven-work.

Example: where one of eight devices is held at 1.2 GHz and the others run at 1.8, its matrix
products take 1.5 times as long, and seven devices wait for a third of every step.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

import numpy as np
from msgspec import Struct, structs

from stepscope.core.recordings.auxiliary import Advice, Auxiliary
from stepscope.core.recordings.system import FAULT, HEAT, POWER, DeviceSeries
from stepscope.replay.simulate_job import JobGraph
from stepscope.rules.case import Case
from stepscope.rules.job_case import JobCase, JobProposal, with_rank
from stepscope.rules.proposal import Proposal, Remark
from stepscope.rules.rule import Rule
from stepscope.rules.shared.kernel_slowdown import KernelSlowdown, kernel_slowdown

CODE = "throttled-gpu"
BOUND = "imbalance"
FAULTS = ("sw_thermal_slowdown", "hw_thermal_slowdown", "hw_slowdown", "hw_power_brake_slowdown")
"""Reasons that a fix of the machine removes; a power limit is a choice."""


class Policy(Struct, frozen=True, kw_only=True):
    least_factor: float = 1.05
    """Devices of one make differ by two or three percent."""
    least_low: float = 1.02
    """Ratio for nine tenths of the kernels' time: a clock slows all of them, noise only some."""
    least_samples: float = 0.5
    """Share of the driver's samples with a reason from which it is the run's state and not a
    moment's."""
    least_working: int = 5
    """Samples at work from which a recording stands for a run."""
    least_power_factor: float = 1.1
    """A device at full load runs a little below its highest clock for its power limit: that is how
    it was built."""


POLICY = Policy()
CLOCKS = "nvidia-smi -q -d CLOCK,POWER,PERFORMANCE"
AMD_CLOCKS = "amd-smi metric --clock --power --temperature"
RAISE = {
    CLOCKS: "nvidia-smi -q -d POWER: raise the limit (nvidia-smi -pl)",
    AMD_CLOCKS: "amd-smi static --limit: raise the limit (amd-smi set --power-cap)",
}
AMD = re.compile(r"\bAMD\b|Instinct|Radeon|\bMI\d{2,3}\w?\b", re.IGNORECASE)
AMD_FORMATS = ("rocm-smi",)
"""Monitors of AMD's devices, which need not name them."""


def clocks_of(name: str | None) -> str:
    """The command that says why a device's clock is low, by the device's name."""
    return AMD_CLOCKS if name is not None and AMD.search(name) else CLOCKS


def propose(case: Case) -> Proposal | Remark | None:
    """Propose by the driver's own word, for one rank: heat or a failing supply holds the clock
    down."""
    device = None if case.metadata is None else case.metadata.device
    if (
        device is None
        or not device.throttled_share
        or not device.sm_clock_mhz
        or not device.max_sm_clock_mhz
    ):
        return None
    reason, share = max(device.throttled_share.items(), key=lambda entry: entry[1])
    factor = device.sm_clock_mhz / device.max_sm_clock_mhz
    if share < POLICY.least_samples or factor > 1 / POLICY.least_factor or case.kinds is None:
        return None
    clocks = (
        f"{device.sm_clock_mhz:.0f} of {device.max_sm_clock_mhz:.0f} MHz, {reason} in {share:.0%} "
        "of the samples"
    )
    if reason not in FAULTS:
        return Remark(
            code=CODE, text=f"the device runs at {clocks}: it is at the limit it was given"
        )
    slowed = case.kinds.arithmetic
    return Proposal(
        bound="compute",
        summary=f"The device's clock is held down: {clocks}.",
        action=f"{clocks_of(_name(case))}: cooling, power supply, other processes; or another node",
        evidence=(
            clocks,
            *(() if device.temperature_c is None else (f"{device.temperature_c:.0f} C",)),
        ),
        change=lambda graph: replace(
            graph, task_ns=np.where(slowed, graph.task_ns * factor, graph.task_ns)
        ),
    )


def _name(case: Case) -> str | None:
    return None if case.context.device is None else case.context.device.name


def propose_job(job: JobCase) -> JobProposal | None:
    """Propose that the slow rank's kernels run at the others' rate."""
    slow = slow_device(job)
    if slow is None:
        return None
    index, slowdown = slow
    rank = job.ranks[index]
    return JobProposal(
        summary=f"Rank {rank}'s device takes {slowdown.factor:.2f} times as long as the others for "
        "the same kernels.",
        action=f"{clocks_of(_name(job.cases[index]))} on rank {rank}'s node: cooling, power limit, "
        "other processes",
        evidence=(
            (
                f"{slowdown.num_kernels} kinds of kernels, launched alike on all ranks, take "
                f"{slowdown.factor:.2f} times as long"
            ),
            f"nine tenths of their time at {slowdown.low:.2f} times or more",
        ),
        ranks=(rank,),
        change=lambda job_graph: _at_rate(job, job_graph, index, 1.0 / slowdown.factor),
    )


def slow_device(job: JobCase) -> tuple[int, KernelSlowdown] | None:
    """The rank whose device is slower than the others', if there is one."""
    if len(job.cases) < 2:
        return None
    slowdowns = [(index, kernel_slowdown(job, index)) for index in range(len(job.cases))]
    measured = [(index, slowdown) for index, slowdown in slowdowns if slowdown is not None]
    if not measured:
        return None
    index, slowdown = max(measured, key=lambda pair: pair[1].factor)
    is_slow = slowdown.factor >= POLICY.least_factor and slowdown.low >= POLICY.least_low
    return (index, slowdown) if is_slow else None


def _at_rate(job: JobCase, job_graph: JobGraph, index: int, factor: float) -> JobGraph:
    graph, busy = job_graph.parts[index].graph, job.compute_tasks(index)
    return with_rank(
        job_graph,
        index,
        replace(graph, task_ns=np.where(busy, graph.task_ns * factor, graph.task_ns)),
    )


def advise(auxiliary: Auxiliary) -> Sequence[Advice]:
    """Advise by monitors' samples: reasons that the driver gave while the device was at work, and
    clocks against the peers'."""
    recordings = () if auxiliary.system is None else auxiliary.system.recordings
    judged = [
        _named_amd(device) if recording.format in AMD_FORMATS else device
        for recording in recordings
        for device in recording.devices
        if device.num_working is not None and device.num_working >= POLICY.least_working
    ]
    return [*_throttled(judged), *_behind_peers(judged)]


def _named_amd(device: DeviceSeries) -> DeviceSeries:
    return device if device.name else structs.replace(device, name="AMD")


def _throttled(devices: Sequence[DeviceSeries]) -> list[Advice]:
    faults, limits = [], []
    for device in devices:
        fault, power = _share(device, (*HEAT, *FAULT)), _share(device, POWER)
        factor = _clock_factor(device)
        if fault >= POLICY.least_samples and (factor is None or factor >= POLICY.least_factor):
            faults.append((fault, device))
        elif (
            power >= POLICY.least_samples
            and factor is not None
            and factor >= POLICY.least_power_factor
        ):
            limits.append((power, device))
    advice = []
    if faults:
        advice.append(
            _advice(
                faults,
                f"The clock of {_named(faults)} is held down by heat or by the supply while at "
                "work.",
                f"{_clocks(faults)}: cooling, power supply, other processes; or another node",
            )
        )
    if limits:
        advice.append(
            _advice(
                limits,
                f"The power limit holds the clock of {_named(limits)} down while at work.",
                f"{RAISE[_clocks(limits)]} where the site allows; else it gives no more",
            )
        )
    return advice


def _behind_peers(devices: Sequence[DeviceSeries]) -> list[Advice]:
    """A device of the same name as others whose clock at work is below theirs."""
    advice = []
    for device in devices:
        peers = [
            other.sm_clock_working_mhz.median
            for other in devices
            if other is not device
            and other.name == device.name
            and other.sm_clock_working_mhz is not None
        ]
        clock = device.sm_clock_working_mhz
        if not peers or clock is None or clock.median * POLICY.least_factor > median(peers):
            continue
        advice.append(
            Advice(
                code=CODE,
                bound=BOUND,
                summary=f"{device.label[0].upper()}{device.label[1:]} runs at {clock.median:.0f} "
                f"MHz, its peers at {median(peers):.0f}.",
                action=f"{clocks_of(device.name)} on that node: cooling, power limit, other "
                "processes",
                evidence=(_evidence(device),),
                weight=1 - clock.median / median(peers),
                weight_of="the peers' clock",
            )
        )
    return advice


def _advice(devices: Sequence[tuple[float, DeviceSeries]], summary: str, action: str) -> Advice:
    return Advice(
        code=CODE,
        bound="compute",
        summary=summary,
        action=action,
        evidence=tuple(_evidence(device) for _, device in devices[:8]),
        weight=max(share for share, _ in devices),
        weight_of="the samples at work",
    )


def _clocks(devices: Sequence[tuple[float, DeviceSeries]]) -> str:
    return clocks_of(next((device.name for _, device in devices if device.name), None))


def _share(device: DeviceSeries, reasons: Sequence[str]) -> float:
    """Share of the samples with the most frequent of these reasons: several are often reported
    together."""
    return max(((device.throttled or {}).get(reason, 0.0) for reason in reasons), default=0.0)


def _clock_factor(device: DeviceSeries) -> float | None:
    clock, most = device.sm_clock_working_mhz, device.max_sm_clock_mhz
    if clock is None or most is None or clock.median <= 0:
        return None
    return most / clock.median


def _named(devices: Sequence[tuple[float, DeviceSeries]]) -> str:
    labels = [device.label for _, device in devices]
    return labels[0] if len(labels) == 1 else f"{len(labels)} devices"


def _evidence(device: DeviceSeries) -> str:
    clock, most = device.sm_clock_working_mhz, device.max_sm_clock_mhz
    parts = [device.label]
    if clock is not None:
        highest = "" if most is None else f" of {most:.0f}"
        parts.append(f"{clock.median:.0f}{highest} MHz")
    for reason, share in list((device.throttled or {}).items())[:3]:
        parts.append(f"{reason} in {share:.0%} of {device.num_working} samples at work")
    if device.temperature_c is not None:
        parts.append(f"{device.temperature_c.high:.0f} C")
    if device.power_working_w is not None:
        limit = "" if device.power_limit_w is None else f" of {device.power_limit_w:.0f}"
        parts.append(f"{device.power_working_w.median:.0f}{limit} W")
    return ", ".join(parts)


RULE = Rule(
    code=CODE,
    bound=BOUND,
    text=__doc__,
    propose=propose,
    propose_job=propose_job,
    advise=advise,
)
