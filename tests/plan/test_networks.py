"""Networks in words: rails shared by a node's devices, and what is not known is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.errors import InputError, UsageError
from stepscope.hardware.links import IN_NODE
from stepscope.plan.cluster_parse import parse_cluster
from stepscope.plan.networks import network_words
from stepscope.plan.what_if import fastest
from tests.plan.test_what_if import job_of

GIGABIT = 1e9 / 8
KNOWN = [
    ("8x8xH100@efa", 400, 20),
    ("8x8xA100@efa", 50, 20),
    ("2x8xH200@EFA", 400, 18),
    ("8x8xH100@tcpx", 100, 14),
    ("8x8xH100@tcp-x", 100, 14),
    ("8x8xH100@tcpxo", 200, 14),
    ("2x8xMI300X@roce", 400, 14),
    ("2x8xA100@infiniband", 200, 14),
    ("2x8xH100@hdr", 200, 14),
    ("2x8xH100@100gbe", 12.5, 30),
    ("2x8xH100@4x200gbe", 100, 30),
    ("2x4xRTX4090@10gbe", 2.5, 30),
    ("2x8xH100@2x ndr", 100, 14),
]


@pytest.mark.parametrize(("word", "gbit", "latency_us"), KNOWN)
def test_a_device_has_its_part_of_the_cards_of_its_node(
    word: str, gbit: float, latency_us: float
) -> None:
    cluster = parse_cluster(word)
    tier = cluster.tiers[-1]
    assert tier.bytes_per_s == pytest.approx(gbit * GIGABIT)
    assert tier.latency_s == pytest.approx(latency_us * 1e-6)
    assert tier.size == cluster.num_devices
    assert cluster.tiers[0] == parse_cluster(word.partition("@")[0]).tiers[0]
    assert cluster.tiers[0].name == IN_NODE
    assert "between nodes" in cluster.notes[-1]


def test_every_name_has_a_source_for_an_h100_or_says_what_it_has() -> None:
    for word in network_words():
        assert parse_cluster(f"2x8xH100@{word}").tiers[-1].source


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("8x8xH100@efb", "near it: efa"),
        ("8x8xH100@", "CARDSxNAME"),
        ("2x8xMI300X@efa", "mi300x is not known"),
        ("2x8xH100@0x100gbe", "one card"),
        ("2x8xH100@0gbe", "no network"),
    ],
)
def test_what_is_not_known_is_refused(word: str, message: str) -> None:
    with pytest.raises(UsageError) as problem:
        parse_cluster(word)
    assert message in str(problem.value)


def test_a_file_names_a_network_and_may_say_more(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('device = "h100"\nnodes = 4\n[across]\nnetwork = "tcpx"\nlatency_us = 50\n')
    tier = parse_cluster(str(path)).tiers[-1]
    assert tier.bytes_per_s == pytest.approx(100 * GIGABIT)
    assert tier.latency_s == pytest.approx(50e-6)
    path.write_text('device = "h100"\n[across]\nnetwork = "nonesuch"\n')
    with pytest.raises(InputError, match=r"\[across\]: network: .*nonesuch"):
        parse_cluster(str(path))


def test_shards_stay_in_the_node_where_the_network_is_slow() -> None:
    """FSDP's gathers over four cards of 100 Gb/s cost more than a second copy of the states."""
    from dataclasses import replace

    from stepscope.plan.framework import FSDP

    steps = []
    for network in ("efa", "tcpx", "4x100gbe", "25gbe"):
        job = job_of("llama3-8b", f"8x8xH100@{network}", 4096, 512)
        choice = fastest(replace(job, framework=FSDP))
        assert choice is not None
        steps.append(choice.step_s)
        if network == "25gbe":
            assert choice.layout.zero_stage == 0 or 0 < choice.layout.shard < choice.layout.dp
    assert steps == sorted(steps)
