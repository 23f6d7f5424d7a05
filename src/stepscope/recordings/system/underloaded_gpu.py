"""The device always has a kernel on it and hardly draws power: what runs there is not full.

What it sees: a monitor's samples (nvidia-smi, dmon with a limit beside it, rocm-smi, or NVML asked
by `stepscope triage`) with high utilization and power far below the limit.

Why it costs: utilization is the share of time in which any kernel ran, one thread of it too. A
device whose units work draws most of its limit; at a quarter of it, near what it draws idle with
its clocks up, a kernel waits (a collective for another rank, a lock), or is far too small.

Evidence it needs: utilization and power of the same samples, and the power limit.

What to do: `stepscope attach PID` shows whether ranks wait in a collective; a trace (`stepscope run
-- python train.py`) shows which kernels: small ones want larger batches, `torch.compile` or CUDA
graphs, collectives want the late rank found.

Example: 100 % utilization at 150 of 700 W: seven ranks wait in all_reduce for the eighth.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from stepscope.api import Advice, Auxiliary, Rule
from stepscope.core.recordings.system import DeviceSeries

CODE = "underloaded-gpu"
BOUND = "compute"


class Policy(Struct, frozen=True, kw_only=True):
    least_busy: float = 0.7
    """Share of the time with a kernel: below it idle time is the matter."""
    most_power: float = 0.4
    """Share of the power limit, at the median of the samples at work. Idle with its clocks up an
    H200 draws 0.18 of its 700 W; kernels that only move memory draw about half of a limit."""
    least_working: int = 5
    """Samples at work from which a recording stands for a run."""


POLICY = Policy()


def advise(auxiliary: Auxiliary, least_working: int = POLICY.least_working) -> Advice | None:
    """One for all devices that are so."""
    devices = () if auxiliary.system is None else with_limits(auxiliary.system.devices)
    chosen = [device for device in devices if is_underloaded(device, least_working)]
    if not chosen:
        return None
    worst = min(chosen, key=lambda device: power_share(device) or 1.0)
    share = power_share(worst)
    return Advice(
        code=CODE,
        bound=BOUND,
        summary=f"{worst.label[0].upper()}{worst.label[1:]} is busy {worst.used_share:.0%} of the "
        f"time and draws {power_words(worst)}: it is not full.",
        action="stepscope attach PID: do ranks wait in a collective? Else record a trace "
        "(stepscope run -- python train.py): the kernels are too small",
        evidence=tuple(
            f"{device.label}: busy {device.used_share:.0%} of the time at {power_words(device)}"
            for device in chosen[:8]
        ),
        weight=None if share is None else 1 - share,
        weight_of="the power limit",
    )


def is_underloaded(device: DeviceSeries, least_working: int) -> bool:
    share, busy = power_share(device), device.used_share
    if share is None or busy is None or (device.num_working or 0) < least_working:
        return False
    return busy >= POLICY.least_busy and share < POLICY.most_power


def power_share(device: DeviceSeries) -> float | None:
    """Share of the power limit, while at work."""
    if device.power_working_w is None or not device.power_limit_w:
        return None
    return device.power_working_w.median / device.power_limit_w


def power_words(device: DeviceSeries) -> str:
    if device.power_working_w is None:
        return "power that was not recorded"
    limit = "" if device.power_limit_w is None else f" of {device.power_limit_w:.0f}"
    return f"{device.power_working_w.median:.0f}{limit} W"


def with_limits(devices: Sequence[DeviceSeries]) -> tuple[DeviceSeries, ...]:
    """Each with its power limit, where another recording of the same device has it: dmon does
    not."""
    known: dict[tuple[str | None, int | None], float] = {
        (device.host, device.index): device.power_limit_w
        for device in devices
        if device.power_limit_w is not None and device.index is not None
    }
    return tuple(
        device
        if device.power_limit_w is not None
        else replace(device, power_limit_w=known.get((device.host, device.index)))
        for device in devices
    )


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, advise=advise)
