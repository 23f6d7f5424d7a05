"""amd-smi and rocm-smi: the same sample in every layout they write it in, and damaged ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepscope.core.recordings.system import DeviceSeries, SystemReport
from stepscope.errors import FormatError, InputError
from stepscope.readers.format import Source
from stepscope.recordings.system import nvidia_smi, rocm_smi
from tests.wording import any_mentions

MONITOR = (
    "timestamp,gpu,power_usage,hotspot_temperature,memory_temperature,gfx_clk,gfx,mem,vram_used,vram_total\n"
    "1763258464,0,612,71,58,1980,97,40,1000,2000\n1763258464,1,N/A,60,50,132,0,0,10,2000\n"
    "1763258465,0,600,73,58,1900,99,41,1000,2000\n"
)
CARDS = {
    "card0": {
        "Device Name": "MI300X",
        "Temperature (Sensor edge) (C)": "50.0",
        "Temperature (Sensor junction) (C)": "71.0",
        "sclk clock speed:": "(1980Mhz)",
        "mclk clock speed:": "(1300Mhz)",
        "Current Socket Graphics Package Power (W)": "612.0",
        "Max Graphics Package Power (W)": "750.0",
        "GPU use (%)": "97",
        "VRAM Total Memory (B)": str(2000 << 20),
        "VRAM Total Used Memory (B)": str(1000 << 20),
    },
    "system": {"Driver version": "6.8"},
}


def told(value: float, unit: str) -> dict[str, object]:
    return {"value": value, "unit": unit}


METRIC = [
    {
        "gpu": 0,
        "usage": {
            "gfx_activity": told(97, "%"),
            "umc_activity": told(40, "%"),
            "mm_activity": "N/A",
        },
        "power": {"socket_power": told(612, "W"), "throttle_status": "UNTHROTTLED"},
        "clock": {
            "gfx_0": {"clk": told(1980, "MHz"), "max_clk": told(2100, "MHz")},
            "mem_0": {"clk": told(1300, "MHz")},
        },
        "temperature": {"edge": "N/A", "hotspot": told(71, "C"), "mem": told(58, "C")},
        "mem_usage": {"total_vram": told(2000, "MB"), "used_vram": told(1000, "MB")},
        "throttle": {
            "ppt_violation_status": "ACTIVE",
            "socket_thermal_violation_status": "NOT ACTIVE",
        },
    }
]


def read(path: Path, text: str | bytes) -> SystemReport:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return SystemReport(recordings=(rocm_smi.read_file(Source(path=path, label="smi")),))


def medians(one: DeviceSeries) -> tuple[float | None, ...]:
    spreads = (
        one.busy_share,
        one.sm_clock_mhz,
        one.power_w,
        one.temperature_c,
        one.memory_used_bytes,
    )
    return (
        *(None if spread is None else spread.median for spread in spreads),
        one.memory_total_bytes,
    )


def test_monitor_as_a_table(tmp_path: Path) -> None:
    first, second = read(tmp_path / "a.csv", MONITOR).devices
    assert (first.index, first.num_samples, first.num_working, first.span_s) == (0, 2, 2, 1.0)
    assert medians(first) == pytest.approx((0.98, 1940, 606, 72, 1000 << 20, 2000 << 20))
    assert (second.index, second.num_working) == (1, 0)
    assert (second.power_w, second.throttled) == (None, None)


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(CARDS),
        json.dumps(METRIC),
        json.dumps({"gpu_data": METRIC}, indent=4),
        "device,"
        + ",".join(CARDS["card0"])
        + "\ncard0,"
        + ",".join(CARDS["card0"].values())
        + "\n",
    ],
)
def test_every_layout_gives_the_same_sample(tmp_path: Path, text: str) -> None:
    (device,) = read(tmp_path / "a", text).devices
    assert medians(device) == pytest.approx((0.97, 1980, 612, 71, 1000 << 20, 2000 << 20))
    assert rocm_smi.is_mine(text.encode(), "")
    assert not nvidia_smi.is_mine(text.encode(), "")


NEW_TABLE = """\

===================================== ROCm System Management Interface =====================================
=============================================== Concise Info ===============================================
Device  Node  IDs              Temp        Power     Partitions          SCLK     MCLK     Fan  Perf  PwrCap  VRAM%  GPU%
              (DID,     GUID)  (Junction)  (Socket)  (Mem, Compute, ID)
============================================================================================================
0       2     0x74a1,   28851  71.0°C      612.0W    NPS1, SPX, 0        1980Mhz  1300Mhz  0%   auto  750.0W  60%    97%
1       3     0x74a1,   51499  47.0°C      N/A       NPS1, SPX, 0        132Mhz   900Mhz   0%   auto  750.0W  0%     0%
============================================================================================================
"""  # noqa: E501
OLD_TABLE = """\
======================= ROCm System Management Interface =======================
GPU  Temp   AvgPwr  SCLK     MCLK     Fan   Perf  PwrCap  VRAM%  GPU%
0    71.0c  612.0W  1980Mhz  1600Mhz  0%    auto  750.0W    60%   97%
================================================================================
"""


@pytest.mark.parametrize("text", [NEW_TABLE, OLD_TABLE])
def test_the_table_that_it_prints_without_options(tmp_path: Path, text: str) -> None:
    assert rocm_smi.is_mine(text.encode(), "")
    device, *others = read(tmp_path / "a", text + text).devices
    assert (device.index, device.num_samples, device.power_limit_w) == (0, 2, 750)
    found = [device.busy_share, device.sm_clock_mhz, device.power_w, device.temperature_c]
    assert [spread and spread.median for spread in found] == pytest.approx([0.97, 1980, 612, 71])
    assert [other.index for other in others] == ([1] if text is NEW_TABLE else [])


def test_what_holds_the_clock_down_is_told(tmp_path: Path) -> None:
    (device,) = read(tmp_path / "a", json.dumps(METRIC)).devices
    assert device.throttled == {"power_violation": 1.0}
    assert device.max_sm_clock_mhz == 2100
    (other,) = read(tmp_path / "a", json.dumps(CARDS)).devices
    assert other.throttled is None
    assert (other.power_limit_w, other.name) == (750, "MI300X")


def test_one_document_after_the_other(tmp_path: Path) -> None:
    (device,) = read(
        tmp_path / "a", "\n".join([json.dumps(CARDS)] * 3) + "\n" + json.dumps(CARDS)[:60]
    ).devices
    assert device.num_samples == 3
    header = MONITOR.splitlines()[0]
    twice = read(
        tmp_path / "a", MONITOR + header + ",extra\n1763258466,0,1,2,3,4,5,6,7,8,9\nrubbish\n"
    )
    assert twice.devices[0].num_samples == 3
    assert any_mentions(twice.recordings[0].notes, "1 sample", "not be read")


def test_cut_anywhere_is_read_or_refused_in_words(tmp_path: Path) -> None:
    for text in (MONITOR, json.dumps(METRIC)):
        counts = []
        for end in range(0, len(text), 11):
            try:
                counts.append(
                    sum(device.num_samples for device in read(tmp_path / "a", text[:end]).devices)
                )
            except InputError:
                counts.append(0)
        assert counts == sorted(counts)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b"[" * 10_000,
        b'{"card0": 7}',
        b"a,b\n1,2\n",
        b"\x00\xff\x01",
        b'[{"gpu": 1e999}]',
    ],
)
def test_what_holds_no_sample_is_refused_in_words(tmp_path: Path, text: bytes) -> None:
    with pytest.raises(FormatError, match="smi: no sample"):
        read(tmp_path / "a", text)
    assert not rocm_smi.is_mine(text, "amd_smi.csv")


@pytest.mark.parametrize(
    "text",
    [
        (
            "timestamp,gpu,power_usage,gfx_clk,vram_used,vram_total\n1,0,612 W,1980 MHz,1536 "
            "MB,192 "
            "GB\n"
        ),
        (
            "timestamp,gpu,power_usage,gfx_clk,vram_used,vram_total\n1,0,612000 mW,1.98 GHz,1.5 "
            "GB,196608 MiB\n"
        ),
        (
            '[{"gpu": 0, "power": {"socket_power": {"value": 612000, "unit": "mW"}},'
            ' "clock": {"gfx_0": {"clk": {"value": 1980, "unit": "MHz"}}},'
            ' "mem_usage": {"used_vram": {"value": 1.5, "unit": "GB"}, "total_vram": {"value": '
            '192, "unit": "GB"}}}]'
        ),
    ],
)
def test_units_that_are_written_count(tmp_path: Path, text: str) -> None:
    (device,) = read(tmp_path / "x", text).devices
    assert device.power_w is not None
    assert device.sm_clock_mhz is not None
    assert device.memory_used_bytes is not None
    assert [device.power_w.median, device.sm_clock_mhz.median] == pytest.approx([612, 1980])
    assert (device.memory_used_bytes.median, device.memory_total_bytes) == (
        1.5 * 1024**3,
        192 * 1024**3,
    )


def samples() -> Iterator[tuple[str, str, bytes]]:
    yield "rocm-smi", "smi.csv", MONITOR.encode()
    yield "rocm-smi", "smi.json", json.dumps(CARDS).encode()
    yield "rocm-smi", "smi.txt", NEW_TABLE.encode()
    yield "rocm-smi", "metric.json", json.dumps(METRIC).encode()
