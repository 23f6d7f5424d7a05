"""The machines: what one device does, how they are joined, and what they cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from msgspec import structs

from stepscope.core.hardware import DeviceSpec
from stepscope.errors import UsageError
from stepscope.hardware.links import IN_RACK, Tier

USABLE = 0.92
"""Drivers keep a hundredth of what the maker prints (an H100 shows 79.6 of 80 GiB), and slack is
counted at its mean, 4 % of tensors, but comes to 9 % on some of 344 ranks. Of nine published
layouts that are planned at 92 to 94 %, five did not run."""
ROOMY = 0.90
"""What is recommended leaves a tenth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemm:
    """How fast matrix products run: `peak` FLOP/s at best, less for thin or few tiles."""

    peak: float
    efficiency: float
    """Share of the peak that a large product reaches."""
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
    """Tiers from the nearest (the node) to the farthest (the cluster), even where one node is all
    there is."""
    memory_bytes: float
    """One device's."""
    bandwidth_bytes_per_s: float
    peak_flops: Mapping[str, float]
    """Peaks by precision, as on the datasheet: what MFU is a share of."""
    gemms: Mapping[str, Gemm] = field(default_factory=dict)
    """Measured, by precision; where absent, what is usual on such a device."""
    attention: Mapping[str, float] = field(default_factory=dict)
    """Measured, in FLOP/s of causal attention's own half, for heads of 128: forward,
    backward (as 2.5 forwards)."""
    host_memory_bytes: float = 1.0e12
    """One node's."""
    host_bytes_per_s: float = 25e9
    """Rate between a device and its host, one direction."""
    disk_bytes_per_s: float = 5e9
    """Rate that a node's disks read or write: one drive on four lanes of PCIe 4, unless it is
    said."""
    power_share: float = 1.0
    """Share of the board's rating, where it is held below it: products on newer devices are bound
    by power."""
    power_w: float | None = None
    """One device's, under load, with its share of the node."""
    price_per_hour: float | None = None
    """One device's."""
    name: str = ""
    notes: tuple[str, ...] = ()
    """What was assumed."""

    @property
    def usable_bytes(self) -> float:
        """Bytes of a device that a job can fill before it runs out of memory."""
        return USABLE * self.memory_bytes

    @property
    def roomy_bytes(self) -> float:
        """Bytes of a device that a layout may fill to be recommended."""
        return ROOMY * self.memory_bytes

    @property
    def num_nodes(self) -> int:
        return -(-self.num_devices // self.devices_per_node)


def resized(cluster: Cluster, num_devices: int) -> Cluster:
    """The same machines with so many devices in all; fewer than a node has are one smaller node."""
    if num_devices < 1:
        raise UsageError(f"a cluster has at least one device, not {num_devices}")
    per_node = min(cluster.devices_per_node, num_devices)
    return replace(
        cluster,
        num_devices=num_devices,
        devices_per_node=per_node,
        tiers=sized(cluster.tiers, per_node, num_devices),
    )


def sized(tiers: Sequence[Tier], per_node: int, num_devices: int) -> tuple[Tier, ...]:
    """The tiers of so many devices: the nearest is the node, the last the cluster.

    A rack keeps its size.
    """
    first, *middle, last = tiers
    largest = max([num_devices, *(tier.size for tier in middle)])
    return (structs.replace(first, size=per_node), *middle, structs.replace(last, size=largest))


def faster_network(cluster: Cluster, factor: float) -> Cluster:
    """The same machines with a network so many times as fast.

    Every tier that leaves the node, or its rack.
    """
    if not factor > 0 or factor == float("inf"):
        raise UsageError(f"a network cannot be {factor:g} times as fast")
    in_node, *farther = cluster.tiers
    tiers = [in_node]
    for tier in farther:
        # A rack at the node's own rate is wired, not networked: NVL72.
        is_wired = tier.name == IN_RACK and tier.bytes_per_s == in_node.bytes_per_s
        faster = structs.replace(
            tier, bytes_per_s=tier.bytes_per_s * factor, source=f"{tier.source}; x {factor:g}"
        )
        tiers.append(tier if is_wired else faster)
    return replace(cluster, tiers=tuple(tiers))
