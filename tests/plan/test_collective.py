"""One collective by each algorithm: the planner's own network, bounds of the links, crossovers, and
advice that a measurement supports."""

from __future__ import annotations

import json

import pytest

from stepscope.core.calibrated import CollectiveFit, Region
from stepscope.errors import UsageError
from stepscope.plan.cluster_parse import parse_cluster
from stepscope.plan.collective import (
    KINDS,
    LL128,
    SIMPLE,
    Collective,
    CollectiveRequest,
    advice,
    collective,
    links_of_group,
    measured_of,
    ways_of,
)
from stepscope.plan.constants import DEFAULT
from stepscope.plan.contract.collective import Measurement
from stepscope.plan.network import Group, Network
from stepscope.plan.ranges import REACHED, REACHED_IN_ORDER, span_of
from tests.shared_data import SAMPLES

MB = 1e6
PUBLISHED = SAMPLES / "planner" / "collectives.json"
OPS = {"AllReduce": "all_reduce", "AllGather": "all_gather", "ReduceScatter": "reduce_scatter"}


def asked_of(kind: str, size: float, ranks: int) -> CollectiveRequest:
    return CollectiveRequest(kind=kind, size_bytes=size, num_ranks=ranks)


def result_of(word: str, kind: str = "all_reduce", size: float = 100 * MB) -> Collective:
    cluster = parse_cluster(word)
    return collective(cluster, asked_of(kind, size, cluster.num_devices))


@pytest.mark.parametrize("word", ["1x8xH100", "1x8xA100", "4x8xH100", "8x8xA100", "2x4xRTX3090"])
@pytest.mark.parametrize("size", [1e4, 1 * MB, 256 * MB])
def test_the_simple_ring_and_tree_are_the_planners_own(word: str, size: float) -> None:
    cluster = parse_cluster(word)
    links = links_of_group(cluster, cluster.num_devices)
    network, group = Network(cluster, DEFAULT), Group(cluster.num_devices, 1)
    reduced = asked_of("all_reduce", size, cluster.num_devices)
    plain = [way.seconds for way in ways_of(reduced, links, cluster)
             if way.protocol == SIMPLE and way.algorithm in ("ring", "tree")]  # fmt: skip
    assert min(plain) == pytest.approx(float(network.reduce_s(group, size)))
    gathered = asked_of("all_gather", size, cluster.num_devices)
    (ring,) = (way.seconds for way in ways_of(gathered, links, cluster)
               if way.protocol == SIMPLE and way.algorithm == "ring")  # fmt: skip
    assert ring == pytest.approx(float(network.gather_s(group, size)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("word", ["1x2xH100", "1x8xH100", "8x8xH100@efa", "2x8xMI300X"])
def test_no_way_is_faster_than_the_links(kind: str, word: str) -> None:
    cluster = parse_cluster(word)
    ranks = 2 if kind == "send_recv" else cluster.num_devices
    for size in (1e3, 1e5, 1e7, 1e9):
        result = collective(cluster, asked_of(kind, size, ranks))
        for way in result.ways:
            # The switch adds for all: a device sends a message once instead of nearly twice.
            factor = 2.0 if way.algorithm.startswith("nvls") else 1.0
            limit = cluster.tiers[0].bytes_per_s * factor
            assert way.bus_bytes_per_s < limit
        assert result.ways[0].seconds <= min(way.seconds for way in result.ways)
        assert result.picked.algorithm in {way.algorithm for way in result.ways}


def test_time_grows_with_size_and_ranks() -> None:
    cluster = parse_cluster("8x8xH100")
    sizes = [collective(cluster, asked_of("all_reduce", 10.0**power, 64)).ways[0].seconds
             for power in range(3, 11)]  # fmt: skip
    assert sizes == sorted(sizes)
    ranks = [collective(cluster, asked_of("all_gather", 1 * MB, num)).ways[0].seconds
             for num in (2, 4, 8, 16, 32, 64)]  # fmt: skip
    assert ranks == sorted(ranks)


def test_at_a_crossover_both_ways_take_the_same() -> None:
    cluster = parse_cluster("8x8xH100")
    result = result_of("8x8xH100")
    assert result.crossovers
    links = links_of_group(cluster, 64)
    for cross in result.crossovers:
        asked = asked_of("all_reduce", cross.size_bytes, 64)
        ways = {
            f"{way.algorithm} {way.protocol}": way.seconds for way in ways_of(asked, links, cluster)
        }
        assert ways[cross.before] == pytest.approx(ways[cross.after], rel=1e-4)


def test_only_switches_have_nvls_and_only_ordered_networks_ll128() -> None:
    assert "nvls" in {way.algorithm for way in result_of("1x8xH100").ways}
    for word in ("1x8xA100", "1x4xRTX4090", "1x8xMI300X"):
        assert "nvls" not in {way.algorithm for way in result_of(word).ways}
    small = asked_of("all_reduce", 1 * MB, 16)
    for network, is_there in (("ndr", True), ("efa", False), ("100gbe", False)):
        cluster = parse_cluster(f"2x8xH100@{network}")
        ways = ways_of(small, links_of_group(cluster, 16), cluster)
        assert (LL128 in {way.protocol for way in ways}) is is_there


def test_published_collectives_are_near_and_how_near_is_said() -> None:
    """Bus bandwidth: 436 GB/s as algorithm bandwidth would need 763 GB/s of a port's 450."""
    ratios = {}
    for row in json.loads(PUBLISHED.read_text()):
        result = result_of(f"{row['nodes']}x8xH100@efa", OPS[row["op"]], row["bytes"])
        reached = row["bandwidth_GBps"] * 1e9 / result.picked.bus_bytes_per_s
        ratios[result.asked.kind, row["nodes"]] = reached
        if row["nodes"] == 1:
            assert 0.75 < reached < 1.25
        else:
            said = REACHED[result.asked.kind][row["nodes"]]
            assert said == pytest.approx(reached, abs=0.01)
            assert f"{said:g} at {row['nodes']} nodes" in result.notes[0]
        assert 0.75 < reached < 1.3
    assert ratios["all_reduce", 1] == pytest.approx(0.95, abs=0.01)


IN_ORDER = {
    "all_reduce": {2: 364.46, 4: 273.34, 8: 232.09, 16: 148.11, 32: 137.99},
    "all_gather": {2: 215.58, 4: 253.36, 8: 215.43, 16: 144.05, 32: 86.30},
}
"""GB/s at 256 MiB on p5 with NCCL 2.28 and aws-ofi-nccl 1.16, as its publisher printed them."""


@pytest.mark.parametrize("kind", sorted(IN_ORDER))
def test_efa_that_keeps_order_is_near_what_was_published(kind: str) -> None:
    for nodes, reached in IN_ORDER[kind].items():
        result = result_of(f"{nodes}x8xH100@efa-ll128", kind, 2**28)
        share = reached * 1e9 / result.picked.bus_bytes_per_s
        said = REACHED_IN_ORDER[kind][nodes]
        assert said == pytest.approx(share, abs=0.01)
        assert f"{said:g} at {nodes} nodes" in result.notes[0]
        assert 0.75 < share < 1.4


def test_gathers_of_infiniband_and_one_node_are_near_what_nccl_tests_printed() -> None:
    """8 H100s of a node (SimuMax, nccl_fit.py), and 256 over RoCE (NVIDIA/nccl issue 1218)."""
    for size, seconds in ((2**26, 211e-6), (2**28, 730e-6), (2**30, 2734e-6), (2**33, 21025e-6)):
        result = result_of("1x8xH100", "all_gather", size)
        assert result.picked.seconds == pytest.approx(seconds, rel=0.12)
    wide = result_of("32x8xH100@roce", "all_gather", 2 * 2**30)
    assert wide.picked.bus_bytes_per_s == pytest.approx(200e9, rel=0.1)


def test_a_ring_waits_for_the_network_at_each_step_where_order_is_not_kept() -> None:
    slow, fast = (
        result_of(f"32x8xH100@{network}", "all_gather", 2**28) for network in ("efa", "ndr")
    )
    assert slow.picked.seconds > 2 * fast.picked.seconds


REFUSED = [
    ("1x8xH100", "all_reduce", 1, "2 ranks or more"),
    ("1x8xH100", "all_reduce", 64, "more than the 8 devices"),
    ("1x8xH100", "send_recv", 8, "between 2 ranks"),
    ("1x8xH100", "gossip", 8, "collectives are"),
]


@pytest.mark.parametrize(("word", "kind", "ranks", "message"), REFUSED)
def test_what_cannot_be_is_refused(word: str, kind: str, ranks: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        collective(parse_cluster(word), asked_of(kind, MB, ranks))


# Measurement.


def fit_of(
    bandwidth: float, size: int = 8, misfit: float = 1.05, tier: str = "node"
) -> CollectiveFit:
    region = Region(
        name="bandwidth", up_to_bytes=None, alpha_s=1e-6, beta_bytes_per_s=bandwidth, num_points=9
    )
    return CollectiveFit(
        kind="all_reduce", backend="nccl", tier=tier, group_size=size, regions=(region,), r2=0.99,
        worst_misfit=misfit, worst_bytes=1 << 20, num_points=9,
    )  # fmt: skip


def timed(name: str, bandwidth: float, misfit: float = 1.05, size: int = 8) -> Measurement:
    asked = asked_of("all_reduce", 100 * MB, 8)
    measured = measured_of(name, (fit_of(bandwidth, size, misfit),), asked, 8)
    assert measured is not None
    return measured


def test_advice_is_given_only_where_a_measurement_supports_it() -> None:
    own = timed("own", 300e9)
    assert advice(own, [], 8) is None
    assert advice(None, [timed("Tree", 400e9)], 8) is None
    said = advice(own, [timed("Tree", 400e9), timed("Ring/LL128", 420e9)], 8)
    assert said is not None
    assert said.startswith("NCCL_ALGO=Ring NCCL_PROTO=LL128: 1.")
    # Less than the fits are off, or over another number of ranks: nothing is proved.
    assert advice(own, [timed("Tree", 400e9, misfit=1.5)], 8) is None
    assert advice(own, [timed("Tree", 305e9)], 8) is None
    assert advice(own, [timed("Tree", 400e9, size=4)], 8) is None


def test_a_measurement_of_another_tier_is_none() -> None:
    asked = asked_of("all_reduce", 100 * MB, 64)
    assert measured_of("own", (fit_of(300e9),), asked, 8) is None
    across = measured_of("own", (fit_of(40e9, 64, tier="world"),), asked, 8)
    assert across is not None
    assert across.group_size == 64


def test_four_fifths_of_the_published_lie_in_the_range() -> None:
    span = span_of("hopper")
    shares = [
        share
        for published in (REACHED, REACHED_IN_ORDER)
        for by_nodes in published.values()
        for share in by_nodes.values()
    ]
    inside = sum(span.low <= 1 / share <= span.high for share in shares)
    assert 0.8 <= inside / len(shares) <= 0.9


def test_a_device_that_nothing_was_published_of_has_a_wider_range() -> None:
    seen, unseen = result_of("8x8xH100"), result_of("8x8xMI300X")
    assert seen.range_s is not None
    assert unseen.range_s is not None
    assert unseen.range_s[1] / unseen.range_s[0] > seen.range_s[1] / seen.range_s[0]
    assert seen.range_s[0] < seen.picked.seconds < seen.range_s[1]
    assert any("a guess" in note for note in unseen.notes)
    assert any("RCCL" in note for note in unseen.notes)
    assert not any("RCCL" in note for note in result_of("2x4xRTX3090").notes)
