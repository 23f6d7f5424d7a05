"""Copies by size: within the device's memory, and between device and host from pinned and from pageable memory."""

from __future__ import annotations

from collections.abc import Callable

from stepscope.calibration.device import Device, host_free_bytes
from stepscope.calibration.sweep import Extent
from stepscope.core.calibrated import COPIES, CopyPoint


def measure_copies(device: Device, extent: Extent, note: Callable[[str], None]) -> list[CopyPoint]:
    points: list[CopyPoint] = []
    for kind in COPIES:
        for size in extent.copies if kind == "device" else extent.host_copies:
            room = device.free_bytes() if kind == "device" else min(device.free_bytes(), host_free_bytes())
            if 3 * size > room:
                note(f"{kind} copies of {size} bytes left out: not enough free memory")
                break
            try:
                time = device.meter.time(_copy(device, kind, size), extent.point_s)
            except RuntimeError as problem:
                note(f"{kind} copies of {size} bytes: not possible here ({(str(problem).splitlines() or [''])[0][:120]})")
                break
            points.append(CopyPoint(kind=kind, size_bytes=size, time=time))
    return points


def _copy(device: Device, kind: str, size: int) -> Callable[[], object]:
    torch = device.torch

    def buffer(place: str, pinned: bool = False) -> object:
        # Filled, because memory that was never written may not be there yet.
        return torch.zeros(size, dtype=torch.uint8, device=place, pin_memory=pinned)

    if kind == "device":
        source, target = buffer(device.place), buffer(device.place)
        return lambda: target.copy_(source)  # type: ignore[attr-defined]
    pinned = kind.endswith("pinned")
    near, far = buffer(device.place), buffer("cpu", pinned)
    source, target = (far, near) if kind.startswith("to_device") else (near, far)
    return lambda: target.copy_(source, non_blocking=pinned)  # type: ignore[attr-defined]
