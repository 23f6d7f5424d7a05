"""Clusters in words.

"8x8xH100", "64xA100-40GB", "2xRTX3090", "8x8xH100@efa", or a path to a file that describes one.

What such a file, in TOML, leaves out is what is usual for the device.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct, structs

from stepscope.core.hardware import DeviceSpec, Figure
from stepscope.core.toml_text import read_toml, table_as
from stepscope.errors import InputError, UsageError
from stepscope.hardware.links import ACROSS, IN_NODE, IN_RACK, Tier, links_of
from stepscope.plan.cluster import Cluster, sized
from stepscope.plan.devices import (
    MAX_DEVICES,
    NamedDevice,
    find_device,
    joined,
    make_cluster,
    shown,
)
from stepscope.plan.networks import network_tier, on_network

MIN_NUMBER, MAX_NUMBER = 1e-6, 1e15
"""Bounds of any rate, size, price or time in the units of the file: beyond, products and quotients
are no numbers any more."""
_Count = Annotated[
    int, Meta(ge=1, le=MAX_DEVICES, description=f"a whole number from 1 to {MAX_DEVICES}")
]
_Number = Annotated[
    float,
    Meta(
        ge=MIN_NUMBER, lt=MAX_NUMBER, description=f"a number from {MIN_NUMBER:g} to {MAX_NUMBER:g}"
    ),
]
_Word = Annotated[str, Meta(max_length=200, description="a short text")]
_CLUSTER = re.compile(
    r"(?:(\d{1,9})\s*[xX*\u00d7]\s*)?(?:(\d{1,9})\s*[xX*\u00d7]\s*)?(\S.{0,100})", re.DOTALL
)


def parse_cluster(word: str) -> Cluster:
    """NODESxDEVICESxNAME, DEVICESxNAME, NAME, each with @NETWORK or not, or a path to a .toml
    file.

    Without a number of nodes, devices fill nodes of the usual size: 8 for SXM parts, 4 for cards
    and for GB200 and GB300.
    """
    if word.casefold().endswith(".toml"):
        return read_cluster(Path(word))
    word, has_network, network = word.partition("@")
    if has_network:
        return on_network(parse_cluster(word), network)
    match = _CLUSTER.fullmatch(word.strip())
    if match is None:
        raise UsageError(
            f"a cluster is NODESxDEVICESxNAME, such as 8x8xH100, or a .toml file, not {shown(word)}"
        )
    first, second, name = match.groups()
    if second is not None:
        nodes, per_node = int(first), int(second)
        return make_cluster(name, nodes * per_node, per_node)
    return make_cluster(name, 1 if first is None else int(first))


class _Link(Struct, frozen=True, forbid_unknown_fields=True):
    """Link of one device in one direction. What a file leaves out is None, here and below."""

    bandwidth_gb_per_s: _Number | None = None
    bandwidth_gbit_per_s: _Number | None = None
    latency_us: _Number | None = None


class _Across(_Link, frozen=True, forbid_unknown_fields=True):
    network: _Word | None = None


class _Rack(_Link, frozen=True, forbid_unknown_fields=True):
    size: _Count | None = None


class _Host(Struct, frozen=True, forbid_unknown_fields=True):
    memory_gb: _Number | None = None
    bandwidth_gb_per_s: _Number | None = None


class _Peaks(Struct, frozen=True, forbid_unknown_fields=True):
    fp64: _Number | None = None
    fp32: _Number | None = None
    tf32: _Number | None = None
    fp16: _Number | None = None
    bf16: _Number | None = None
    fp8: _Number | None = None
    fp4: _Number | None = None
    int8: _Number | None = None


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    name: _Word | None = None
    nodes: _Count = 1
    devices_per_node: _Count | None = None
    device: _Word | None = None
    memory_gb: _Number | None = None
    bandwidth_gb_per_s: _Number | None = None
    peak_tflops: _Peaks = _Peaks()
    power_w: _Number | None = None
    price_per_hour: _Number | None = None
    in_node: _Link = _Link()
    in_rack: _Rack = _Rack()
    across: _Across = _Across()
    host: _Host = _Host()


def read_cluster(path: Path) -> Cluster:
    """The cluster that a file describes; docs/models-and-clusters.md has every field."""
    return _cluster(read_toml(path, _File), str(path))


def cluster_from(values: Mapping[str, object], where: str) -> Cluster:
    """The cluster that the fields of such a file describe."""
    return _cluster(table_as(values, _File, where), where)


def _cluster(file: _File, where: str) -> Cluster:
    named = _device(file, where)
    per_node = file.devices_per_node or links_of(named.spec).devices_per_node
    if file.nodes * per_node > MAX_DEVICES:
        raise InputError(
            f"{where}: {file.nodes} nodes of {per_node} devices are more than {MAX_DEVICES}"
        )
    cluster = joined(named, file.nodes * per_node, per_node)
    return replace(
        cluster,
        tiers=_tiers(file, cluster, where),
        host_memory_bytes=_scaled(file.host.memory_gb, 2**30) or cluster.host_memory_bytes,
        host_bytes_per_s=_scaled(file.host.bandwidth_gb_per_s, 1e9) or cluster.host_bytes_per_s,
        power_w=file.power_w or cluster.power_w,
        price_per_hour=file.price_per_hour,
        name=file.name or cluster.name,
    )


def _scaled(value: float | None, unit: float) -> float | None:
    return None if value is None else value * unit


def _device(file: _File, where: str) -> NamedDevice:
    """The named device with what the file changes, or one that the file describes wholly."""
    word = file.device
    memory, bandwidth = _scaled(file.memory_gb, 2**30), _scaled(file.bandwidth_gb_per_s, 1e9)
    tflops = structs.asdict(file.peak_tflops)
    peaks = {precision: peak * 1e12 for precision, peak in tflops.items() if peak is not None}
    is_whole = memory is not None and bandwidth is not None and bool(peaks)
    if word is None and not is_whole:
        raise InputError(
            f"{where}: give device, or memory_gb, bandwidth_gb_per_s and [peak_tflops] of one of "
            "your own"
        )
    try:
        named = None if word is None else find_device(word)
    except UsageError as error:
        if not is_whole:
            raise InputError(
                f"{where}: device: {error}: memory_gb, bandwidth_gb_per_s and [peak_tflops]"
            ) from None
        named = None
    if named is None:
        assert memory is not None and bandwidth is not None
        return NamedDevice(spec=_own_device(word or "own device", memory, bandwidth, peaks, where))
    spec = named.spec
    if bandwidth is not None:
        spec = replace(spec, bandwidth_bytes_per_s=Figure(value=bandwidth, source=where))
    if peaks:
        figures = {precision: Figure(value=peak, source=where) for precision, peak in peaks.items()}
        spec = replace(spec, peak_flops={**spec.peak_flops, **figures})
    return replace(named, spec=spec, memory_bytes=memory or named.memory_bytes)


def _own_device(
    name: str, memory: float, bandwidth: float, peaks: Mapping[str, float], where: str
) -> DeviceSpec:
    return DeviceSpec(
        key="own",
        name=name,
        vendor="own",
        memory_bytes=Figure(value=memory, source=where),
        bandwidth_bytes_per_s=Figure(value=bandwidth, source=where),
        peak_flops={
            precision: Figure(value=peak, source=where) for precision, peak in peaks.items()
        },
        link_bytes_per_s={},
    )


def _tiers(file: _File, cluster: Cluster, where: str) -> tuple[Tier, ...]:
    usual = {tier.name: tier for tier in cluster.tiers}
    tiers = [_tier(file.in_node, usual[IN_NODE], f"{where}: [in_node]")]
    if file.in_rack != _Rack():
        size = file.in_rack.size or (usual[IN_RACK].size if IN_RACK in usual else None)
        if size is None or size < cluster.devices_per_node:
            least = f"at least the {cluster.devices_per_node} of a node"
            raise InputError(f"{where}: [in_rack]: size must be the devices of a rack, {least}")
        base = usual.get(IN_RACK) or structs.replace(usual[ACROSS], name=IN_RACK)
        tiers.append(structs.replace(_tier(file.in_rack, base, f"{where}: [in_rack]"), size=size))
    elif IN_RACK in usual:
        tiers.append(usual[IN_RACK])
    across = usual[ACROSS]
    if file.across.network is not None:
        try:
            across = network_tier(cluster, file.across.network)
        except UsageError as problem:
            raise InputError(f"{where}: [across]: network: {problem}") from None
    tiers.append(_tier(file.across, across, f"{where}: [across]"))
    return sized(tiers, cluster.devices_per_node, cluster.num_devices)


def _tier(link: _Link, usual: Tier, where: str) -> Tier:
    """A tier of the file, with what is usual for what it leaves out."""
    if link.bandwidth_gb_per_s is not None and link.bandwidth_gbit_per_s is not None:
        raise InputError(f"{where}: give bandwidth_gb_per_s or bandwidth_gbit_per_s, not both")
    rate = _scaled(link.bandwidth_gb_per_s, 1e9) or _scaled(link.bandwidth_gbit_per_s, 1e9 / 8)
    latency = _scaled(link.latency_us, 1e-6)
    if rate is None and latency is None:
        return usual
    return structs.replace(
        usual,
        bytes_per_s=rate or usual.bytes_per_s,
        latency_s=latency or usual.latency_s,
        source=f"{where}; else {usual.source}",
    )
