"""What a collective takes.

Bytes over the slowest tier that its group spans, and a latency for each hop.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec import structs

from stepscope.hardware.links import Tier
from stepscope.plan.cluster import Cluster
from stepscope.plan.constants import Constants
from stepscope.plan.rates import Floats

TREE_SHARE = 0.80
"""Share of a ring's bandwidth that a tree reaches over nodes: 150 of 190 GB/s at 1 GB over 5 nodes
of H100s on RoCE (NVIDIA/nccl issue 1368)."""
TREE_CHUNKS = 4
"""Hops that a tree's pipeline takes for each level."""
TREE_WAITS = 2.8
"""Hops for each node instead where every step waits for one: *fitted* to published all-reduces of
256 MB over 4 to 64 nodes of H100s on EFA, 0.82 to 1.22 times what is planned with it."""


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks that talk: how many, and how far apart in the order of devices."""

    size: Any
    stride: Any


def merged(tiers: tuple[Tier, ...]) -> tuple[Tier, ...]:
    """Tiers without those that are no faster than the next one.

    A rack on one switch is one large node.
    """
    faster = [near for near, far in itertools.pairwise(tiers) if near.bytes_per_s > far.bytes_per_s]
    return (*faster, tiers[-1])


def _loaded(tier: Tier, constants: Constants) -> Tier:
    """A tier with its latency when all ranks send at once; a measured one has that already."""
    if tier.is_measured:
        return tier
    return structs.replace(tier, latency_s=tier.latency_s * constants.network_latency)


class Network:
    """The tiers of a cluster, asked for many groups at once."""

    def __init__(self, cluster: Cluster, constants: Constants) -> None:
        near, *far = merged(cluster.tiers)
        self._tiers = (near, *(_loaded(tier, constants) for tier in far))
        self._constants = constants
        self._near_bytes_per_s = near.bus_bytes_per_s(constants.link_share)
        self._gather_bytes_per_s = near.bus_bytes_per_s(constants.link_share, is_gather=True)
        # A latency that was measured has the start in it.
        self._start_s = 0.0 if near.is_measured else constants.collective_s
        self._gather_start_s = 0.0 if near.is_measured else constants.gather_s

    def bus_bytes_per_s(self, group: Group, *, is_gather: bool = False) -> Floats:
        """What each member can send at the same time as all others do, neighbouring groups
        included."""
        size, stride = np.asarray(group.size), np.asarray(group.stride)
        constants = self._constants
        near = self._gather_bytes_per_s if is_gather else self._near_bytes_per_s
        bus = np.full(np.broadcast(size, stride).shape, near)
        for nearer, tier in itertools.pairwise(self._tiers):
            # Members in one unit of the nearer tier share the links that leave it: each has its
            # own.
            inside = np.clip(nearer.size // stride, 1, size)
            units = size / inside
            out = (
                inside
                * tier.bytes_per_s
                * constants.network_share
                * np.maximum(units / 2, 1.0) ** -constants.network_fall
            )
            bus = np.where(units > 1, np.minimum(bus, out), bus)
        return bus

    def _units(self, group: Group) -> tuple[Floats, Floats]:
        """Members in one node, and nodes."""
        size = np.asarray(group.size)
        inside = np.clip(self._tiers[0].size // np.asarray(group.stride), 1, size)
        return inside, size / inside

    def around_s(self, group: Group) -> Floats:
        """Latency of a ring.

        A part goes from member to member, now inside a node, now out of it. Where a network does
        not keep order, NCCL has whole chunks alone: each step waits for the hop between nodes.
        """
        size = np.asarray(group.size)
        total: Any = (size - 1) * self._tiers[0].latency_s
        for nearer, tier in itertools.pairwise(self._tiers):
            inside = np.clip(nearer.size // np.asarray(group.stride), 1, size)
            units = size / inside
            total = np.where(
                units > 1, total + units * (tier.latency_s - self._tiers[0].latency_s), total
            )
        far = self._tiers[-1]
        if far.waits_each_step:
            _, units = self._units(group)
            total = np.where(units > 1, (size - 1) * far.latency_s, total)
        return np.asarray(total)

    def gather_s(self, group: Group, total_bytes: Any, num_parts: Any = 1) -> Floats:
        """All-gather or reduce-scatter around a ring, of so many bytes when whole,
        in so many parts."""
        size = np.asarray(group.size)
        share = (size - 1) / size
        hops = num_parts * (self.around_s(group) + self._gather_start_s)
        bus = self.bus_bytes_per_s(group, is_gather=True)
        return np.where(size > 1, share * total_bytes / bus + hops, 0.0)

    def reduce_s(self, group: Group, total_bytes: Any, num_parts: Any = 1) -> Floats:
        """All-reduce: a ring, or a tree over nodes that has fewer hops and less bandwidth."""
        size = np.asarray(group.size)
        inside, units = self._units(group)
        moved = 2 * (size - 1) / size * total_bytes / self.bus_bytes_per_s(group)
        ring = moved + num_parts * 2 * self.around_s(group)
        far = self._tiers[-1]
        levels = np.ceil(np.log2(np.maximum(units, 1)))
        hops = TREE_WAITS * units if far.waits_each_step else TREE_CHUNKS * levels
        climb = (inside - 1) * self._tiers[0].latency_s + hops * far.latency_s
        tree = np.where(units > 1, moved / TREE_SHARE, np.inf) + num_parts * 2 * climb
        return np.where(size > 1, np.minimum(ring, tree) + num_parts * self._start_s, 0.0)

    def scatter_all_s(
        self,
        group: Group,
        one_bytes: Any,
        num_copies: int,
        share: float = 1.0,
        *,
        is_apart: bool = False,
    ) -> Floats:
        """All-to-all of tokens to their experts.

        Each goes to `num_copies` ranks drawn evenly, and to a node once; of the nodes a `share` can
        be drawn. Where copies go apart, each crosses by itself, whatever others go to its rank.
        """
        size = np.asarray(group.size)
        near, far = self._tiers[0], self._tiers[-1]
        inside, units = self._units(group)
        if is_apart:
            ranks: Any = num_copies * (inside - 1) / size
            nodes: Any = num_copies * (units - 1) / units
        else:
            ranks = size * (1 - (1 - 1 / size) ** num_copies) * (size - 1) / size
            drawn = np.maximum(units * share, 1.0)
            nodes = drawn * (1 - (1 - 1 / drawn) ** num_copies) * (units - 1) / units
        within = ranks * one_bytes / self._near_bytes_per_s + near.latency_s
        across = (
            nodes * one_bytes / (far.bytes_per_s * self._constants.exchange_share) + far.latency_s
        )
        return np.where(
            size > 1, np.where(units > 1, np.maximum(within, across), within) + self._start_s, 0.0
        )

    def send_s(self, stride: Any, num: Any, sent_bytes: Any) -> Floats:
        """Seconds to send from a rank to the one `stride` further; of so many in a row, the
        farthest apart."""
        stride = np.asarray(stride)
        rate: Any = np.full(stride.shape, self._near_bytes_per_s)
        latency: Any = np.full(stride.shape, self._tiers[0].latency_s)
        for nearer, tier in itertools.pairwise(self._tiers):
            is_out = stride * num > nearer.size
            rate = np.where(is_out, tier.bytes_per_s * self._constants.network_share, rate)
            latency = np.where(is_out, tier.latency_s, latency)
        return np.asarray(sent_bytes / rate + latency)
