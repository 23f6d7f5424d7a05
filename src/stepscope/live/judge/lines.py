"""What a triage shows of each device, and of where threads stood most."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.core.recordings.system import DeviceSeries, HostStacks, Spread
from stepscope.live.shapes.triage import TriagedDevice, TriagedFunction

MAX_FUNCTIONS = 8


def device_line(device: DeviceSeries) -> TriagedDevice:
    """Its samples in one figure each: those at work, where they are known."""
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
