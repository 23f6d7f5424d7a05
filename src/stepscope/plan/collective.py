"""One collective by each of NCCL's algorithms: its time, its bus bandwidth, and the sizes at which
another becomes the fastest.

A ring moves each byte past every member. A tree over nodes has fewer hops and reaches less of the
cards. NVLS lets the switch add and copy: each device sends and gets a message once, not twice.
Times are those of the planner's own network; what a protocol changes of them is NCCL's own model
(src/graph/tuning.cc).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from msgspec import Struct

from stepscope.core.calibrated import CollectiveFit, bus_factor
from stepscope.errors import UsageError
from stepscope.plan.cluster import Cluster
from stepscope.plan.constants import DEFAULT, MICRO, Constants
from stepscope.plan.contract.collective import Crossover, Measurement, Way
from stepscope.plan.network import TREE_CHUNKS, TREE_SHARE, TREE_WAITS, Network, merged
from stepscope.plan.ranges import reached_words, span_of, span_words

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv")
GATHERS = ("all_gather", "reduce_scatter")
RING, TREE, NVLS, NVLS_TREE, DIRECT = "ring", "tree", "nvls", "nvls-tree", "direct"
SIMPLE = "simple"
MIN_BYTES, MAX_BYTES = 1e3, 64e9
STEPS = 480
"""Sizes at which the fastest is asked for, on a scale of powers."""
NVLS_LATENCY = 25 * MICRO
"""hwLatencies, NVLINK, NVLS, Simple."""
NVLS_TREE_LATENCY = 20.9 * MICRO
"""The same over the network, for each level and direction."""
GENERATIONS = (
    (("v100",), "volta"),
    (("a100", "a800", "a30", "a40"), "ampere"),
    (("h100", "h200", "h800", "h20", "gh200"), "hopper"),
    (("b200", "b300", "gb200", "gb300"), "blackwell"),
)
NVLS_SHARE = {"hopper": 0.85 * 18 * 20.6 / 450, "blackwell": 0.74 * 18 * 40.1 / 900}
"""Share of a device's NVLink that NCCL expects of NVLS: nvlsEfficiency times what it counts for a
link (SM90_NVLINK_BW, SM100_NVLINK_BW in topo.h)."""
NCCL_LINK = 0.82
"""Share of a datasheet's NVLink that NCCL counts on: 18 links of 20.6 GB/s are 371 of an H100's
450."""
LL_BYTES_PER_S = {
    "volta": (39.0e9, 39.0e9, 20.4e9),
    "ampere": (87.7e9, 22.5e9, 19.0e9),
    "hopper": (141.0e9, 45.0e9, 35.0e9),
    "blackwell": (282.0e9, 90.0e9, 70.0e9),
}
"""llMaxBws: bus bandwidth that LL reaches at most in one node, in two, in more. NCCL goes by the
processor over several nodes; that of the usual node of such devices is taken."""


class Protocol(Struct, frozen=True, kw_only=True):
    """How NCCL writes a message: with a flag for every 4 bytes (LL), for every 120 (LL128), or
    once for a chunk (Simple)."""

    name: str
    near: float
    """Share of the Simple protocol's hop inside a node."""
    far_s: float
    """Less than the Simple protocol's hop between nodes."""
    share: float
    """Share of the bandwidth."""
    base_s: float
    """baseLatencies of a ring."""


LL, LL128 = "ll", "ll128"
PROTOCOLS = (
    Protocol(name=LL, near=0.6 / 3.4, far_s=11.3 * MICRO, share=0.5, base_s=6.6 * MICRO),
    Protocol(name=LL128, near=1.9 / 3.4, far_s=10.0 * MICRO, share=0.92, base_s=14 * MICRO),
    Protocol(name=SIMPLE, near=1.0, far_s=0.0, share=1.0, base_s=8.4 * MICRO),
)
"""hwLatencies of a ring over NVLINK (0.6, 1.9, 3.4 us) and NET (2.7, 4.0, 14 us); 8 of 16 and 120
of 128 bytes are data."""


class CollectiveRequest(Struct, frozen=True, kw_only=True):
    """A collective of so many bytes, as nccl-tests counts them, over ranks next to each other."""

    kind: str
    size_bytes: float
    num_ranks: int


class Collective(Struct, frozen=True, kw_only=True):
    """What a collective takes by each algorithm that can do it, the fastest first."""

    asked: CollectiveRequest
    ways: tuple[Way, ...]
    picked: Way
    """What NCCL takes by its own model, at the time that is estimated here."""
    crossovers: tuple[Crossover, ...]
    range_s: tuple[float, float] | None
    """Where four fifths of what is picked lie; None where the links were measured."""
    notes: tuple[str, ...] = ()


class Links(Struct, frozen=True, kw_only=True):
    """What the ranks of one group have: inside a node (or a rack on one switch), and across."""

    inside: int
    """Ranks of a node."""
    units: float
    """Nodes."""
    near_s: float
    far_s: float
    near_bytes_per_s: float
    """Rate as collectives reach it."""
    gather_bytes_per_s: float
    """The same of gathers and scatters."""
    far_bytes_per_s: float
    """All cards of a node that the group uses, as collectives reach them."""
    start_s: float
    gather_start_s: float
    generation: str | None
    has_switch: bool
    is_measured: bool
    keeps_order: bool
    waits_each_step: bool
    line_near_bytes_per_s: float
    """Rate as NCCL counts it: a share of the datasheet's NVLink, a card's whole rate."""
    line_far_bytes_per_s: float


def links_of_group(cluster: Cluster, num_ranks: int, constants: Constants = DEFAULT) -> Links:
    """Ranks fill node after node."""
    near, *rest = merged(cluster.tiers)
    far = rest[-1] if rest else near
    inside = min(num_ranks, near.size)
    units = num_ranks / inside
    loaded = 1.0 if far.is_measured else constants.network_latency
    fall = max(units / 2, 1.0) ** -constants.network_fall
    generation = next(
        (name for starts, name in GENERATIONS if cluster.device.key.startswith(starts)),
        None,
    )
    return Links(
        inside=inside,
        units=units,
        near_s=near.latency_s,
        far_s=far.latency_s * loaded,
        near_bytes_per_s=near.bus_bytes_per_s(constants.link_share),
        gather_bytes_per_s=near.bus_bytes_per_s(constants.link_share, is_gather=True),
        far_bytes_per_s=inside * far.bytes_per_s * constants.network_share * fall,
        start_s=0.0 if near.is_measured else constants.collective_s,
        gather_start_s=0.0 if near.is_measured else constants.gather_s,
        generation=generation,
        has_switch=generation in NVLS_SHARE and "nvlink" in cluster.device.link_bytes_per_s,
        is_measured=near.is_measured or far.is_measured,
        keeps_order=far.keeps_order,
        waits_each_step=far.waits_each_step,
        line_near_bytes_per_s=near.bytes_per_s * NCCL_LINK,
        line_far_bytes_per_s=inside * far.bytes_per_s,
    )


def collective(cluster: Cluster, asked: CollectiveRequest) -> Collective:
    """Every way at the size that was asked for, and where the fastest changes."""
    check(cluster, asked)
    links = links_of_group(cluster, asked.num_ranks, DEFAULT)
    ways = sorted(_best_of_each(asked, links, cluster), key=lambda way: way.seconds)
    picked = min(ways_of(asked, links, cluster), key=lambda way: nccl_s(asked, links, way))
    span = None if links.is_measured else span_of(links.generation)
    return Collective(
        asked=asked,
        ways=tuple(ways),
        picked=picked,
        crossovers=tuple(_crossovers(asked, links, cluster)),
        range_s=None if span is None else span.around(picked.seconds),
        notes=tuple(_notes(asked, links, cluster.device.vendor)),
    )


def check(cluster: Cluster, asked: CollectiveRequest) -> None:
    if asked.kind not in KINDS:
        raise UsageError(f"collectives are {', '.join(KINDS)}, not {asked.kind[:40]!a}")
    if asked.num_ranks < 2:
        raise UsageError("a collective needs 2 ranks or more: give --ranks 8")
    if asked.num_ranks > cluster.num_devices:
        raise UsageError(
            f"{asked.num_ranks} ranks are more than the {cluster.num_devices} devices of "
            f"{cluster.name}: name a larger cluster"
        )
    if asked.kind == "send_recv" and asked.num_ranks != 2:
        raise UsageError("send_recv is between 2 ranks: give --ranks 2")


# Ways.


def ways_of(asked: CollectiveRequest, links: Links, cluster: Cluster) -> Iterator[Way]:
    """Each algorithm under each protocol."""
    size, num, units = asked.size_bytes, asked.num_ranks, links.units
    if asked.kind in ("all_to_all", "broadcast", "send_recv"):
        yield _timed(asked, DIRECT, SIMPLE, _direct_s(asked, links, cluster))
        return
    for protocol in PROTOCOLS:
        if links.is_measured and protocol.name != SIMPLE:
            # A measured link has NCCL's own choice of protocols in it.
            continue
        if protocol.name == LL128 and units > 1 and not links.keeps_order:
            continue
        yield _timed(asked, RING, protocol.name, _ring_s(asked, links, protocol))
        if asked.kind == "all_reduce" and units > 1:
            yield _timed(asked, TREE, protocol.name, _tree_s(size, num, links, protocol))
    if links.has_switch and not links.is_measured:
        if units == 1:
            yield _timed(asked, NVLS, SIMPLE, _nvls_s(asked, links))
        elif asked.kind == "all_reduce":
            yield _timed(asked, NVLS_TREE, SIMPLE, _nvls_tree_s(size, links))


def _timed(asked: CollectiveRequest, algorithm: str, protocol: str, seconds: float) -> Way:
    moved = asked.size_bytes * bus_factor(asked.kind, asked.num_ranks)
    return Way(
        algorithm=algorithm,
        protocol=protocol,
        seconds=seconds,
        bus_bytes_per_s=moved / seconds,
    )


def _rate(links: Links, protocol: Protocol, full: float) -> float:
    rate = full * protocol.share
    if protocol.name == "ll" and links.generation is not None:
        nodes = math.ceil(links.units)
        rate = min(rate, LL_BYTES_PER_S[links.generation][min(nodes, 3) - 1])
    return rate


def _bus(links: Links, near_bytes_per_s: float) -> float:
    if links.units == 1:
        return near_bytes_per_s
    return min(near_bytes_per_s, links.far_bytes_per_s)


def _start_s(asked: CollectiveRequest, links: Links) -> float:
    return links.gather_start_s if asked.kind in GATHERS else links.start_s


def _ring_s(asked: CollectiveRequest, links: Links, protocol: Protocol) -> float:
    num, units = asked.num_ranks, links.units
    near, far = links.near_s * protocol.near, max(links.far_s - protocol.far_s, 0.0)
    around = (num - 1) * near + (units * (far - near) if units > 1 else 0.0)
    if units > 1 and links.waits_each_step:
        around = (num - 1) * far
    rounds = 2 if asked.kind == "all_reduce" else 1
    moved = asked.size_bytes * bus_factor(asked.kind, num)
    near_bytes_per_s = links.near_bytes_per_s
    if asked.kind in GATHERS:
        near_bytes_per_s = links.gather_bytes_per_s
    rate = _rate(links, protocol, _bus(links, near_bytes_per_s))
    return moved / rate + rounds * around + _start_s(asked, links)


def _tree_s(size: float, num: int, links: Links, protocol: Protocol) -> float:
    near, far = links.near_s * protocol.near, max(links.far_s - protocol.far_s, 0.0)
    # A chunk of the Simple protocol passes a level in several parts; LL's flags need no such wait.
    hops = _levels(links)
    if protocol.name == SIMPLE:
        hops = TREE_WAITS * links.units if links.waits_each_step else TREE_CHUNKS * hops
    climb = (links.inside - 1) * near + hops * far
    moved = 2 * (num - 1) / num * size
    full = _bus(links, links.near_bytes_per_s) * TREE_SHARE
    return moved / _rate(links, protocol, full) + 2 * climb + links.start_s


def _nvls_s(asked: CollectiveRequest, links: Links) -> float:
    """Each device's port carries a message and its own part once in each direction (all-reduce),
    or all others' parts (gather, scatter)."""
    assert links.generation is not None
    rate = links.line_near_bytes_per_s / NCCL_LINK * NVLS_SHARE[links.generation]
    num = asked.num_ranks
    carried = 1 + 1 / num if asked.kind == "all_reduce" else (num - 1) / num
    return asked.size_bytes * carried / rate + NVLS_LATENCY + _start_s(asked, links)


def _nvls_tree_s(size: float, links: Links) -> float:
    """The switch inside nodes, a tree of nodes across: the cards carry each part up and down, and
    between two nodes once."""
    assert links.generation is not None
    rate = links.line_near_bytes_per_s / NCCL_LINK * NVLS_SHARE[links.generation]
    inside = size * (1 + 1 / links.inside) / rate
    is_pair = links.units <= 2
    carried = 1.0 if is_pair else 2.0 / TREE_SHARE
    across = size * carried / links.far_bytes_per_s
    hops = 2 * _levels(links) * max(NVLS_TREE_LATENCY, links.far_s)
    if links.waits_each_step and not is_pair:
        hops = 2 * TREE_WAITS * links.units * links.far_s
    return max(inside, across) + NVLS_LATENCY + hops + links.start_s


def _levels(links: Links) -> float:
    return math.ceil(math.log2(links.units))


def _direct_s(asked: CollectiveRequest, links: Links, cluster: Cluster) -> float:
    num, size = asked.num_ranks, asked.size_bytes
    if asked.kind == "broadcast":
        hops = (num - 1) * links.near_s + (links.units * links.far_s if links.units > 1 else 0.0)
        return size / _bus(links, links.near_bytes_per_s) + hops + links.start_s
    network = Network(cluster, DEFAULT)
    if asked.kind == "send_recv":
        return float(network.send_s(1, num, size)) + links.start_s
    # Each rank keeps its own part, sends what is for its node over the links and the rest by card.
    near = size * (links.inside - 1) / num / links.near_bytes_per_s
    card = links.far_bytes_per_s / links.inside
    far = size * (num - links.inside) / num / card if links.units > 1 else 0.0
    return max(near, far) + (links.far_s if links.units > 1 else links.near_s) + links.start_s


def _best_of_each(asked: CollectiveRequest, links: Links, cluster: Cluster) -> list[Way]:
    best: dict[str, Way] = {}
    for way in ways_of(asked, links, cluster):
        if way.algorithm not in best or way.seconds < best[way.algorithm].seconds:
            best[way.algorithm] = way
    return list(best.values())


# What NCCL takes.


def nccl_s(asked: CollectiveRequest, links: Links, way: Way) -> float:
    """What NCCL's own model says of a way, by which it chooses (ncclTopoTuneModel), without its
    corrections for trees of middle sizes."""
    num, nodes = asked.num_ranks, links.units
    if way.algorithm == DIRECT:
        return 0.0
    protocol = next(each for each in PROTOCOLS if each.name == way.protocol)
    # Up to two nodes it goes by the links inside them.
    full = links.line_near_bytes_per_s if nodes <= 2 else links.line_far_bytes_per_s
    near, far = links.near_s * protocol.near, max(links.far_s / 2 - protocol.far_s, 0.0)
    rounds = 2 if asked.kind == "all_reduce" else 1
    if way.algorithm == RING:
        hops = rounds * ((num - nodes) * near + (nodes - 1) * far)
        rate = _rate(links, protocol, full) / bus_factor(asked.kind, num)
        return protocol.base_s + hops + asked.size_bytes / rate
    levels = math.ceil(math.log2(nodes)) if nodes > 1 else 0
    if way.algorithm == TREE:
        share = {LL: 0.92 / 3.8, LL128: 0.92 * 120 / 128, SIMPLE: 0.92}[protocol.name]
        hops = 2 * ((links.inside - 1) * near + levels * far)
        return protocol.base_s + hops + asked.size_bytes / (full * share / 2)
    assert links.generation is not None
    inside = links.line_near_bytes_per_s / NCCL_LINK * NVLS_SHARE[links.generation] * rounds
    across = links.line_far_bytes_per_s * (2 if levels == 1 else 1)
    rate = inside if nodes == 1 else min(inside, across)
    hops = NVLS_LATENCY + 2 * levels * NVLS_TREE_LATENCY
    return hops + asked.size_bytes * bus_factor(asked.kind, num) / rate


# Crossovers.


def _crossovers(asked: CollectiveRequest, links: Links, cluster: Cluster) -> Iterator[Crossover]:
    """Crossovers between sizes whose fastest ways differ, by halving."""
    low, before = MIN_BYTES, _fastest(asked, links, cluster, MIN_BYTES)
    factor = (MAX_BYTES / MIN_BYTES) ** (1 / STEPS)
    for _ in range(STEPS):
        high = low * factor
        after = _fastest(asked, links, cluster, high)
        if after != before:
            size = _halved(asked, links, cluster, low, high, before)
            yield Crossover(size_bytes=size, before=before, after=after)
            before = after
        low = high


def _fastest(asked: CollectiveRequest, links: Links, cluster: Cluster, size: float) -> str:
    at = CollectiveRequest(kind=asked.kind, size_bytes=size, num_ranks=asked.num_ranks)
    way = min(ways_of(at, links, cluster), key=lambda way: way.seconds)
    return f"{way.algorithm} {way.protocol}"


def _halved(
    asked: CollectiveRequest, links: Links, cluster: Cluster, low: float, high: float, before: str
) -> float:
    for _ in range(30):
        middle = math.sqrt(low * high)
        if _fastest(asked, links, cluster, middle) == before:
            low = middle
        else:
            high = middle
    return high


def _notes(asked: CollectiveRequest, links: Links, vendor: str) -> Iterator[str]:
    if links.is_measured:
        return
    if links.units > 1:
        yield from reached_words(asked.kind, waits=links.waits_each_step)
    yield span_words(links.generation)
    if links.generation is None:
        yield "NCCL has no figures for this device: LL's bandwidth is taken as a half"
    if vendor == "amd":
        yield "RCCL runs collectives here: ways and choices are NCCL's, and its own may differ"


# What was measured.


def measured_of(
    name: str, fits: Sequence[CollectiveFit], asked: CollectiveRequest, per_node: int
) -> Measurement | None:
    """The fit of the same kind over the nearest number of ranks; None where there is none."""
    wanted = ("node",) if asked.num_ranks <= per_node else ("world", "across")
    near = [fit for fit in fits if fit.kind == asked.kind and fit.tier in wanted]
    fit = min(near, key=lambda each: abs(each.group_size - asked.num_ranks), default=None)
    if fit is None:
        return None
    seconds = fit.resized(asked.num_ranks).seconds(asked.size_bytes)
    moved = asked.size_bytes * bus_factor(asked.kind, asked.num_ranks)
    return Measurement(
        name=name,
        seconds=seconds,
        bus_bytes_per_s=moved / seconds,
        misfit=fit.worst_misfit,
        group_size=fit.group_size,
    )


def advice(own: Measurement | None, others: Sequence[Measurement], num_ranks: int) -> str | None:
    """An NCCL_ALGO that was measured over so many ranks to be faster than NCCL's own choice, by
    more than either fit is off; None where no measurement says so."""
    alike = [other for other in others if other.group_size == num_ranks]
    best = min(alike, key=lambda each: each.seconds, default=None)
    if own is None or own.group_size != num_ranks or best is None:
        return None
    gain = own.seconds / best.seconds
    if gain <= max(own.misfit, best.misfit):
        return None
    variables = dict(zip(("NCCL_ALGO", "NCCL_PROTO"), best.name.split("/"), strict=False))
    words = " ".join(f"{name}={value}" for name, value in variables.items())
    return f"{words}: {gain:.2f} times as fast as NCCL's own choice, both measured"
