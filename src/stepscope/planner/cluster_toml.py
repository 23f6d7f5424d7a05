"""A cluster described in a TOML file: what the file leaves out is what is usual for the device."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from stepscope.core.hardware import DeviceSpec, Figure
from stepscope.core.toml_text import parse_toml
from stepscope.errors import InputError, UsageError
from stepscope.planner.cluster import ACROSS, IN_NODE, IN_RACK, Cluster, Tier, sized
from stepscope.planner.devices import MAX_DEVICES, FoundDevice, find_device, joined, links_of
from stepscope.untrusted import read_regular

MAX_BYTES = 2**20
LEAST, MOST = 1e-6, 1e15
"""Of any rate, size, price or time in the units of the file: beyond, products and quotients are no numbers any more."""
_MAX_SHOWN = 60
_PRECISIONS = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "int8")

_TOP = (
    "name",
    "nodes",
    "devices_per_node",
    "device",
    "memory_gb",
    "bandwidth_gb_per_s",
    "peak_tflops",
    "power_w",
    "price_per_hour",
)
_TABLES = ("in_node", "in_rack", "across", "host")


@dataclass(frozen=True, slots=True)
class _Table:
    """One table of the file, its values checked as they are asked for."""

    where: str
    values: Mapping[str, object]

    def only(self, *known: str) -> _Table:
        for name in self.values:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
                raise InputError(f"{self.where}: no field is named {_shown(name)}; {hint}")
        return self

    def count(self, name: str) -> int | None:
        value = self.values.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_DEVICES:
            raise InputError(f"{self.where}: {name} must be a whole number from 1 to {MAX_DEVICES}, not {_shown(value)}")
        return value

    def number(self, name: str, unit: float = 1.0) -> float | None:
        """A positive number, in units of `unit`."""
        value = self.values.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not LEAST <= value < MOST:
            raise InputError(f"{self.where}: {name} must be a number from {LEAST:g} to {MOST:g}, not {_shown(value)}")
        return float(value) * unit

    def word(self, name: str) -> str | None:
        value = self.values.get(name)
        if value is not None and (not isinstance(value, str) or len(value) > 200):
            raise InputError(f"{self.where}: {name} must be a short text, not {_shown(value)}")
        return value

    def table(self, name: str) -> _Table:
        value = self.values.get(name, {})
        if not isinstance(value, dict):
            raise InputError(f"{self.where}: {name} must be a table, [{name}], not {_shown(value)}")
        return _Table(f"{self.where}: [{name}]", value)


def read_cluster(path: Path) -> Cluster:
    """The cluster that a file describes; docs/models-and-clusters.md has every field."""
    try:
        values = parse_toml(read_regular(path, MAX_BYTES))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read as the description of a cluster: {error.strerror or error}") from None
    except ValueError as error:
        raise InputError(f"{path}: not TOML: {ascii(str(error))[1:-1][:200]}") from None
    return cluster_from(values, str(path))


def cluster_from(values: Mapping[str, object], where: str) -> Cluster:
    """The cluster that the fields of such a file describe."""
    top = _Table(where, values).only(*_TOP, *_TABLES)
    per_node, nodes = top.count("devices_per_node"), top.count("nodes") or 1
    found = _device(top)
    per_node = per_node or links_of(found.spec).devices_per_node
    if nodes * per_node > MAX_DEVICES:
        raise InputError(f"{where}: {nodes} nodes of {per_node} devices are more than {MAX_DEVICES}")
    cluster = joined(found, nodes * per_node, per_node)
    host = top.table("host").only("memory_gb", "bandwidth_gb_per_s")
    return replace(
        cluster,
        tiers=_tiers(top, cluster),
        host_memory_bytes=host.number("memory_gb", 2**30) or cluster.host_memory_bytes,
        host_bytes_per_s=host.number("bandwidth_gb_per_s", 1e9) or cluster.host_bytes_per_s,
        power_w=top.number("power_w") or cluster.power_w,
        price_per_hour=top.number("price_per_hour"),
        name=top.word("name") or cluster.name,
    )


def _device(top: _Table) -> FoundDevice:
    """The named device with what the file changes, or one that the file describes wholly."""
    word = top.word("device")
    memory, bandwidth = top.number("memory_gb", 2**30), top.number("bandwidth_gb_per_s", 1e9)
    table = top.table("peak_tflops").only(*_PRECISIONS)
    peaks = {precision: peak for precision in _PRECISIONS if (peak := table.number(precision, 1e12)) is not None}
    is_whole = memory is not None and bandwidth is not None and bool(peaks)
    if word is None and not is_whole:
        raise InputError(f"{top.where}: give device, or memory_gb, bandwidth_gb_per_s and [peak_tflops] of one of your own")
    try:
        found = None if word is None else find_device(word)
    except UsageError as error:
        if not is_whole:
            raise InputError(f"{top.where}: device: {error}: memory_gb, bandwidth_gb_per_s and [peak_tflops]") from None
        found = None
    if found is None:
        assert memory is not None and bandwidth is not None
        return FoundDevice(spec=_own_device(word or "own device", memory, bandwidth, peaks, top.where))
    spec = found.spec
    if bandwidth is not None:
        spec = replace(spec, bandwidth_bytes_per_s=Figure(value=bandwidth, source=top.where))
    if peaks:
        told = {precision: Figure(value=peak, source=top.where) for precision, peak in peaks.items()}
        spec = replace(spec, peak_flops={**spec.peak_flops, **told})
    return replace(found, spec=spec, memory_bytes=memory or found.memory_bytes)


def _own_device(name: str, memory: float, bandwidth: float, peaks: Mapping[str, float], where: str) -> DeviceSpec:
    return DeviceSpec(
        key="own",
        name=name,
        vendor="own",
        memory_bytes=Figure(value=memory, source=where),
        bandwidth_bytes_per_s=Figure(value=bandwidth, source=where),
        peak_flops={precision: Figure(value=peak, source=where) for precision, peak in peaks.items()},
        link_bytes_per_s={},
    )


def _tiers(top: _Table, cluster: Cluster) -> tuple[Tier, ...]:
    usual = {tier.name: tier for tier in cluster.tiers}
    rack = top.table("in_rack")
    tiers = [_tier(top.table("in_node"), usual[IN_NODE])]
    if rack.values:
        size = rack.count("size") or (usual[IN_RACK].size if IN_RACK in usual else None)
        if size is None or size < cluster.devices_per_node:
            raise InputError(
                f"{rack.where}: size must be the devices of a rack, at least the {cluster.devices_per_node} of a node"
            )
        base = usual.get(IN_RACK) or replace(usual[ACROSS], name=IN_RACK)
        tiers.append(replace(_tier(rack, base, "size"), size=size))
    elif IN_RACK in usual:
        tiers.append(usual[IN_RACK])
    tiers.append(_tier(top.table("across"), usual[ACROSS]))
    return sized(tiers, cluster.devices_per_node, cluster.num_devices)


def _tier(table: _Table, usual: Tier, *more: str) -> Tier:
    """A tier of the file. Its rate is given in gigabytes or in gigabits, of one device in one direction."""
    table.only("bandwidth_gb_per_s", "bandwidth_gbit_per_s", "latency_us", *more)
    in_bytes, in_bits = table.number("bandwidth_gb_per_s", 1e9), table.number("bandwidth_gbit_per_s", 1e9 / 8)
    if in_bytes is not None and in_bits is not None:
        raise InputError(f"{table.where}: give bandwidth_gb_per_s or bandwidth_gbit_per_s, not both")
    rate, latency = in_bytes or in_bits, table.number("latency_us", 1e-6)
    if rate is None and latency is None:
        return usual
    return replace(
        usual,
        bytes_per_s=rate or usual.bytes_per_s,
        latency_s=latency or usual.latency_s,
        source=f"{table.where}; else {usual.source}",
    )


def _shown(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
