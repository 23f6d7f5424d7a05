"""The device is idle for much of the time, by a monitor's samples: something keeps it waiting.

What it sees: a monitor's samples (nvidia-smi, dmon, DCGM, rocm-smi, amd-smi) with utilization well
below all of the time, between the first sample at work and the last.

Why it costs: a device that runs kernels 35 % of the time could do the same work in 35 % of the
time, if whatever it waits for were there. Memory that is nearly full says nothing against that:
it is held, not used.

Evidence it needs: utilization of five samples at work; fewer are judged with the word that they are
few. What the device waits for (input, the host, copies, other ranks, saves) no monitor shows.

What to do: record some steps (`stepscope run -- python train.py`), which says what it waits for.
Until then `top -H`: one Python thread at 100 % is the host, many worker processes at 100 % are the
input, nobody at work is a disk, a network or another rank.

Example: 35 % utilization with 82 of 85 GB in use: a loader without workers.
"""

from __future__ import annotations

from msgspec import Struct

from stepscope.api import Abstention, Advice, Auxiliary, Rule
from stepscope.core.recordings.system import DeviceSeries
from stepscope.recordings.system import one_busy_core

CODE = "idle-device"
BOUND = "host"


class Policy(Struct, frozen=True, kw_only=True):
    most_busy: float = 0.8
    """Share of the time that a device is busy. Courses of the field call less than this worth a
    look; no recording was used to choose it."""
    enough_samples: int = 5
    """Fewer are named: a look falls into a save or an evaluation as well as into a step."""
    least_touched: float = 0.01
    """Share of the time, in the median sample, from which the job uses a device, where its memory
    was not recorded."""
    full_memory: float = 0.9
    """Share of the device's memory from which it is named: users take it for work."""
    least_held: float = 0.02
    """Share of the device's memory from which a job holds it: drivers and a context are less on
    devices that train (a judgement)."""
    least_held_bytes: float = 2e9
    """The same, where its size is not known."""


POLICY = Policy()


def advise(auxiliary: Auxiliary) -> Advice | Abstention | None:
    """One for all devices that are idle, unless a recording of the host tells what they wait
    for."""
    devices = () if auxiliary.system is None else auxiliary.system.devices
    if not devices:
        return None
    if all(device.busy_share is None for device in devices):
        return Abstention(
            code=CODE,
            reason="the monitor did not record how busy the device was",
            needs="nvidia-smi dmon -s pucm, or utilization.gpu of nvidia-smi --query-gpu",
        )
    idle = [device for device in devices if is_idle(device) or hardly_works(device)]
    if not idle and any(0 < _num_samples(device) < POLICY.enough_samples for device in devices):
        return Abstention(
            code=CODE,
            reason="the monitor looked at the device fewer than five times",
            needs="nvidia-smi dmon -s pucm for a minute, or stepscope run -- COMMAND",
        )
    if not idle or one_busy_core.advise(auxiliary) is not None:
        return None
    worst = min(idle, key=_busy)
    busy = _busy(worst)
    name = f"{worst.label[0].upper()}{worst.label[1:]}"
    summary = f"{name} works {busy:.0%} of the time: it waits for something else."
    if few := looks_words(worst):
        summary = f"{few}, {worst.label} was busy for {busy:.0%} of the time: if it is always so, "
        summary += "it waits for something else."
    return Advice(
        code=CODE,
        bound=BOUND,
        summary=summary,
        action="stepscope run -- python train.py records what it waits for; until then top -H: "
        "workers at 100 % are the input, one Python thread at 100 % is the host",
        evidence=tuple(_line(device) for device in idle[:8]),
        weight=1 - busy,
        weight_of="the device's time",
    )


def looks_words(device: DeviceSeries) -> str:
    """How few samples there are; empty where they are enough."""
    num = _num_samples(device)
    if num >= POLICY.enough_samples:
        return ""
    return "In the only look" if num == 1 else f"In {num} looks"


def is_idle(device: DeviceSeries) -> bool:
    share = device.used_share
    return share is not None and share < POLICY.most_busy


def hardly_works(device: DeviceSeries) -> bool:
    """Whether no sample is of a device at work, and yet somebody uses it."""
    if device.num_working != 0 or not _num_samples(device):
        return False
    used, total = device.memory_used_bytes, device.memory_total_bytes
    if used is None:
        share = device.busy_share
        return share is not None and share.median >= POLICY.least_touched
    return used.median >= (POLICY.least_held * total if total else POLICY.least_held_bytes)


def _busy(device: DeviceSeries) -> float:
    if device.used_share is not None:
        return device.used_share
    share = device.busy_share
    return 0.0 if share is None else share.median if share.mean is None else share.mean


def _num_samples(device: DeviceSeries) -> int:
    samples = device.busy_run_share or device.busy_share
    return 0 if samples is None else samples.num


def _line(device: DeviceSeries) -> str:
    words = f"{device.label}: a kernel runs {_busy(device):.0%} of the time"
    used, total = device.memory_used_bytes, device.memory_total_bytes
    if used is not None and total and used.high / total >= POLICY.full_memory:
        words += (
            f"; {used.high / 1e9:.0f} of {total / 1e9:.0f} GB are held, which says nothing of work"
        )
    return words


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, advise=advise)
