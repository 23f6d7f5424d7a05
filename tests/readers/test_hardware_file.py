"""A hardware file is read whole, and one that lies is refused in words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stepscope.errors import FormatError, InputError
from stepscope.readers.hardware_file import MAX_BYTES, read_hardware
from stepscope.readers.measured_rates import read_roofs

TIME = {"seconds": 2e-3, "low_s": 1e-3, "high_s": 3e-3, "repeats": 5}


def told() -> dict[str, Any]:
    """As `stepscope calibrate` writes it, by hand."""
    link = {"kind": "all_reduce", "backend": "nccl", "tier": "node", "group_size": 8}
    region = {
        "name": "latency",
        "up_to_bytes": 65536.0,
        "alpha_s": 1e-6,
        "beta_bytes_per_s": None,
        "num_points": 5,
    }
    return {
        "schema": "stepscope.hardware/1",
        "made_by": "stepscope 0.1.0",
        "date": "2026-01-02T03:04:05Z",
        "how": "events",
        "machine": {"kind": "cuda", "device": "NVIDIA H200", "num_sms": 132},
        "gemms": [
            {"precision": "bf16", "m": 1000, "n": 1000, "k": 1000, "time": TIME},
            {"precision": "bf16", "m": 4000, "n": 1000, "k": 1000, "time": TIME},
            {"precision": "fp8", "m": 1000, "n": 1000, "k": 1000, "time": TIME},
        ],
        "copies": [
            {"kind": "device", "size_bytes": 8_000_000, "time": {**TIME, "seconds": 1e-6}},
            {"kind": "device", "size_bytes": 4_000_000_000, "time": TIME},
            {"kind": "to_device_pinned", "size_bytes": 100_000_000, "time": TIME},
        ],
        "launch": {"host": TIME, "device": None},
        "collectives": [{**link, "size_bytes": 1024, "time": TIME}],
        "collective_fits": [
            {
                **link,
                "regions": [
                    region,
                    {**region, "name": "bandwidth", "up_to_bytes": None, "beta_bytes_per_s": 350e9},
                ],
                "r2": 0.99,
                "worst_misfit": 1.1,
                "worst_bytes": 1024,
                "num_points": 10,
            }
        ],
    }


def written(tmp_path: Path, value: object) -> Path:
    path = tmp_path / "machine.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def test_what_it_holds_is_told(tmp_path: Path) -> None:
    found = read_hardware(written(tmp_path, told()))
    assert found.machine.num_sms == 132
    assert found.copy_bytes_per_s() == pytest.approx(4e12), (
        "the largest size: a small one stays in a cache"
    )
    assert found.copy_bytes_per_s("to_device_pinned") == pytest.approx(50e9)
    assert found.copy_bytes_per_s("to_host_pinned") is None
    assert found.gemm("bf16") is None, "measured, but not fitted"
    assert found.launch is not None
    assert found.launch.device is None
    fit = found.collective("all_reduce", 8, "node")
    assert fit is not None
    assert fit.seconds(1000) == pytest.approx(14e-6)
    assert fit.seconds(1e9) == pytest.approx(14e-6 + 1e9 * 1.75 / 350e9)
    assert found.collective("all_reduce", 16, "node") is None


def test_it_serves_as_roofs(tmp_path: Path) -> None:
    roofs = read_roofs(written(tmp_path, told()))
    assert roofs.device == "NVIDIA H200"
    assert roofs.source == "measured, machine.json"
    assert roofs.peak_flops == pytest.approx({"bf16": 2 * 4e9 / 2e-3, "fp8": 2 * 1e9 / 2e-3})
    assert roofs.bandwidth_bytes_per_s == pytest.approx(4e12)


def test_sustained_rates_are_the_roofs(tmp_path: Path) -> None:
    slower = {
        "precision": "bf16",
        "m": 4000,
        "n": 1000,
        "k": 1000,
        "time": {**TIME, "seconds": 2.5e-3},
    }
    found = read_hardware(written(tmp_path, {**told(), "sustained": [slower]}))
    assert found.sustained_share("bf16") == pytest.approx(0.8)
    assert found.sustained_share("fp8") == 1.0
    roofs = read_roofs(tmp_path / "machine.json")
    assert roofs.peak_flops == pytest.approx({"bf16": 2 * 4e9 / 2.5e-3, "fp8": 2 * 1e9 / 2e-3})
    assert read_hardware(written(tmp_path, told())).sustained == (), "an older file has none"


@pytest.mark.parametrize(
    "fault",
    [{"m": 0}, {"time": {**TIME, "seconds": 0.0}}, {"time": {**TIME, "seconds": -1}}, {"k": "x"}],
)
def test_sustained_rates_are_looked_at_as_others_are(tmp_path: Path, fault: dict[str, Any]) -> None:
    point = {"precision": "bf16", "m": 4000, "n": 1000, "k": 1000, "time": TIME}
    with pytest.raises(FormatError, match=r"not a (whole|sound)"):
        read_hardware(written(tmp_path, {**told(), "sustained": [{**point, **fault}]}))
    others: tuple[object, ...] = ({}, 3, [point, None])
    for instead in others:
        with pytest.raises(FormatError, match="not a whole"):
            read_hardware(written(tmp_path, {**told(), "sustained": instead}))


def test_collectives_alone_are_no_roofs(tmp_path: Path) -> None:
    path = written(tmp_path, {**told(), "gemms": []})
    assert read_hardware(path).roofs() is None
    with pytest.raises(InputError, match=r"no matrix products .*copies"):
        read_roofs(path)


def test_fields_of_a_later_version_do_no_harm(tmp_path: Path) -> None:
    assert read_hardware(written(tmp_path, {**told(), "moons": 3})).machine.device == "NVIDIA H200"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not a hardware"),
        ("[1]", "not a hardware"),
        ("[" * 100_000, "not a hardware"),
        ('{"schema": "stepscope.diagnosis/1"}', "not a hardware"),
        ('{"schema": "stepscope.hardware/2"}', "of the kind 'stepscope.hardware/2'"),
        ('{"schema": "stepscope.hardware/1"}', "not a whole"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(FormatError, match=said):
        read_hardware(written(tmp_path, text))


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (("gemms", 0, "time", "seconds"), 0.0, r"\$.gemms\[0\].time.seconds is 0"),
        (("gemms", 0, "time", "seconds"), -1.0, "seconds is -1"),
        (("gemms", 0, "m"), 0, "m is 0"),
        (("gemms", 0, "m"), 10**19, "not a (whole|sound)"),
        (("gemms", 0, "m"), "many", "not a whole"),
        (("copies", 1, "size_bytes"), -5, "size_bytes is -5"),
        (("collectives", 0, "group_size"), 0, "group_size is 0"),
        (("collective_fits", 0, "regions"), [], "regions is empty"),
        (("collective_fits", 0, "regions", 1, "beta_bytes_per_s"), 0.0, "beta_bytes_per_s is 0"),
        (("machine", "device"), "x" * 501, "longer than 500 characters"),
        (("machine",), None, "not a whole"),
    ],
)
def test_numbers_that_cannot_be_are_refused(
    tmp_path: Path, place: tuple[Any, ...], value: object, said: str
) -> None:
    file: Any = json.loads(json.dumps(told()))
    inner = file
    for part in place[:-1]:
        inner = inner[part]
    inner[place[-1]] = value
    with pytest.raises(FormatError, match=said):
        read_hardware(written(tmp_path, file))


def test_a_file_too_large_or_absent(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"larger than 16 MiB.*stepscope calibrate"):
        read_hardware(written(tmp_path, " " * (MAX_BYTES + 1)))
    with pytest.raises(InputError, match="No such file"):
        read_hardware(tmp_path / "none")


def samples() -> Iterator[tuple[str, str, bytes]]:
    yield "measured-rates", "calibrated.json", json.dumps(told()).encode()
