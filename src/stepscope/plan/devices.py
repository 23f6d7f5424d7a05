"""Devices by their names in any spelling,
and how so many of one kind are usually joined into a cluster."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

from msgspec import structs

from stepscope.core.hardware import DeviceSpec, Figure
from stepscope.errors import UsageError
from stepscope.hardware.links import Links, links_of, load_links, tiers_of
from stepscope.hardware.lookup import find_spec_by_key, load_specs
from stepscope.plan.cluster import Cluster, sized

MAX_DEVICES = 10**7
_NUM_NEAREST = 5
# What pinned copies reach of the PCIe rate: about 25 of 32 GB/s, 52 of 64.
_HOST_SHARE = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedDevice:
    """A device by its name, and what the name says of this one that the datasheet does not."""

    spec: DeviceSpec
    memory_bytes: float | None = None
    bandwidth_bytes_per_s: float | None = None
    power_w: float | None = None
    across: Figure | None = None
    """The network of the site that the name says."""
    notes: tuple[str, ...] = ()


def make_cluster(
    device: str,
    num_devices: int,
    devices_per_node: int | None = None,
    *,
    memory_bytes: float | None = None,
) -> Cluster:
    """Cluster of so many devices of a name, joined as is usual for them."""
    named = find_device(device)
    if memory_bytes is not None:
        named = replace(named, memory_bytes=memory_bytes)
    return joined(named, num_devices, devices_per_node)


def joined(named: NamedDevice, num_devices: int, devices_per_node: int | None = None) -> Cluster:
    """A cluster of so many devices in nodes of the usual or the given size."""
    spec, links = named.spec, links_of(named.spec)
    if named.across is not None:
        links = structs.replace(links, across_bytes_per_s=named.across)
    if not 1 <= num_devices <= MAX_DEVICES or (
        devices_per_node is not None and devices_per_node < 1
    ):
        raise UsageError(f"a cluster has from 1 to {MAX_DEVICES} devices, at least one to a node")
    notes = named.notes
    if devices_per_node is None:
        devices_per_node = _equal_share(num_devices, links.devices_per_node)
        if num_devices > devices_per_node != links.devices_per_node:
            notes += (
                (
                    f"{num_devices} devices in equal nodes: {devices_per_node} to a node, not the "
                    f"usual {links.devices_per_node}"
                ),
            )
    per_node = min(devices_per_node, num_devices)
    num_nodes = -(-num_devices // per_node)
    power_share = 1.0
    if named.power_w is not None and links.power_w is not None:
        power_share = min(1.0, named.power_w / links.power_w.value)
    return Cluster(
        device=spec,
        num_devices=num_devices,
        devices_per_node=per_node,
        tiers=sized(tiers_of(spec, links, per_node), per_node, num_devices),
        memory_bytes=named.memory_bytes or spec.memory_bytes.value,
        bandwidth_bytes_per_s=named.bandwidth_bytes_per_s or spec.bandwidth_bytes_per_s.value,
        peak_flops={precision: figure.value for precision, figure in spec.peak_flops.items()},
        host_memory_bytes=links.host_memory_bytes.value,
        host_bytes_per_s=_host_rate(spec, links),
        power_share=power_share,
        power_w=named.power_w or (None if links.power_w is None else links.power_w.value),
        name=f"{num_nodes} x {per_node} x {spec.name}",
        notes=notes,
    )


def _equal_share(num_devices: int, usual: int) -> int:
    """Devices to a node, so that nodes are equal and as large as usual or the next smaller that
    divides."""
    return next(size for size in range(min(usual, num_devices), 0, -1) if num_devices % size == 0)


def with_device(cluster: Cluster, word: str) -> Cluster:
    """Cluster of as many devices of another kind, in nodes of the same size, with the other kind's
    usual links."""
    return joined(find_device(word), cluster.num_devices, cluster.devices_per_node)


def whole_node(cluster: Cluster) -> Cluster:
    """Cluster with nodes as large as is usual, where the one named is only a part of one."""
    usual = links_of(cluster.device).devices_per_node
    if cluster.num_nodes > 1 or cluster.devices_per_node >= usual or cluster.device.vendor == "own":
        return cluster
    return replace(
        cluster,
        num_devices=usual,
        devices_per_node=usual,
        tiers=sized(cluster.tiers, usual, usual),
    )


def _host_rate(spec: DeviceSpec, links: Links) -> float:
    if links.host_bytes_per_s is not None:
        return links.host_bytes_per_s.value
    pcie = spec.link_bytes_per_s.get("pcie")
    return _HOST_SHARE * (32e9 if pcie is None else pcie.value)


# Devices by name.


def find_device(word: str) -> NamedDevice:
    """The device of a name in any spelling.

    A key, what is printed or recorded, a short form, with memory or power.
    """
    bare, in_brackets = _BRACKETS.sub(" ", word), _BRACKETS.findall(word)
    # "V100 (DGX-2)": what stands in brackets may say which one, or at which site.
    inside = (_keys().get(_plain(text)) for text in in_brackets)
    across = next(
        (
            rate
            for name, rate in load_links().sites.items()
            for text in in_brackets
            if name in text.casefold()
        ),
        None,
    )
    key = (
        next((key for key in inside if key is not None), None)
        or _keys().get(_plain(word))
        or _keys().get(_plain(bare))
    )
    if key is not None:
        return NamedDevice(spec=_spec(key), across=across)
    memory, power = _MEMORY.search(bare), _POWER.search(bare)
    rest = _plain(_POWER.sub(" ", _MEMORY.sub(" ", _KIND.sub(" ", bare))))
    key = _keys().get(rest)
    if key is None:
        raise UsageError(
            f"no device is named {shown(word)}; {_nearest(rest)}, or describe it in a .toml file"
        )
    named = replace(_refitted(_spec(key), memory, power), across=across)
    return _older_memory(named) if "hbm2e" in bare.casefold() else named


def _refitted(
    spec: DeviceSpec, memory: re.Match[str] | None, power: re.Match[str] | None
) -> NamedDevice:
    """A device whose name has other memory or power than its datasheet."""
    notes: tuple[str, ...] = ()
    memory_bytes = None if memory is None else float(memory[1]) * 2**30
    if memory_bytes == spec.memory_bytes.value:
        memory_bytes = None
    if memory_bytes is not None:
        notes = (f"{memory_bytes / 2**30:g} GB of memory as named; the rest is {spec.name}'s",)
    return NamedDevice(
        spec=spec,
        memory_bytes=memory_bytes,
        power_w=None if power is None else float(power[1]),
        notes=notes,
    )


def _older_memory(named: NamedDevice) -> NamedDevice:
    """A device refitted with HBM2e, which has 0.41 TB/s for each stack of 16 GB,
    as on the A100 of 80 GB."""
    rate = (named.memory_bytes or named.spec.memory_bytes.value) / 2**34 * _HBM2E_BYTES_PER_S
    if rate >= named.spec.bandwidth_bytes_per_s.value:
        return named
    note = f"{rate / 1e12:.2g} TB/s, as stacks of HBM2e of that size have"
    return replace(named, bandwidth_bytes_per_s=rate, notes=(*named.notes, note))


_HBM2E_BYTES_PER_S = 0.408e12
_BRACKETS = re.compile(r"\(([^()]{0,80})\)")
_MEMORY = re.compile(r"(?<![0-9.])(\d{1,4})\s?gi?b(?![a-z])", re.IGNORECASE)
_POWER = re.compile(r"(?<![0-9.])(\d{2,4})\s?w(?![a-z])", re.IGNORECASE)
_KIND = re.compile(r"(?<![a-z0-9])(hbm[0-9]e?|gddr[0-9]x?|gpus?)(?![a-z0-9])", re.IGNORECASE)
_VENDORS = re.compile(r"(?<![a-z0-9])(nvidia|amd|tesla|geforce|instinct)(?![a-z0-9])")


def _plain(word: str) -> str:
    """A device's name without its maker, case and separators."""
    return re.sub(r"[^a-z0-9]", "", _VENDORS.sub(" ", word[:200].casefold()))


@cache
def _keys() -> Mapping[str, str]:
    """Plain name -> key. Short forms stand above what recorders write: an H200 is the SXM one."""
    keys = {_plain(text): spec.key for spec in load_specs() for text in (spec.name, spec.key)}
    return keys | {_plain(name): key for name, key in load_links().aliases.items()}


def device_words() -> tuple[str, ...]:
    """The keys and short forms of devices."""
    return (*(spec.key for spec in load_specs()), *load_links().aliases)


def _spec(key: str) -> DeviceSpec:
    spec = find_spec_by_key(key)
    assert spec is not None, key
    return spec


def _nearest(plain: str) -> str:
    names = {_plain(name): name for name in device_words()}
    close = difflib.get_close_matches(plain, names, n=_NUM_NEAREST, cutoff=0.5)
    if close:
        return f"near it: {', '.join(names[name] for name in close)}"
    return f"known are: {', '.join(list(names.values())[::6])}"


def shown(word: str) -> str:
    """What a user gave as a name, in a message."""
    return ascii(word if len(word) <= 80 else f"{word[:80]}...")
