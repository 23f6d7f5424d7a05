"""The machines: what one device does, how they are joined, and what they cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stepscope.core.hardware import DeviceSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """Devices that reach one another at one speed: those of a node, of a rack, of the cluster."""

    name: str
    size: int
    """Devices joined at this tier or a nearer one."""
    bytes_per_s: float
    """One direction, of one device."""
    latency_s: float
    """Of one hop of a collective."""
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemm:
    """How fast matrix products run: `peak` FLOP/s at best, less for thin or few tiles."""

    peak: float
    efficiency: float
    """Of the peak that a large product reaches."""
    half_k: float
    """The inner size at which half of that is reached."""
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Equal devices in equal nodes."""

    device: DeviceSpec
    num_devices: int
    devices_per_node: int
    tiers: tuple[Tier, ...]
    """From the nearest to the farthest."""
    memory_bytes: float
    """Of one device."""
    bandwidth_bytes_per_s: float
    peak_flops: Mapping[str, float]
    """By precision, as on the datasheet: what MFU is a share of."""
    gemms: Mapping[str, Gemm] = field(default_factory=dict)
    """Measured, by precision; where absent, what is usual on such a device."""
    host_memory_bytes: float = 1.0e12
    """Of a node."""
    host_bytes_per_s: float = 25e9
    """Between a device and its host, one direction."""
    power_w: float | None = None
    """Of one device under load, with its share of the node."""
    price_per_hour: float | None = None
    """Of one device."""
    name: str = ""

    @property
    def num_nodes(self) -> int:
        return -(-self.num_devices // self.devices_per_node)
