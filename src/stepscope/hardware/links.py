"""How devices of one kind are usually joined: the links of a node, of a rack, of the cluster, and
what collectives reach of them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from stepscope.core.codec import AtLeastZero, Count
from stepscope.core.hardware import DeviceSpec, Figure

IN_NODE, IN_RACK, ACROSS = "in-node", "in-rack", "across"
LINK_SHARE = 0.74
"""Share of a node's own links that collectives reach, as bus bandwidth: NCCL reaches 230 of 300
GB/s on an A100, 360 of 450 on an H100; *fitted* a little lower."""
NETWORK_SHARE = 0.75
"""The same of a network card."""
NETWORK_FALL = 0.08
"""Bus bandwidth over several nodes falls with their number to this power. *Fitted*."""
COLLECTIVE_S = 35e-6
"""Time to start any collective, beside its hops: NCCL's all-reduce of 1 MB takes 44, 51 and 93 us
over 2, 4 and 8 A100s of a node (vTrain's published tables), of which hops are 7, 20 and 48."""
# Of the 0.74 that collectives usually reach. All-reduces of 64 MB over the 8 MI300X of a node come
# to 230 of 448 GB/s (Primus, node-smoke.md).
_XGMI_SHARE = 0.69
# Gathers and scatters over the 8 B200s of a node come to 606 of 900 GB/s, all-reduces to 668, the
# usual 0.74 (SimuMax, configs/system/b200_bf16_ceperm.json, fitted there to nccl-tests).
_NVLINK5_BYTES_PER_S, _NVLINK5_SHARE = 900e9, 0.91


class Tier(Struct, frozen=True, kw_only=True):
    """Devices that reach one another at one speed: those of a node, of a rack, of the cluster."""

    name: str
    size: Count
    """Devices joined at this tier or a nearer one."""
    bytes_per_s: AtLeastZero
    """One direction, of one device."""
    latency_s: AtLeastZero
    """Seconds of one hop of a collective."""
    source: str = ""
    is_measured: bool = False
    keeps_order: bool = True
    """Whether 128 bytes arrive whole and in order, which NCCL's LL128 needs: over NVLink,
    InfiniBand and RoCE they do, over EFA and sockets they do not."""
    share: float = 1.0
    """Share of such a rate that collectives usually reach; 1 where it was measured."""
    gather_share: float = 1.0
    """Fraction of `share` that gathers and scatters reach."""

    @property
    def waits_each_step(self) -> bool:
        """Whether every step of a ring over nodes takes a hop between them: without LL128 parts go
        as whole chunks. A latency that was measured has it."""
        return not (self.keeps_order or self.is_measured)

    def bus_bytes_per_s(self, usual_share: float, *, is_gather: bool = False) -> float:
        """Bus bandwidth as collectives reach it."""
        if self.is_measured:
            return self.bytes_per_s * usual_share
        own = self.share * (self.gather_share if is_gather else 1.0)
        return self.bytes_per_s * usual_share * own


class Links(Struct, frozen=True, kw_only=True):
    """How devices of one kind are usually joined; the figures of links.json."""

    devices: tuple[str, ...]
    devices_per_node: int
    link: str
    """Inside a node: nvlink, xgmi or pcie."""
    across_bytes_per_s: Figure
    host_memory_bytes: Figure
    power_w: Figure | None = None
    rack: Figure | None = None
    """Devices that the in-node link joins beyond the node."""
    host_bytes_per_s: Figure | None = None


class LinkFile(Struct, frozen=True, kw_only=True):
    conventions: tuple[str, ...]
    aliases: Mapping[str, str]
    latencies: Mapping[str, Figure]
    sites: Mapping[str, Figure]
    """Networks of known machines, in bytes/s of one device."""
    defaults: Links
    groups: tuple[Links, ...]


def usual_tiers(spec: DeviceSpec) -> tuple[Tier, ...]:
    """The links that devices of this kind are usually joined by, the fastest first."""
    links = links_of(spec)
    return tiers_of(spec, links, links.devices_per_node)


def tiers_of(spec: DeviceSpec, links: Links, per_node: int) -> tuple[Tier, ...]:
    """The same, in nodes of so many devices."""
    latencies = load_links().latencies
    kind = links.link if links.link in spec.link_bytes_per_s else "pcie"
    rate = spec.link_bytes_per_s.get(kind) or Figure(value=32e9, source="PCIe Gen4 x16, assumed")
    near = latencies["pcie" if kind == "pcie" else "nvlink"]
    inside = Tier(
        name=IN_NODE,
        size=per_node,
        bytes_per_s=rate.value,
        latency_s=near.value,
        source=f"{rate.source}; {near.source}",
        share=_XGMI_SHARE if kind == "xgmi" else 1.0,
        gather_share=_gather_share(kind, rate.value),
    )
    tiers = [inside]
    if links.rack is not None and links.rack.value > per_node:
        tiers.append(
            replace(
                inside,
                name=IN_RACK,
                size=int(links.rack.value),
                source=f"{links.rack.source}; {inside.source}",
            )
        )
    far, network = links.across_bytes_per_s, latencies["network"]
    source = f"{far.source}; {network.source}"
    tiers.append(
        Tier(
            name=ACROSS,
            size=per_node,
            bytes_per_s=far.value,
            latency_s=network.value,
            source=source,
        )
    )
    return tuple(tiers)


def _gather_share(kind: str, bytes_per_s: float) -> float:
    """Fraction of what other collectives reach of a node's own links that gathers and scatters
    reach."""
    is_fifth = kind == "nvlink" and bytes_per_s >= _NVLINK5_BYTES_PER_S
    return _NVLINK5_SHARE if is_fifth else 1.0


def links_of(spec: DeviceSpec) -> Links:
    """How such devices are usually joined."""
    file = load_links()
    return next((group for group in file.groups if spec.key in group.devices), file.defaults)


@cache
def load_links() -> LinkFile:
    """links.json, with the short names of devices and the networks of known sites."""
    return msgspec.json.decode(
        resources.files("stepscope.hardware").joinpath("links.json").read_bytes(), type=LinkFile
    )
