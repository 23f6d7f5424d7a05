"""The host's side: what starting a kernel costs, and how fast it runs plain Python."""

from __future__ import annotations

import time
from collections.abc import Callable

from stepscope.calibration.device import Device
from stepscope.calibration.timer import HostTimer, timing
from stepscope.core.calibrated import HostSpeed, Launch

NUM_LAUNCHES = 500
"""Under the thousand or so that a GPU queues: past that the host waits for the device."""
NUM_ROUNDS = 20_000
REPEATS = 9


def measure_launch(
    device: Device, point_s: float, now: Callable[[], float] = time.perf_counter
) -> Launch:
    torch = device.torch
    value = torch.zeros(1, device=device.torch_device)

    def call() -> object:
        return value.add_(1)

    for _ in range(10):
        call()
    samples = []
    for _ in range(REPEATS):
        if device.kind == "cuda":
            torch.cuda.synchronize()
        start = now()
        for _ in range(NUM_LAUNCHES):
            call()
        samples.append(max((now() - start) / NUM_LAUNCHES, 1e-9))
    floor = device.timer.time(call, point_s) if device.kind == "cuda" else None
    return Launch(host=timing(samples), device=floor)


def measure_host(device: Device, point_s: float, timer: HostTimer | None = None) -> HostSpeed:
    timer = timer or HostTimer()
    torch = device.torch
    few = torch.ones(8)
    return HostSpeed(
        python_ops_per_s=NUM_ROUNDS / timer.time(plain_python, point_s).seconds,
        torch_ops_per_s=1 / timer.time(lambda: few + few, point_s).seconds,
    )


def plain_python() -> int:
    """A fixed piece of work.

    Arithmetic, a dict and a call in each round, as loops around a model have them.
    """
    values: dict[int, int] = {}
    total = 0
    for number in range(NUM_ROUNDS):
        values[number & 63] = total
        total = (total + len(values) * number) & 0xFFFF
    return total
