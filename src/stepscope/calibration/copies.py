"""Copies by size: within the device's memory,
and between device and host from pinned and from pageable memory."""

from __future__ import annotations

from collections.abc import Callable

from stepscope.calibration.device import Device, first_line, host_free_bytes
from stepscope.calibration.sweep import Sweep
from stepscope.core.calibrated import COPIES, CopyPoint


def measure_copies(device: Device, sweep: Sweep, note: Callable[[str], None]) -> list[CopyPoint]:
    points: list[CopyPoint] = []
    for kind in COPIES:
        for size in sweep.copies if kind == "device" else sweep.host_copies:
            room = device.free_bytes()
            if kind != "device":
                room = min(room, host_free_bytes())
            if 3 * size > room:
                note(f"{kind} copies of {size} bytes left out: not enough free memory")
                break
            try:
                time = device.timer.time(_copy(device, kind, size), sweep.point_s)
            except RuntimeError as problem:
                note(f"{kind} copies of {size} bytes: not possible here ({first_line(problem)})")
                break
            points.append(CopyPoint(kind=kind, size_bytes=size, time=time))
    return points


def _copy(device: Device, kind: str, size: int) -> Callable[[], object]:
    torch = device.torch

    def buffer(torch_device: str, pinned: bool = False) -> object:
        # Filled, because memory that was never written may not be there yet.
        return torch.zeros(size, dtype=torch.uint8, device=torch_device, pin_memory=pinned)

    if kind == "device":
        source, target = buffer(device.torch_device), buffer(device.torch_device)
        return lambda: target.copy_(source)  # type: ignore[attr-defined]
    pinned = kind.endswith("pinned")
    near, far = buffer(device.torch_device), buffer("cpu", pinned)
    source, target = (far, near) if kind.startswith("to_device") else (near, far)
    return lambda: target.copy_(source, non_blocking=pinned)  # type: ignore[attr-defined]
