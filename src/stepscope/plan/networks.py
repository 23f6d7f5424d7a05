"""Networks between nodes in words: efa, tcpx, roce, ndr, 100gbe, 4x200gbe."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib import resources

import msgspec
from msgspec import Struct, structs

from stepscope.errors import UsageError
from stepscope.hardware.links import ACROSS, Tier
from stepscope.plan.cluster import Cluster
from stepscope.plan.devices import shown

GIGABIT = 1e9 / 8
SOCKET_LATENCY_S = 30e-6
"""Latency of a hop through the system's TCP stack; usual."""
ORDERED = ("efa-ll128", "roce", "infiniband", "edr", "hdr", "ndr", "xdr")
_CARDS = re.compile(r"(?:(\d{1,3})\s*[xX*\u00d7]\s*)?(.{1,40})")
_ETHERNET = re.compile(r"(\d{1,4})\s*(?:gbe|gb|gbps|gbit|g)(?:-?(?:eth|ethernet))?")


class _Entry(Struct, frozen=True, kw_only=True):
    devices: str
    gbit_per_s: float
    num_cards: int | None
    latency_us: float
    source: str


class _File(Struct, frozen=True, kw_only=True):
    conventions: tuple[str, ...]
    networks: Mapping[str, tuple[_Entry, ...]]
    aliases: Mapping[str, str]


def on_network(cluster: Cluster, word: str) -> Cluster:
    """The same machines joined by another network: a name, or CARDSxNAME."""
    tier = network_tier(cluster, word)
    *nearer, _ = cluster.tiers
    note = f"between nodes: {tier.source}"
    return replace(
        cluster,
        tiers=(*nearer, tier),
        name=f"{cluster.name} on {word.strip().casefold()}",
        notes=(*cluster.notes, note),
    )


def network_tier(cluster: Cluster, word: str) -> Tier:
    """The tier between nodes; cards (rails) of a node are shared by its devices."""
    match = _CARDS.fullmatch(word.strip().casefold())
    if match is None:
        raise UsageError(f"a network is a name or CARDSxNAME, such as 4x200gbe, not {shown(word)}")
    cards, name = match.groups()
    entry = _entry(name, cluster.device.key, word)
    per_node = cluster.devices_per_node
    num_cards = int(cards) if cards else entry.num_cards or per_node
    if num_cards < 1:
        raise UsageError(f"a node has at least one card, not {num_cards}")
    rate = entry.gbit_per_s * GIGABIT * num_cards / per_node
    rails = f"{num_cards} card{'s' if num_cards > 1 else ''} of {entry.gbit_per_s:g} Gb/s"
    return structs.replace(
        cluster.tiers[-1],
        name=ACROSS,
        bytes_per_s=rate,
        latency_s=entry.latency_us * 1e-6,
        source=f"{name}, {rails} for {per_node} devices ({entry.source})",
        is_measured=False,
        keeps_order=_load().aliases.get(name, name) in ORDERED,
    )


def network_words() -> tuple[str, ...]:
    """Every name; beside them 10gbe, 25gbe and the like."""
    return tuple(_load().networks)


def _entry(name: str, key: str, word: str) -> _Entry:
    file = _load()
    plain = file.aliases.get(name, name)
    entries = file.networks.get(plain)
    if entries is not None:
        for entry in entries:
            if key.startswith(entry.devices):
                return entry
        known = ", ".join(entry.devices for entry in entries)
        raise UsageError(
            f"what {plain} gives a node of {key} is not known (of {known} it is): give its cards, "
            "such as 8x400gbe, or a .toml file"
        )
    match = _ETHERNET.fullmatch(plain)
    if match is not None and int(match[1]) > 0:
        rate = int(match[1])
        return _Entry(
            devices="",
            gbit_per_s=rate,
            num_cards=1,
            latency_us=SOCKET_LATENCY_S * 1e6,
            source=f"Ethernet of {rate} Gb/s, TCP sockets; latency usual",
        )
    close = difflib.get_close_matches(plain, [*file.networks, *file.aliases], n=3, cutoff=0.4)
    near = f"near it: {', '.join(close)}" if close else f"known are {', '.join(file.networks)}"
    raise UsageError(f"no network is named {shown(word)}; {near}, or 100gbe, 8x400gbe")


@cache
def _load() -> _File:
    text = resources.files("stepscope.plan").joinpath("networks.json").read_bytes()
    return msgspec.json.decode(text, type=_File)
