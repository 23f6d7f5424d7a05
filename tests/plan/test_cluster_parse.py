"""Clusters in words and in files."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.errors import InputError, StepscopeError, UsageError
from stepscope.hardware.links import links_of, load_links
from stepscope.hardware.lookup import find_spec_by_key, load_specs
from stepscope.plan.cluster import faster_network, resized
from stepscope.plan.cluster_parse import cluster_from, parse_cluster
from stepscope.plan.devices import find_device, make_cluster, with_device
from tests.shared_data import ROOT, SAMPLES, unpacked

ROWS = SAMPLES / "planner" / "rows.jsonl.zst"
GIB = 2**30


@pytest.mark.parametrize(
    ("word", "key", "num_devices", "per_node"),
    [
        ("8x8xH100", "h100-sxm", 64, 8),
        ("64xH100", "h100-sxm", 64, 8),
        ("64 x h100", "h100-sxm", 64, 8),
        ("H100", "h100-sxm", 1, 1),
        ("4xA100", "a100-sxm-80gb", 4, 4),
        ("2xRTX3090", "rtx-3090", 2, 2),
        ("8xrtx-3090", "rtx-3090", 8, 4),
        ("12xH100", "h100-sxm", 12, 6),
        ("128x8xA100-80GB", "a100-sxm-80gb", 1024, 8),
        ("16xMI300X", "mi300x", 16, 8),
        ("72xGB200", "gb200", 72, 4),
        ("2x72xGB200", "gb200", 144, 72),
        ("3*16*v100 (DGX-2)", "v100-sxm3-32gb", 48, 16),
    ],
)
def test_words_are_nodes_devices_and_a_name(
    word: str, key: str, num_devices: int, per_node: int
) -> None:
    cluster = parse_cluster(word)
    assert (cluster.device.key, cluster.num_devices, cluster.devices_per_node) == (
        key,
        num_devices,
        per_node,
    )
    assert cluster.num_nodes * cluster.devices_per_node == num_devices


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("A100-40GB", "a100-sxm-40gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm-80gb"),
        ('A100 ("Ampere")', "a100-sxm-80gb"),
        ("A100-80GB (Jean Zay: NVLink, 4x Omni-Path per node)", "a100-sxm-80gb"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("h100 pcie", "h100-pcie"),
        ("A800-80GB", "a800-sxm-80gb"),
        ("h800", "h800-sxm"),
        ("H20", "h20-sxm"),
        ("h200", "h200-sxm"),
        ("B300", "b300"),
        ("GB300", "gb300"),
        ("GeForce RTX 4090", "rtx-4090"),
        ("RTX A6000", "rtx-a6000"),
        ("A40", "a40"),
        ("Tesla V100-SXM2-16GB", "v100-sxm2-16gb"),
        ("AMD Instinct MI250X", "mi250x-gcd"),
    ],
)
def test_devices_are_known_in_any_spelling(word: str, key: str) -> None:
    found = find_device(word)
    assert found.spec.key == key
    assert found.memory_bytes is None


def test_every_device_is_known_by_its_key_and_its_name() -> None:
    for spec in load_specs():
        assert find_device(spec.key).spec == spec
        assert find_device(spec.name.upper()).spec == spec


def test_memory_and_power_in_a_name_stand_above_the_datasheet() -> None:
    cluster = parse_cluster("4x8xH100-96GB-HBM2e-500W")
    assert cluster.device.key == "h100-sxm"
    assert (cluster.memory_bytes, cluster.power_w) == (96 * GIB, 500)
    assert "96 GB" in cluster.notes[0]
    assert make_cluster("h100", 8, memory_bytes=64 * GIB).memory_bytes == 64 * GIB


@pytest.mark.parametrize(
    ("word", "in_node", "across"),
    [
        # Gb/s of the network card that a device has, from the makers' nodes; GB/s of NVLink or
        # PCIe, one way.
        ("8x8xH100", 450e9, 400e9 / 8),
        ("8x8xA100", 300e9, 200e9 / 8),
        ("8x8xA800", 200e9, 200e9 / 8),
        ("8x8xV100-32GB", 150e9, 4 * 100e9 / 8 / 8),
        ("8x16xV100-SXM3", 150e9, 8 * 100e9 / 16 / 8),
        ("8x8xB200", 900e9, 400e9 / 8),
        ("8x8xB300", 900e9, 800e9 / 8),
        ("2x4xRTX4090", 32e9, 25e9 / 8),
        ("8x8xA100 (Jean Zay)", 300e9, 4 * 100e9 / 8 / 8),
    ],
)
def test_tiers_are_the_usual_links_one_way_of_one_device(
    word: str, in_node: float, across: float
) -> None:
    near, far = parse_cluster(word).tiers
    assert (near.name, far.name) == ("in-node", "across")
    assert (near.bytes_per_s, far.bytes_per_s) == (in_node, across)
    assert near.size < far.size == parse_cluster(word).num_devices
    assert 0 < near.latency_s < far.latency_s < 1e-4
    assert "hwLat" in near.source
    assert "hwLat" in far.source


def test_a_rack_of_72_is_a_tier_of_its_own_for_gb200() -> None:
    sizes = [(tier.name, tier.size, tier.bytes_per_s) for tier in parse_cluster("144xGB200").tiers]
    assert sizes == [("in-node", 4, 900e9), ("in-rack", 72, 900e9), ("across", 144, 50e9)]
    assert [tier.name for tier in parse_cluster("2x72xGB200").tiers] == ["in-node", "across"]


def test_tiers_never_shrink_outwards() -> None:
    for word in ("H100", "8xGB200", "8xH100", "16xH100", "72xGB300"):
        sizes = [tier.size for tier in parse_cluster(word).tiers]
        assert sizes == sorted(sizes)
        assert sizes[-1] >= parse_cluster(word).num_devices


def test_every_device_has_links_with_sources_and_every_link_a_device() -> None:
    file = load_links()
    listed = [key for group in file.groups for key in group.devices]
    assert sorted(listed) == sorted(spec.key for spec in load_specs())
    assert all(find_spec_by_key(key) is not None for key in file.aliases.values())
    for spec in load_specs():
        links = links_of(spec)
        assert links.link in spec.link_bytes_per_s
        assert links.power_w is not None
        assert 50 < links.power_w.value < 2000
        figures = (links.across_bytes_per_s, links.host_memory_bytes, links.power_w)
        assert all(figure.source for figure in figures)


def test_the_host_link_is_what_copies_reach_of_pcie() -> None:
    assert parse_cluster("A100").host_bytes_per_s == pytest.approx(25.6e9)
    assert parse_cluster("GB200").host_bytes_per_s == 225e9


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("8x8xH10", "'H10'; near it: h100"),
        ("8xRTX3091", "near it: .*3090"),
        ("", "NODESxDEVICESxNAME"),
        ("8x8", "no device"),
        ("0x8xH100", "from 1 to"),
        ("8x0xH100", "from 1 to"),
        ("99999999xH100", "from 1 to"),
        ("\x1b[31mH100", "no device"),
    ],
)
def test_what_is_no_cluster_gets_a_message(word: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as problem:
        parse_cluster(word)
    assert "\x1b" not in str(problem.value)


@given(st.text(max_size=30))
def test_any_text_gives_a_cluster_or_a_message(word: str) -> None:
    message = ""
    try:
        assert parse_cluster(word).num_devices >= 1
    except StepscopeError as problem:
        message = str(problem)
    assert len(message) < 1000


def test_the_devices_of_published_rows_are_all_known() -> None:
    rows = [json.loads(line) for line in unpacked(ROWS).splitlines()]
    words = {(row["cluster"]["gpu"], row["cluster"].get("gpu_mem_gb")) for row in rows}
    assert len(words) > 10
    for word, memory_gb in words:
        cluster = parse_cluster(f"2x8x{word}")
        assert memory_gb is None or cluster.memory_bytes == memory_gb * GIB, word


# What-ifs.


def test_a_faster_network_leaves_the_node_alone() -> None:
    before = parse_cluster("8x8xH100")
    after = faster_network(before, 2)
    assert after.tiers[0] == before.tiers[0]
    assert after.tiers[1].bytes_per_s == 100e9
    assert "x 2" in after.tiers[1].source
    with pytest.raises(UsageError, match="0 times"):
        faster_network(before, 0)


def test_a_faster_network_leaves_an_nvlink_rack_alone() -> None:
    rates = [tier.bytes_per_s for tier in faster_network(parse_cluster("144xGB200"), 2).tiers]
    assert rates == [900e9, 900e9, 100e9]


def test_other_sizes_keep_the_machines() -> None:
    cluster = parse_cluster("8x8xH100")
    more = resized(cluster, 128)
    assert (more.num_devices, more.num_nodes, [tier.size for tier in more.tiers]) == (
        128,
        16,
        [8, 128],
    )
    fewer = resized(cluster, 4)
    assert (fewer.num_devices, fewer.devices_per_node, [tier.size for tier in fewer.tiers]) == (
        4,
        4,
        [4, 4],
    )
    assert [tier.size for tier in resized(parse_cluster("8xGB200"), 144).tiers] == [4, 72, 144]
    for wrong in (0, -1):
        with pytest.raises(UsageError, match="at least one"):
            resized(cluster, wrong)


def test_another_device_brings_its_own_links() -> None:
    cluster = with_device(parse_cluster("8x8xH100"), "b200")
    assert (cluster.device.key, cluster.num_devices, cluster.devices_per_node) == ("b200", 64, 8)
    assert cluster.tiers[0].bytes_per_s == 900e9


# Files.

OWN = {"memory_gb": 64, "bandwidth_gb_per_s": 1600, "peak_tflops": {"bf16": 400}}


def test_a_file_changes_what_it_says_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'name = "mine"\nnodes = 16\ndevices_per_node = 4\ndevice = "h100"\nmemory_gb = '
        "96\npower_w = 650\nprice_per_hour = 2.5\n"
        "[peak_tflops]\nbf16 = 900\n[in_rack]\nsize = 32\nbandwidth_gb_per_s = 100\nlatency_us = "
        "5\n"
        "[across]\nbandwidth_gbit_per_s = 200\n[host]\nmemory_gb = 512\nbandwidth_gb_per_s = 20\n"
    )
    cluster = parse_cluster(str(path))
    assert (cluster.num_devices, cluster.devices_per_node, cluster.name) == (64, 4, "mine")
    assert (cluster.memory_bytes, cluster.power_w, cluster.price_per_hour) == (96 * GIB, 650, 2.5)
    assert (cluster.peak_flops["bf16"], cluster.peak_flops["fp8"]) == (900e12, 1978.9e12)
    assert [(tier.name, tier.size, tier.bytes_per_s) for tier in cluster.tiers] == [
        ("in-node", 4, 450e9),
        ("in-rack", 32, 100e9),
        ("across", 64, 25e9),
    ]
    assert [tier.latency_s for tier in cluster.tiers] == pytest.approx([3.4e-6, 5e-6, 14e-6])
    assert (cluster.host_memory_bytes, cluster.host_bytes_per_s) == (512 * GIB, 20e9)


def test_the_documented_file_is_an_h100_cluster_written_out(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "models-and-clusters.md").read_text(encoding="utf-8")
    path = tmp_path / "mine.toml"
    path.write_text(re.findall(r"```toml\n(.*?)```", text, re.DOTALL)[0], encoding="utf-8")
    told, usual = parse_cluster(str(path)), parse_cluster("16x8xH100")
    assert (told.memory_bytes, told.peak_flops, told.power_w) == (
        usual.memory_bytes,
        usual.peak_flops,
        usual.power_w,
    )
    assert [tier.bytes_per_s for tier in told.tiers] == [450e9, 100e9, 50e9]
    assert [told.tiers[0].latency_s, told.tiers[2].latency_s] == pytest.approx(
        [tier.latency_s for tier in usual.tiers]
    )
    assert told.host_bytes_per_s == pytest.approx(usual.host_bytes_per_s, rel=0.01)


def test_a_file_may_describe_a_device_of_its_own() -> None:
    cluster = cluster_from(
        {**OWN, "nodes": 2, "device": "my chip", "in_node": {"bandwidth_gb_per_s": 200}}, "c.toml"
    )
    assert (cluster.device.name, cluster.num_devices) == ("my chip", 16)
    assert (cluster.memory_bytes, cluster.bandwidth_bytes_per_s, cluster.peak_flops) == (
        64 * GIB,
        1600e9,
        {"bf16": 400e12},
    )
    assert cluster.tiers[0].bytes_per_s == 200e9
    assert cluster.power_w is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"device": None}, "give device, or memory_gb"),
        ({"device": "h1000"}, "device: .*'h1000'; near it: h100"),
        ({"nodse": 4}, "'nodse'; did you mean nodes"),
        ({"nodes": 0}, "nodes .*whole number from 1"),
        ({"nodes": 2.5}, "nodes .*whole number"),
        ({"nodes": 10**7}, "more than 10000000"),
        ({"power_w": -1}, "power_w .*from 1e-06"),
        ({"power_w": float("nan")}, "power_w .*from 1e-06"),
        ({"across": 5}, r"across .*\[across\]"),
        ({"across": {"bandwith_gb_per_s": 5}}, "did you mean bandwidth_gb_per_s"),
        ({"across": {"bandwidth_gb_per_s": 5, "bandwidth_gbit_per_s": 40}}, "not both"),
        ({"in_rack": {"bandwidth_gb_per_s": 5}}, "size .*rack"),
        ({"in_rack": {"size": 4}}, "at least the 8"),
        ({"peak_tflops": {"bf17": 5}}, "did you mean bf16"),
        ({"name": "x" * 1000}, "name .*short"),
    ],
)
def test_a_wrong_field_of_a_file_is_named(changes: dict[str, object], message: str) -> None:
    values = {"device": "h100", **changes}
    with pytest.raises(InputError, match=message) as problem:
        cluster_from({name: value for name, value in values.items() if value is not None}, "c.toml")
    assert str(problem.value).startswith("c.toml")
    assert len(str(problem.value)) < 400


@pytest.mark.parametrize("data", [b"nodes = ", b"\xff\xfe", b"a = " + b"[" * 5000])
def test_a_file_that_is_not_toml_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "c.toml"
    path.write_bytes(data)
    with pytest.raises(InputError, match="not TOML"):
        parse_cluster(str(path))
    with pytest.raises(InputError, match="no such file"):
        parse_cluster(str(tmp_path / "none.toml"))
