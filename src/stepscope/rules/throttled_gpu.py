"""A device runs slower than it could: one rank's against the others', or by what its driver says.

What it sees: kernels of the same name and launch geometry, launched equally often on all ranks, that take longer on one of them
by about the same factor throughout. In a run recorded by `stepscope run`: the clock, and the reasons the driver gives for
holding it down.

Why it costs: every collective waits for that rank, so the whole job runs at its pace. The factor is that of a clock: heat, a
power cap, a device of another make, or another process on it.

Evidence it needs: traces of all ranks, or of several at least, with kernels' launch geometry (Kineto records it).

What to do: nvidia-smi -q -d CLOCK,POWER,PERFORMANCE on that node names the throttle reason; look at cooling, power limit, other
processes; drain the node. Ranks with unlike kernels or counts have unlike work: see uneven-work.

Example: where one of eight devices is held at 1.2 GHz and the others run at 1.8, its matrix products take 1.5 times as long, and
seven devices wait for a third of every step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from stepscope.replay.together import Team
from stepscope.rules.case import Case
from stepscope.rules.crew import Crew, TeamProposal, with_rank
from stepscope.rules.kernel_pace import KernelPace, kernel_pace
from stepscope.rules.proposal import Proposal, Remark

CODE = "throttled-gpu"
BOUND = "imbalance"
FAULTS = ("sw_thermal_slowdown", "hw_thermal_slowdown", "hw_slowdown", "hw_power_brake_slowdown")
"""Reasons that a mend of the machine removes; a power limit is a choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    least_factor: float = 1.05
    """Devices of one make differ by two or three percent."""
    least_low: float = 1.02
    """For nine tenths of the kernels' time: a clock slows all of them, noise only some."""
    least_samples: float = 0.5
    """Of the driver's samples with a reason, from which it is the run's state and not a moment's."""


POLICY = Policy()


def propose(case: Case) -> Proposal | Remark | None:
    """By the driver's own word, for one rank: heat or a failing supply holds the clock down."""
    device = None if case.known is None else case.known.device
    if device is None or not device.throttled_share or not device.sm_clock_mhz or not device.max_sm_clock_mhz:
        return None
    reason, share = max(device.throttled_share.items(), key=lambda one: one[1])
    factor = device.sm_clock_mhz / device.max_sm_clock_mhz
    if share < POLICY.least_samples or factor > 1 / POLICY.least_factor or case.kinds is None:
        return None
    clocks = f"{device.sm_clock_mhz:.0f} of {device.max_sm_clock_mhz:.0f} MHz, {reason} in {share:.0%} of the samples"
    if reason not in FAULTS:
        return Remark(code=CODE, text=f"the device runs at {clocks}: it is at the limit it was given")
    slowed = case.kinds.arithmetic
    return Proposal(
        code=CODE,
        bound="compute",
        summary=f"The device's clock is held down: {clocks}.",
        action="nvidia-smi -q -d CLOCK,POWER,PERFORMANCE: cooling, power supply, other processes; or another node",
        evidence=(clocks, *(() if device.temperature_c is None else (f"{device.temperature_c:.0f} C",))),
        change=lambda graph: replace(graph, task_ns=np.where(slowed, graph.task_ns * factor, graph.task_ns)),
    )


def propose_team(crew: Crew) -> TeamProposal | None:
    """That rank's kernels at the others' rate."""
    found = slow_device(crew)
    if found is None:
        return None
    place, pace = found
    rank = crew.ranks[place]
    return TeamProposal(
        code=CODE,
        bound=BOUND,
        summary=f"Rank {rank}'s device takes {pace.factor:.2f} times as long as the others for the same kernels.",
        action=f"nvidia-smi -q -d CLOCK,POWER,PERFORMANCE on rank {rank}'s node: cooling, power limit, other processes",
        evidence=(
            f"{pace.num_kernels} kinds of kernels, launched alike on all ranks, take {pace.factor:.2f} times as long",
            f"nine tenths of their time at {pace.low:.2f} times or more",
        ),
        ranks=(rank,),
        change=lambda team: _at_rate(crew, team, place, 1.0 / pace.factor),
    )


def slow_device(crew: Crew) -> tuple[int, KernelPace] | None:
    """The rank whose device is slower than the others', if there is one."""
    if len(crew.cases) < 2:
        return None
    paces = [(place, kernel_pace(crew, place)) for place in range(len(crew.cases))]
    known = [(place, pace) for place, pace in paces if pace is not None]
    if not known:
        return None
    place, pace = max(known, key=lambda one: one[1].factor)
    return (place, pace) if pace.factor >= POLICY.least_factor and pace.low >= POLICY.least_low else None


def _at_rate(crew: Crew, team: Team, place: int, factor: float) -> Team:
    kinds, graph = crew.cases[place].kinds, team.parts[place].graph
    assert kinds is not None
    busy = kinds.arithmetic | kinds.memory
    return with_rank(team, place, replace(graph, task_ns=np.where(busy, graph.task_ns * factor, graph.task_ns)))
