"""NVIDIA's counters, asked of a fake of its library, and AMD's, of a fake of its driver's files."""

import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stepscope.capture.counters.amd import AmdDevice
from stepscope.capture.counters.nvml import Nvml, NvmlDevice, NvmlError
from tests.capture.fakes import Clock, FakeNvml, write


def device(fake: FakeNvml) -> NvmlDevice:
    return NvmlDevice(Nvml(fake), ctypes.c_void_p(77), Clock())


def test_nvml_device_tells_everything_with_units() -> None:
    fake = FakeNvml()
    asked = device(fake)
    sample = asked.take()
    assert (sample["gpu_util_percent"], sample["gpu_memory_util_percent"]) == (97, 40)
    assert (sample["sm_clock_mhz"], sample["memory_clock_mhz"], sample["max_sm_clock_mhz"]) == (
        1500,
        2600,
        1980,
    )
    assert (sample["gpu_power_w"], sample["gpu_power_limit_w"], sample["gpu_temperature_c"]) == (
        650.5,
        700.0,
        61,
    )
    assert sample["throttle_reasons"] == ["sw_power_cap", "sw_thermal_slowdown"]
    assert (sample["gpu_memory_used_bytes"], sample["gpu_memory_total_bytes"]) == (5, 9)
    assert (sample["pcie_tx_bytes_s"], sample["pcie_rx_bytes_s"]) == (11_000, 22_000)
    fake.energy_mj, fake.nvlink_kib = 600_000, 3
    sample = asked.take()
    # The clock is looked at twice a sample: for the energy and for the links.
    assert sample["gpu_mean_power_w"] == 300.0
    assert sample["nvlink_rx_bytes_s"] == 1536
    assert asked.notes == [
        "not measured: nvmlDeviceGetCurrPcieLinkGeneration: this driver has no such function"
    ]


def test_nvml_pcie_is_asked_every_tenth_time() -> None:
    fake = FakeNvml()
    asked = device(fake)
    for _ in range(20):
        asked.take()
    assert fake.calls["nvmlDeviceGetPcieThroughput"] == 4
    assert fake.calls["nvmlDeviceGetPowerUsage"] == 20


def test_nvml_question_that_is_refused_is_not_asked_again() -> None:
    fake = FakeNvml(nvmlDeviceGetUtilizationRates=3, nvmlDeviceGetFieldValues=3)
    asked = device(fake)
    samples = [asked.take() for _ in range(3)]
    assert all("gpu_util_percent" not in sample and sample["gpu_power_w"] for sample in samples)
    assert fake.calls["nvmlDeviceGetUtilizationRates"] == 1
    assert "not measured: nvmlDeviceGetUtilizationRates: not supported" in asked.notes


@pytest.mark.parametrize(
    ("properties", "known"),
    [
        ({"uuid": "1234"}, b"GPU-1234"),
        ({"uuid": "1234"}, b"MIG-1234"),
        (
            {"uuid": "1234", "pci_bus_id": 0x1B, "pci_device_id": 0, "pci_domain_id": 0},
            b"00000000:1b:00.0",
        ),
        ({}, 3),
    ],
)
def test_nvml_handle_is_found_by_uuid_or_bus_or_number(
    properties: dict[str, Any], known: Any
) -> None:
    fake = FakeNvml()
    fake.known = known
    handle = Nvml(fake).handle(SimpleNamespace(**properties), 1, {"CUDA_VISIBLE_DEVICES": "2,3"})
    assert handle.value == 77
    assert fake.addresses[-1] == known


def test_nvml_handle_that_nobody_knows_and_library_that_does_not_start() -> None:
    with pytest.raises(NvmlError, match="not found"):
        Nvml(FakeNvml()).handle(SimpleNamespace(uuid="x"), 0)
    with pytest.raises(NvmlError, match="error 9"):
        Nvml(FakeNvml(nvmlInit_v2=9))


# AMD.


def test_amd_device_reads_the_driver_s_files(tmp_path: Path) -> None:
    here = "sys/bus/pci/devices/0000:c1:00.0/"
    hwmon = here + "hwmon/hwmon4/"
    write(
        tmp_path,
        {
            here + "gpu_busy_percent": "88\n",
            here + "mem_info_vram_used": "1024\n",
            here + "pp_dpm_sclk": "0: 132Mhz\n1: 2100Mhz *\n",
            hwmon + "power1_input": "450000000\n",
            hwmon + "power1_cap": "750000000\n",
            hwmon + "temp1_input": "50000\n",
            hwmon + "temp2_input": "71000\n",
            hwmon + "freq1_input": "not a number\n",
        },
    )
    asked = AmdDevice(SimpleNamespace(pci_bus_id=0xC1, pci_device_id=0, pci_domain_id=0), tmp_path)
    sample = asked.take()
    assert sample == {
        "gpu_util_percent": 88,
        "gpu_memory_used_bytes": 1024,
        "gpu_power_w": pytest.approx(450),
        "gpu_power_limit_w": pytest.approx(750),
        "gpu_temperature_c": pytest.approx(71),
        "max_sm_clock_mhz": 2100,
    }
    assert any("sm_clock_mhz" in note for note in asked.notes)
    asked.notes.clear()
    asked.take()
    assert asked.notes == []


def test_amd_device_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="not there"):
        AmdDevice(SimpleNamespace(pci_bus_id=1), tmp_path)
    with pytest.raises(RuntimeError, match="PCI"):
        AmdDevice(SimpleNamespace(), tmp_path)
