"""The datasheets, and the way from a recorded device to its own."""

import pytest

from stepscope.core.hardware import DeviceSpec, Figure
from stepscope.core.trace import DeviceProperties
from stepscope.hardware.lookup import _Entry, _load_file, find_spec, find_spec_by_key, load_specs

SPECS = load_specs()
GIB = 2**30

TENSOR_PER_CLOCK = {
    "v100-sxm2-16gb": 1024,
    "v100-sxm2-32gb": 1024,
    "v100-sxm3-32gb": 1024,
    "v100-pcie-16gb": 1024,
    "v100-pcie-32gb": 1024,
    "t4": 1024,
    "a100-sxm-40gb": 2048,
    "a100-sxm-80gb": 2048,
    "a100-pcie-40gb": 2048,
    "a100-pcie-80gb": 2048,
    "a800-sxm-80gb": 2048,
    "a10": 1024,
    "a40": 1024,
    "rtx-a6000": 1024,
    "l4": 1024,
    "l40s": 1024,
    "h100-sxm": 4096,
    "h800-sxm": 4096,
    "h20-sxm": 1024,
    "h100-pcie": 4096,
    "h100-nvl": 4096,
    "h200-sxm": 4096,
    "h200-nvl": 4096,
    "b200": 8192,
    "gb200": 8192,
    "b300": 8192,
    "gb300": 8192,
    "rtx-3090": 512,
    "rtx-4090": 512,
    "rtx-5090": 512,
    "mi250x-gcd": 1024,
    "mi250-gcd": 1024,
    "mi300x": 2048,
    "mi325x": 2048,
    "mi350x": 4096,
    "mi355x": 4096,
}
"""Dense FP16 FLOPs, accumulated in FP32, of one SM or CU in one clock, from the architecture
whitepapers. An H20's are cut."""

VECTOR_PER_CLOCK = dict.fromkeys(
    ("v100-sxm2", "v100-sxm3", "v100-pcie", "t4", "a100-sxm", "a100-pcie", "a800"), 128
)
"""The same for FP32 on the vector units, where it is not 256."""

MEMORY_BUS = {
    "v100": (4096, 1.752),
    "t4": (256, 10),
    "a100-sxm-40gb": (5120, 2.43),
    "a100-sxm-80gb": (5120, 3.186),
    "a100-pcie-40gb": (5120, 2.43),
    "a100-pcie-80gb": (5120, 3.024),
    "a800": (5120, 3.186),
    "a10": (384, 12.5),
    "a40": (384, 14.5),
    "rtx-a6000": (384, 16),
    "l40s": (384, 18),
    "l4": (192, 12.5),
    "h100-sxm": (5120, 5.238),
    "h800": (5120, 5.238),
    "h20-sxm": (6144, 5.2),
    "h100-pcie": (5120, 3.186),
    "h100-nvl": (6016, 5.238),
    "h200": (6016, 6.402),
    "b200": (7680, 7.992),
    "gb200": (8192, 7.992),
    "b300": (7680, 7.992),
    "gb300": (8192, 7.992),
    "rtx-3090": (384, 19.5),
    "rtx-4090": (384, 21),
    "rtx-5090": (512, 28),
    "mi250": (4096, 3.2),
    "mi300x": (8192, 5.2),
    "mi325x": (8192, 6),
    "mi350x": (8192, 8),
    "mi355x": (8192, 8),
}
"""Width in bits and Gb/s per pin, by the start of the key."""

PCIE_GEN_3, PCIE_GEN_4, PCIE_GEN_5 = 16e9, 32e9, 64e9


def device(
    name: str,
    memory_bytes: float | None = None,
    num_sms: int | None = None,
    warp_size: int | None = 32,
) -> DeviceProperties:
    return DeviceProperties(
        index=0,
        name=name,
        memory_bytes=None if memory_bytes is None else int(memory_bytes),
        num_sms=num_sms,
        compute_capability=None,
        warp_size=warp_size,
    )


def found(properties: DeviceProperties) -> str | None:
    spec = find_spec(properties)
    return None if spec is None else spec.key


def spec_of(key: str) -> DeviceSpec:
    spec = find_spec_by_key(key)
    assert spec is not None
    return spec


def peak(spec: DeviceSpec, precision: str) -> float:
    return spec.peak_flops[precision].value


def figures(spec: DeviceSpec) -> list[Figure]:
    return [
        spec.memory_bytes,
        spec.bandwidth_bytes_per_s,
        *spec.peak_flops.values(),
        *spec.link_bytes_per_s.values(),
    ]


@pytest.mark.parametrize(
    ("properties", "key"),
    [
        (device("NVIDIA H200", 150109880320, 132), "h200-sxm"),
        (device("NVIDIA B200", 191503138816, 148), "b200"),
        (device("NVIDIA A100-PG509-200", 42297524224, 108), "a100-sxm-40gb"),
        (device("NVIDIA A100-PG509-200", 42505273344, 108), "a100-sxm-40gb"),
        (device("Tesla V100-SXM2-32GB", 34079637504, 80), "v100-sxm2-32gb"),
        (device("AMD Instinct MI300X", 206141652992, 304, 64), "mi300x"),
        (device("", 206141652992, 304, 64), "mi300x"),
        (device("AMD Radeon Graphics", 68702699520, 104, 64), "mi250-gcd"),
    ],
)
def test_find_spec_knows_devices_of_real_traces(properties: DeviceProperties, key: str) -> None:
    assert found(properties) == key


@pytest.mark.parametrize(
    ("name", "memory_gib", "num_sms", "key"),
    [
        ("NVIDIA A100-SXM4-40GB", 39.4, 108, "a100-sxm-40gb"),
        ("NVIDIA A100-SXM4-80GB", 79.2, 108, "a100-sxm-80gb"),
        ("NVIDIA A100-PCIE-40GB", 39.4, 108, "a100-pcie-40gb"),
        ("NVIDIA A100 80GB PCIe", 79.2, 108, "a100-pcie-80gb"),
        ("Tesla V100-SXM2-16GB", 15.8, 80, "v100-sxm2-16gb"),
        ("Tesla V100-PCIE-16GB", 15.8, 80, "v100-pcie-16gb"),
        ("Tesla V100-PCIE-32GB", 31.7, 80, "v100-pcie-32gb"),
        ("NVIDIA H100 80GB HBM3", 79.1, 132, "h100-sxm"),
        ("NVIDIA H100 PCIe", 79.2, 114, "h100-pcie"),
        ("NVIDIA H100 NVL", 93.1, 132, "h100-nvl"),
        ("NVIDIA H200 NVL", 139.8, 132, "h200-nvl"),
        ("NVIDIA GB200", 184.3, 152, "gb200"),
        ("NVIDIA GB300", 277.5, 152, "gb300"),
        ("NVIDIA B300 SXM6 AC", 268.6, 148, "b300"),
        ("NVIDIA A800-SXM4-80GB", 79.2, 108, "a800-sxm-80gb"),
        ("NVIDIA H20", 95.1, 78, "h20-sxm"),
        ("NVIDIA A40", 44.4, 84, "a40"),
        ("NVIDIA RTX A6000", 47.4, 84, "rtx-a6000"),
        ("Tesla V100-SXM3-32GB", 31.7, 80, "v100-sxm3-32gb"),
        ("NVIDIA L4", 22.0, 58, "l4"),
        ("NVIDIA L40S", 44.4, 142, "l40s"),
        ("NVIDIA A10", 22.1, 72, "a10"),
        ("Tesla T4", 14.6, 40, "t4"),
        ("NVIDIA GeForce RTX 3090", 23.7, 82, "rtx-3090"),
        ("NVIDIA GeForce RTX 4090", 23.6, 128, "rtx-4090"),
        ("NVIDIA GeForce RTX 5090", 31.4, 170, "rtx-5090"),
        ("AMD Instinct MI250X", 64.0, 110, "mi250x-gcd"),
        ("AMD Instinct MI250X / MI250", 64.0, 110, "mi250x-gcd"),
        ("AMD Instinct MI250X/MI250", 64.0, 104, "mi250-gcd"),
        ("AMD Instinct MI210", 64.0, 104, "mi250-gcd"),
        ("AMD Instinct MI300X VF", 191.5, 304, "mi300x"),
        ("AMD Instinct MI325X", 255.7, 304, "mi325x"),
        ("AMD Instinct MI355X", 287.6, 256, "mi355x"),
        ("AMD Instinct MI350X", 287.6, 256, "mi350x"),
        ("NVIDIA B300", 268.0, 148, "b300"),
    ],
)
def test_find_spec_knows_the_drivers_names(
    name: str, memory_gib: float, num_sms: int, key: str
) -> None:
    warp_size = 64 if name.startswith("AMD") else 32
    assert found(device(name, memory_gib * GIB, num_sms, warp_size)) == key


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.key)
def test_find_spec_finds_every_device_from_the_names_it_is_listed_with(spec: DeviceSpec) -> None:
    entry = next(entry for entry in _load_file().devices if entry.spec == spec)
    prefix = "NVIDIA " if spec.vendor == "nvidia" else "AMD "
    for name in entry.names:
        assert (
            found(device(prefix + name, spec.memory_bytes.value * 0.985, spec.num_sms)) == spec.key
        )


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA H20-3e",
        "NVIDIA H100",  # custom boards with 64 or 96 GB have this name
        "NVIDIA H800",
        "NVIDIA GH200 480GB",
        "NVIDIA A100X",
        "NVIDIA A100-SXM-64GB",
        "NVIDIA A10G",
        "NVIDIA A10M",
        "NVIDIA L40",
        "NVIDIA L4 Laptop GPU",
        "NVIDIA T4G",
        "NVIDIA T4 32GB",
        "NVIDIA RTX 6000 Ada Generation",
        "NVIDIA GeForce RTX 3090 Ti",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 5090 D",
        "NVIDIA GeForce RTX 5090 Laptop GPU",
        "Tesla V100S-PCIE-32GB",
        "Tesla V100-SXM2-32GB-LS",
        "NVIDIA A100-SXM4-80GB MIG 3g.40gb",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "GRID A100-40C",
        "AMD Instinct MI300A",
        "AMD Instinct MI308X",
        "AMD Instinct MI100",
        "AMD Radeon RX 7900 XTX",
        "Quadro RTX 4090",
        "cpu",
        "",
    ],
)
def test_find_spec_never_guesses_from_a_name_that_is_only_like_one(name: str) -> None:
    assert found(device(name)) is None


@pytest.mark.parametrize(
    ("properties", "why"),
    [
        (device("NVIDIA A100-SXM4-80GB", 39.5 * GIB, 42), "a MIG slice"),
        (
            device("NVIDIA A100-SXM4-80GB", 79.2 * GIB, 98),
            "the largest MIG slice: all memory, not all SMs",
        ),
        (
            device("NVIDIA A100-SXM4-40GB", 79.2 * GIB, 108),
            "the name and the memory contradict each other",
        ),
        (device("NVIDIA GeForce RTX 4090", 47.4 * GIB, 128), "a card refitted with 48 GB"),
        (device("AMD Instinct MI300X", 24.0 * GIB, 38, 64), "an MI300X cut into eight"),
        (
            device("AMD Instinct MI250X", 64.0 * GIB, 104, 64),
            "a name and a compute unit count of different devices",
        ),
    ],
)
def test_find_spec_leaves_part_of_a_card_and_refitted_cards_alone(
    properties: DeviceProperties, why: str
) -> None:
    assert found(properties) is None, why


def test_find_spec_needs_the_compute_units_where_two_devices_share_a_name() -> None:
    assert found(device("AMD Instinct MI250X / MI250", 64.0 * GIB, None, 64)) is None


def test_find_spec_takes_a_name_of_one_device_where_nothing_else_was_recorded() -> None:
    assert found(device("NVIDIA H200", None, None, None)) == "h200-sxm"


@pytest.mark.parametrize(
    ("memory_gib", "num_sms", "warp_size", "key"),
    [
        (191.98, 304, 64, "mi300x"),
        (255.98, 304, 64, "mi325x"),
        (63.98, 110, 64, "mi250x-gcd"),
        (63.98, 104, 64, "mi250-gcd"),
        (127.5, 228, 64, None),  # an MI300A
        (287.98, 256, 64, None),  # an MI350X or an MI355X: their clocks differ
        (191.98, 304, 32, None),  # no CDNA device has waves of 32
        (191.98, 304, None, None),
        (None, 304, 64, None),
        (191.98, None, 64, None),
    ],
)
def test_find_spec_knows_an_unnamed_amd_device_by_memory_and_compute_units(
    memory_gib: float | None, num_sms: int | None, warp_size: int | None, key: str | None
) -> None:
    memory_bytes = None if memory_gib is None else memory_gib * GIB
    assert found(device("AMD Radeon Graphics", memory_bytes, num_sms, warp_size)) == key
    assert found(device("", memory_bytes, num_sms, warp_size)) == key


def test_find_spec_by_key_ignores_case_and_knows_no_others() -> None:
    assert spec_of("H100-SXM").name == "NVIDIA H100 SXM"
    assert find_spec_by_key("h100") is None


def test_keys_are_unique_and_lower_case() -> None:
    keys = [spec.key for spec in SPECS]
    assert len(set(keys)) == len(keys) == 36
    assert all(key == key.casefold() for key in keys)


@pytest.mark.parametrize("entry", _load_file().devices, ids=lambda entry: entry.spec.key)
def test_every_number_has_a_source(entry: _Entry) -> None:
    sources = [figure.source for figure in figures(entry.spec)] + [entry.num_sms_source]
    assert all(len(source) > 10 and source[0].isalnum() for source in sources)
    assert not any("http" in source for source in sources)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.key)
def test_units_are_bytes_and_flops(spec: DeviceSpec) -> None:
    assert 1.5e10 < spec.memory_bytes.value < 4e11
    assert spec.memory_bytes.value % GIB == 0
    assert 2.5e11 < spec.bandwidth_bytes_per_s.value < 1e13
    assert set(spec.peak_flops) <= {
        "fp64",
        "fp64_tensor",
        "fp32",
        "tf32",
        "fp16",
        "bf16",
        "fp8",
        "fp4",
        "int8",
    }
    assert {"fp64", "fp32", "fp16"} <= set(spec.peak_flops)
    assert all(2e11 < figure.value < 2e16 for figure in spec.peak_flops.values())
    assert set(spec.link_bytes_per_s) <= {"nvlink", "xgmi", "pcie"}
    assert spec.link_bytes_per_s
    assert all(1e10 < figure.value < 1e12 for figure in spec.link_bytes_per_s.values())
    assert all(
        figure.value < spec.bandwidth_bytes_per_s.value for figure in spec.link_bytes_per_s.values()
    )
    assert spec.vendor in {"nvidia", "amd"}


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.key)
def test_peaks_are_dense_because_the_clock_they_imply_is_one_the_device_has(
    spec: DeviceSpec,
) -> None:
    """Rated clocks lie between 1.37 and 2.52 GHz: twice or half a peak leaves that range, so a
    sparse figure cannot hide."""
    assert spec.num_sms is not None
    assert 1.36e9 < peak(spec, "fp16") / (spec.num_sms * TENSOR_PER_CLOCK[spec.key]) < 2.53e9
    per_clock = next(
        (value for family, value in VECTOR_PER_CLOCK.items() if spec.key.startswith(family)), 256
    )
    assert 1.36e9 < peak(spec, "fp32") / (spec.num_sms * per_clock) < 2.53e9


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.key)
def test_narrower_numbers_go_faster_by_the_steps_the_units_are_built_in(spec: DeviceSpec) -> None:
    fp16 = peak(spec, "fp16")
    is_cdna2 = spec.key in {"mi250x-gcd", "mi250-gcd"}
    steps = {"bf16": 1, "tf32": 0.5, "fp8": 2, "fp4": 4, "int8": 1 if is_cdna2 else 2}
    if spec.key in {"b300", "gb300"}:
        # Blackwell Ultra has half as much again of FP4, and hardly any integers.
        steps |= {"fp4": 6, "int8": 0.0664}
    if spec.key.startswith("rtx-") and spec.key != "rtx-a6000":
        # FP32 accumulate halves the floating-point rates of GeForce cards, and neither FP4 nor
        # integers.
        steps |= {"fp4": 8, "int8": 4}
    for precision, step in steps.items():
        if precision in spec.peak_flops:
            # 1.5 %: datasheets round, and the L40S's FP16 is not half its FP8.
            assert peak(spec, precision) == pytest.approx(step * fp16, rel=0.015), precision


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.key)
def test_fp64_stands_to_fp32_as_the_family_has_it(spec: DeviceSpec) -> None:
    graphics = {
        "t4": 1 / 32,
        "a10": 1 / 64,
        "l4": 1 / 64,
        "l40s": 1 / 64,
        "rtx": 1 / 64,
        "a40": 1 / 64,
    }
    # Cut for export, or given away for FP4.
    graphics |= {"h800": 1 / 66.9, "h20": 1 / 44, "b300": 1 / 60, "gb300": 1.3 / 80}
    ratio = graphics.get(spec.key.split("-", maxsplit=1)[0], 1 / 2)
    assert peak(spec, "fp64") == pytest.approx(ratio * peak(spec, "fp32"), rel=0.02)
    if "fp64_tensor" in spec.peak_flops:
        assert peak(spec, "fp64_tensor") == pytest.approx(2 * peak(spec, "fp64"), rel=0.02)


@pytest.mark.parametrize(
    ("key", "precision", "flops"),
    [
        ("h100-sxm", "bf16", 989.4e12),
        ("h100-pcie", "bf16", 756e12),
        ("h200-sxm", "bf16", 989.4e12),
        ("a100-sxm-80gb", "bf16", 312e12),
        ("b200", "bf16", 2.25e15),
        ("gb200", "bf16", 2.5e15),
        ("l4", "bf16", 121e12),
        ("rtx-3090", "bf16", 71e12),
        ("rtx-4090", "bf16", 165.2e12),
        ("mi300x", "bf16", 1307.4e12),
        ("mi250x-gcd", "bf16", 191.5e12),
        ("v100-sxm2-32gb", "fp16", 125e12),
    ],
)
def test_peaks_often_quoted_wrong_are_pinned(key: str, precision: str, flops: float) -> None:
    assert peak(spec_of(key), precision) == flops


def test_precisions_without_a_unit_are_absent() -> None:
    without = {
        "bf16": ("v100", "t4"),
        "tf32": ("v100", "t4", "mi250", "mi350x", "mi355x"),
        "fp8": ("v100", "t4", "a100", "a800", "a10", "a40", "rtx-3090", "rtx-a6000", "mi250"),
        "fp4": (
            *(
                "v100",
                "t4",
                "a100",
                "a800",
                "a10",
                "a40",
                "l4",
                "h100",
                "h800",
                "h20",
                "rtx-3090",
                "rtx-a6000",
                "rtx-4090",
            ),
            *("mi250", "mi300x", "mi325x"),
        ),
    }
    for precision, families in without.items():
        lacking = {spec.key for spec in SPECS if precision not in spec.peak_flops}
        assert lacking == {spec.key for spec in SPECS if spec.key.startswith(families)}, precision


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.key)
def test_bandwidth_is_what_the_memory_bus_carries(spec: DeviceSpec) -> None:
    bits, gbits_per_pin = next(
        bus for family, bus in MEMORY_BUS.items() if spec.key.startswith(family)
    )
    # 3 %: vendors round down (8.2 TB/s are sold as 8).
    assert spec.bandwidth_bytes_per_s.value == pytest.approx(
        bits / 8 * gbits_per_pin * 1e9, rel=0.03
    )


@pytest.mark.parametrize(
    ("family", "links"),
    [
        ("v100-sxm2", {"nvlink": 6 * 25e9, "pcie": PCIE_GEN_3}),
        ("v100-pcie", {"pcie": PCIE_GEN_3}),
        ("t4", {"pcie": PCIE_GEN_3}),
        ("a100", {"nvlink": 12 * 25e9, "pcie": PCIE_GEN_4}),
        ("a10", {"pcie": PCIE_GEN_4}),
        ("l4", {"pcie": PCIE_GEN_4}),
        ("l40s", {"pcie": PCIE_GEN_4}),
        ("h100-sxm", {"nvlink": 18 * 25e9, "pcie": PCIE_GEN_5}),
        ("h100-pcie", {"nvlink": 12 * 25e9, "pcie": PCIE_GEN_5}),
        ("h100-nvl", {"nvlink": 12 * 25e9, "pcie": PCIE_GEN_5}),
        ("h200", {"nvlink": 18 * 25e9, "pcie": PCIE_GEN_5}),
        ("b200", {"nvlink": 18 * 50e9, "pcie": PCIE_GEN_5}),
        ("gb200", {"nvlink": 18 * 50e9}),
        ("b300", {"nvlink": 18 * 50e9, "pcie": PCIE_GEN_5}),
        ("gb300", {"nvlink": 18 * 50e9}),
        ("v100-sxm3", {"nvlink": 6 * 25e9, "pcie": PCIE_GEN_3}),
        ("a800", {"nvlink": 8 * 25e9, "pcie": PCIE_GEN_4}),
        ("h800", {"nvlink": 8 * 25e9, "pcie": PCIE_GEN_5}),
        ("h20", {"nvlink": 18 * 25e9, "pcie": PCIE_GEN_5}),
        ("a40", {"nvlink": 4 * 14.0625e9, "pcie": PCIE_GEN_4}),
        ("rtx-a6000", {"nvlink": 4 * 14.0625e9, "pcie": PCIE_GEN_4}),
        ("rtx-3090", {"nvlink": 4 * 14.0625e9, "pcie": PCIE_GEN_4}),
        ("rtx-4090", {"pcie": PCIE_GEN_4}),
        ("rtx-5090", {"pcie": PCIE_GEN_5}),
        ("mi250x", {"xgmi": 8 * 50e9, "pcie": PCIE_GEN_4}),
        ("mi250", {"pcie": PCIE_GEN_4}),
        ("mi300x", {"xgmi": 7 * 64e9, "pcie": PCIE_GEN_5}),
        ("mi325x", {"xgmi": 7 * 64e9, "pcie": PCIE_GEN_5}),
        ("mi350x", {"xgmi": 7 * 76.8e9, "pcie": PCIE_GEN_5}),
        ("mi355x", {"xgmi": 7 * 76.8e9, "pcie": PCIE_GEN_5}),
    ],
)
def test_links_count_one_direction_and_all_of_a_kind(family: str, links: dict[str, float]) -> None:
    of_family = [spec for spec in SPECS if spec.key == family or spec.key.startswith(family + "-")]
    assert of_family
    for spec in of_family:
        assert {
            kind: figure.value for kind, figure in spec.link_bytes_per_s.items()
        } == pytest.approx(links)


def test_a100_bandwidth_differs_by_board_and_memory() -> None:
    keys = ("a100-sxm-40gb", "a100-sxm-80gb", "a100-pcie-40gb", "a100-pcie-80gb")
    assert [spec_of(key).bandwidth_bytes_per_s.value for key in keys] == [
        1555e9,
        2039e9,
        1555e9,
        1935e9,
    ]


def test_load_specs_reads_the_file_once() -> None:
    assert load_specs() is load_specs()
