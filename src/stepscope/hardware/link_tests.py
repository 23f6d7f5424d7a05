"""nccl-tests' figures against the link that such devices are joined by: what it reaches, where it
bends, what a start takes.

What a link is expected to give is in hardware/links.py: the maker's rate of the device's own links
in a node, of the network card that such nodes are sold with between nodes, and the share of either
that NCCL reaches. The network is an assumption, and is said to be one.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from msgspec import Struct

from stepscope.core.calibrated import ring_steps
from stepscope.core.hardware import DeviceSpec
from stepscope.core.numbers import size_words
from stepscope.core.recordings.auxiliary import Advice
from stepscope.core.recordings.system import LinkRow, LinkTest
from stepscope.core.trace import DeviceProperties
from stepscope.hardware.links import (
    COLLECTIVE_S,
    LINK_SHARE,
    NETWORK_FALL,
    NETWORK_SHARE,
    Tier,
    usual_tiers,
)
from stepscope.hardware.lookup import find_spec
from stepscope.hardware.networks import slowest_port_for


class Policy(Struct, frozen=True, kw_only=True):
    slow: float = 0.6
    """Share of what the link usually gives below which it is slow: the same links differ by a fifth
    from one machine to the next, and a fallback is a tenth."""
    still_rising: float = 1.15
    """Ratio from one size to one twice as large or more, at the end of a test, from which the
    link's rate was not reached yet."""
    dip: float = 0.75
    """Share of a smaller size's bus bandwidth below which a larger one has fallen."""
    least_dip_bytes: int = 1 << 16
    """Bytes below which the start decides, and a microsecond is a third of it."""
    slow_start: float = 2.0
    """Times the usual, from which a start is slow."""


POLICY = Policy()


class LinkJudgement(Struct, frozen=True, kw_only=True):
    test: LinkTest
    best: LinkRow
    """The size with the highest bus bandwidth."""
    half_bytes: int
    """The smallest size with half of that: where the curve bends."""
    floor_s: float
    """The shortest time of any size: what a start takes."""
    is_rising: bool
    """The largest size is still faster than the one before: the link's rate is not known."""
    tier: Tier | None
    """None where the device is not known."""
    expected_bytes_per_s: float | None
    """Rate expected, as bus bandwidth."""
    link_words: str
    """What that is: "NVLink, 300 GB/s"."""
    usual_start_s: float | None
    """Seconds of a start at most: of NCCL's slowest protocol, hop by hop."""
    seen_words: str
    """What link is no faster than what was reached, where it is below the expected."""
    dips: tuple[tuple[LinkRow, LinkRow], ...]
    """Sizes at which the bus bandwidth falls, each with the one it fell from."""

    @property
    def share(self) -> float | None:
        if self.expected_bytes_per_s is None:
            return None
        return self.best.bus_bytes_per_s / self.expected_bytes_per_s

    @property
    def is_slow(self) -> bool:
        return self.share is not None and self.share < POLICY.slow and not self.is_rising

    @property
    def is_slow_start(self) -> bool:
        usual = self.usual_start_s
        return usual is not None and self.floor_s > POLICY.slow_start * usual


def judge_test(test: LinkTest) -> LinkJudgement:
    best = max(test.rows, key=lambda row: row.bus_bytes_per_s)
    half = next(
        row.size_bytes for row in test.rows if row.bus_bytes_per_s >= best.bus_bytes_per_s / 2
    )
    spec = spec_named(test.device)
    tier = None if spec is None else _tier(spec, test)
    expected = None if tier is None else _expected(tier, test)
    return LinkJudgement(
        test=test,
        best=best,
        half_bytes=half,
        floor_s=min(row.seconds for row in test.rows),
        is_rising=_is_rising(test),
        tier=tier,
        expected_bytes_per_s=expected,
        link_words="" if spec is None or tier is None else _link_words(spec, tier, test),
        usual_start_s=None if tier is None else _start_s(tier, test),
        seen_words="" if spec is None else _seen_words(spec, test, best.bus_bytes_per_s),
        dips=tuple(
            (before, row)
            for before, row in pairwise(test.rows)
            if before.size_bytes >= POLICY.least_dip_bytes
            and row.bus_bytes_per_s < POLICY.dip * before.bus_bytes_per_s
        ),
    )


def reached_words(judgement: LinkJudgement) -> str:
    """The best bus bandwidth, against what the link usually gives."""
    best = judgement.best
    words = f"{best.bus_bytes_per_s / 1e9:.3g} GB/s at {size_words(best.size_bytes)}"
    if judgement.is_rising:
        words += ", still rising: run larger sizes (-e 8G)"
    share, expected = judgement.share, judgement.expected_bytes_per_s
    if share is None or expected is None:
        return f"{words}; what its link gives is not known"
    words += f"; {share:.0%} of the {expected / 1e9:.3g} of {judgement.link_words}"
    if share > 1.05 and judgement.test.kind == "all_reduce":
        words += ": sums are made in the switch (NVLS), which no ring can reach"
    return words


def spec_named(device: str | None) -> DeviceSpec | None:
    """Device by its name alone: the tests print no more."""
    if device is None:
        return None
    return find_spec(
        DeviceProperties(
            index=0,
            name=device,
            memory_bytes=None,
            num_sms=None,
            compute_capability=None,
            warp_size=None,
        )
    )


def _is_rising(test: LinkTest) -> bool:
    if len(test.rows) < 2:
        return True
    before, last = test.rows[-2:]
    return last.bus_bytes_per_s > POLICY.still_rising * before.bus_bytes_per_s


def _tier(spec: DeviceSpec, test: LinkTest) -> Tier:
    tiers = usual_tiers(spec)
    return tiers[0] if test.num_nodes == 1 else tiers[-1]


def _per_node(test: LinkTest) -> float:
    return test.num_ranks / test.num_nodes


def _expected(tier: Tier, test: LinkTest) -> float:
    """Rate expected, as bus bandwidth. A ring leaves a node once, and its bytes share that node's
    cards; each pair of an all-to-all or a send crosses by its own."""
    if test.num_nodes == 1:
        return tier.bytes_per_s * LINK_SHARE
    cards = _per_node(test) if test.kind in ("all_reduce", "all_gather", "reduce_scatter") else 1.0
    fall: float = max(test.num_nodes / 2, 1.0) ** -NETWORK_FALL
    return cards * tier.bytes_per_s * NETWORK_SHARE * fall


def _start_s(tier: Tier, test: LinkTest) -> float:
    return COLLECTIVE_S + ring_steps(test.kind, test.num_ranks) * tier.latency_s


def _link_words(spec: DeviceSpec, tier: Tier, test: LinkTest) -> str:
    rate = f"{tier.bytes_per_s / 1e9:.4g} GB/s"
    if test.num_nodes > 1:
        return f"the usual network of {spec.name}, {rate} a device (assumed)"
    names = {"nvlink": "NVLink", "xgmi": "Infinity Fabric", "pcie": "PCIe"}
    kind = next(
        (
            names.get(kind, kind)
            for kind, figure in spec.link_bytes_per_s.items()
            if figure.value == tier.bytes_per_s
        ),
        "the links",
    )
    return f"{kind} of {spec.name}, {rate}"


def _seen_words(spec: DeviceSpec, test: LinkTest, reached: float) -> str:
    """The slowest link that could have moved so much."""
    if test.num_nodes > 1:
        cards = _per_node(test) if test.kind not in ("all_to_all", "send_recv") else 1.0
        port = slowest_port_for(reached / cards)
        return "" if port is None else f"no more than a {port.words} for each device moves"
    pcie = spec.link_bytes_per_s.get("pcie")
    if pcie is None or reached > pcie.value:
        return ""
    return f"no more than PCIe moves ({pcie.value / 1e9:.4g} GB/s)"


def advice_of(judgement: LinkJudgement, code: str, bound: str) -> Advice | None:
    """Advice about a link that gives less than it should, or a curve that falls; each measured
    here."""
    if judgement.is_slow:
        summary, action = _slow_words(judgement)
    elif judgement.dips:
        summary, action = _dip_words(judgement)
    else:
        return None
    return Advice(
        code=code,
        bound=bound,
        summary=summary,
        action=action,
        evidence=tuple(_evidence(judgement)),
    )


def _slow_words(judgement: LinkJudgement) -> tuple[str, str]:
    test, expected = judgement.test, judgement.expected_bytes_per_s
    assert expected is not None
    seen = f": {judgement.seen_words}" if judgement.seen_words else ""
    rate = judgement.best.bus_bytes_per_s / 1e9
    summary = (
        f"{test.kind} over {test.num_ranks} ranks reaches {rate:.3g} GB/s of bus bandwidth, "
        f"{judgement.share:.0%} of the {expected / 1e9:.3g} that {judgement.link_words}, "
        f"gives{seen}."
    )
    if test.num_nodes > 1:
        action = (
            "NCCL_DEBUG=INFO names the way (NET/IB or NET/Socket, GDRDMA); NCCL_IB_HCA and "
            "NCCL_SOCKET_IFNAME for the fast cards"
        )
    elif judgement.seen_words:
        action = (
            "remove NCCL_P2P_DISABLE and NCCL_P2P_LEVEL; `nvidia-smi topo -m` and `nvidia-smi "
            "nvlink -s` say whether the links are there and up"
        )
    else:
        action = "`nvidia-smi nvlink -s` says which links are down; NCCL_DEBUG=INFO the channels"
    return summary, action


def _dip_words(judgement: LinkJudgement) -> tuple[str, str]:
    before, row = judgement.dips[0]
    summary = (
        f"{judgement.test.kind} falls from {before.bus_bytes_per_s / 1e9:.3g} GB/s at "
        f"{size_words(before.size_bytes)} to {row.bus_bytes_per_s / 1e9:.3g} at "
        f"{size_words(row.size_bytes)}: another algorithm or protocol begins there, or buffers on "
        "the way run over."
    )
    action = (
        "run these sizes again with NCCL_ALGO=Ring, NCCL_ALGO=Tree and NCCL_PROTO=Simple; "
        "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=TUNING names what is chosen. Set one only where it is "
        "faster at the job's sizes; else look at the ports' counters"
    )
    return summary, action


def _evidence(judgement: LinkJudgement) -> Iterator[str]:
    test, best = judgement.test, judgement.best
    yield (
        f"{test.path}: {test.kind}, {test.num_ranks} ranks on {times_words(test.num_nodes)}, "
        f"{best.bus_bytes_per_s / 1e9:.3g} GB/s at {size_words(best.size_bytes)}, half of it from "
        f"{size_words(judgement.half_bytes)} on"
    )
    if judgement.is_slow_start:
        assert judgement.usual_start_s is not None
        yield (
            f"a start takes {judgement.floor_s * 1e6:.0f} us, where at most "
            f"{judgement.usual_start_s * 1e6:.0f} are usual"
        )
    for before, row in judgement.dips[:4]:
        yield (
            f"{size_words(before.size_bytes)}: {before.bus_bytes_per_s / 1e9:.3g} GB/s, "
            f"{size_words(row.size_bytes)}: {row.bus_bytes_per_s / 1e9:.3g}"
        )
    if judgement.tier is not None:
        yield f"expected by {judgement.tier.source}"


def times_words(num_nodes: int) -> str:
    return "1 node" if num_nodes == 1 else f"{num_nodes} nodes"
