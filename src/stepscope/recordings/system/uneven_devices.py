"""Devices of one run are not equally busy, by a monitor's samples: some wait for others.

What it sees: a monitor's samples of several devices of one kind at the same time, one of them at
work for far less of it than another.

Why it costs: ranks that exchange gradients step at the pace of the last one. A device that is idle
more than its peers waits for its own input or host; or it is done early, and its peers stand in a
collective, which counts as busy.

Evidence it needs: utilization of five samples of each device, in the same recording; fewer are
judged with the word that they are few.

What to do: record all ranks (`stepscope run -- torchrun ... train.py`): late-rank and uneven-work
name the rank and why. Where the job is meant to leave a device idle, leave it out with
CUDA_VISIBLE_DEVICES.

Example: two devices at 95 % and 42 % in the same hundred samples.
"""

from __future__ import annotations

from collections import defaultdict

from msgspec import Struct

from stepscope.api import Advice, Auxiliary, Rule
from stepscope.core.recordings.system import DeviceSeries
from stepscope.recordings.system.idle_device import looks_words

CODE = "uneven-devices"
BOUND = "imbalance"


class Policy(Struct, frozen=True, kw_only=True):
    least_apart: float = 0.2
    """Share of the time by which devices must differ. Ranks of one model differ by a few percent in
    the samples of a monitor."""


POLICY = Policy()


def advise(auxiliary: Auxiliary) -> list[Advice]:
    """One for each host and kind of device."""
    together: dict[tuple[str | None, str | None], list[DeviceSeries]] = defaultdict(list)
    for device in () if auxiliary.system is None else auxiliary.system.devices:
        if device.used_share is not None:
            together[device.host, device.name].append(device)
    return [advice for alike in together.values() if (advice := _advice(alike)) is not None]


def _advice(devices: list[DeviceSeries]) -> Advice | None:
    devices = sorted(devices, key=lambda device: device.used_share or 0.0)
    least, most = devices[0], devices[-1]
    low, high = least.used_share or 0.0, most.used_share or 0.0
    if high - low < POLICY.least_apart:
        return None
    name = f"{least.label[0].upper()}{least.label[1:]}"
    summary = f"{name} works {low:.0%} of the time, {most.label} {high:.0%}."
    if few := looks_words(least):
        summary = (
            f"{few}, {least.label} was busy for {low:.0%} of the time, {most.label} {high:.0%}."
        )
    return Advice(
        code=CODE,
        bound=BOUND,
        summary=summary,
        action="record all ranks (stepscope run -- torchrun ... train.py): late-rank and "
        "uneven-work name the one that the others wait for",
        evidence=tuple(
            f"{device.label}: a kernel runs {device.used_share:.0%} of the time"
            for device in devices[:8]
        ),
        weight=high - low,
        weight_of="the device's time",
    )


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, advise=advise)
