"""A device as the label of a process in Perfetto's own form, which has no field for one: written by
the export, and read back from it."""

from __future__ import annotations

import re

from stepscope.core.trace import DeviceProperties

LABEL = re.compile(
    r"device (\d{1,5}): ([^;]{1,200})(?:; (\d{1,6}) SMs)?(?:; (\d{1,18}) bytes)?"
    r"(?:; compute capability (\d{1,4})\.(\d{1,4}))?(?:; warp (\d{1,4}))?"
)


def device_label(device: DeviceProperties) -> str:
    """`device 0: NVIDIA H200; 132 SMs; 150109880320 bytes; compute capability 9.0; warp 32`."""
    capability = device.compute_capability
    parts = (
        f"device {device.index}: {device.name.replace(';', ',')}",
        None if device.num_sms is None else f"{device.num_sms} SMs",
        None if device.memory_bytes is None else f"{device.memory_bytes} bytes",
        None if capability is None else f"compute capability {capability[0]}.{capability[1]}",
        None if device.warp_size is None else f"warp {device.warp_size}",
    )
    return "; ".join(part for part in parts if part is not None)


def device_of_label(label: str) -> DeviceProperties | None:
    """None where it is another label."""
    match = LABEL.fullmatch(label)
    if match is None:
        return None
    index, name, *rest = match.groups()
    sms, size, major, minor, warp = (None if text is None else int(text) for text in rest)
    return DeviceProperties(
        index=int(index),
        name=name,
        memory_bytes=size,
        num_sms=sms,
        compute_capability=None if major is None or minor is None else (major, minor),
        warp_size=warp,
    )
