"""Devices asked now: through a stand-in for NVIDIA's library, and a driver's files."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from stepscope.capture.counters.nvml import Nvml
from stepscope.recordings.system.live_devices import LiveDevices
from tests.capture.fakes import FakeNvml, write
from tests.wording import any_mentions


class Machine(FakeNvml):
    """Two devices; process 42 is on the second."""

    def fill(self, name: str, args: tuple[Any, ...]) -> int:
        if name == "nvmlDeviceGetCount_v2":
            args[-1]._obj.value = 2
        elif name == "nvmlDeviceGetHandleByIndex_v2":
            args[-1]._obj.value = 100 + args[0].value
        elif name == "nvmlDeviceGetName":
            args[1].value = b"NVIDIA H200"
        elif name == "nvmlDeviceGetComputeRunningProcesses_v3":
            is_second = args[0].value == 101
            args[1]._obj.value = int(is_second)
            if is_second:
                args[2][0].pid = 42
        else:
            return super().fill(name, args)
        return 0


def asked(root: Path, **refused: int) -> LiveDevices:
    seconds = itertools.count()
    return LiveDevices(lambda: Nvml(Machine(**refused)), root, lambda: float(next(seconds)))


def test_samples_are_those_of_a_monitor(tmp_path: Path) -> None:
    devices = asked(tmp_path)
    for _ in range(6):
        devices.sample()
    (device,) = devices.of_job([7, 42])
    assert (device.index, device.name, device.num_samples) == (1, "NVIDIA H200", 6)
    assert device.used_share == pytest.approx(0.97)
    assert device.power_working_w is not None
    assert (device.power_working_w.median, device.power_limit_w) == (650.5, 700.0)
    assert device.throttled == {"sw_power_cap": 1.0, "sw_thermal_slowdown": 1.0}
    assert device.max_sm_clock_mhz == 1980.0


def test_a_driver_that_names_no_process_gives_all_devices_and_says_so(tmp_path: Path) -> None:
    devices = asked(tmp_path)
    devices.sample()
    assert len(devices.of_job([7])) == 2
    assert any_mentions(devices.notes, "which devices")


def test_what_a_device_refuses_is_named_once(tmp_path: Path) -> None:
    devices = asked(tmp_path, nvmlDeviceGetPowerUsage=3)
    devices.sample()
    assert devices.of_job([42])[0].power_w is None
    assert devices.notes.count("nvmlDeviceGetPowerUsage: not supported") == 1


def test_amds_devices_are_found_by_their_driver(tmp_path: Path) -> None:
    place = "0000:c1:00.0"
    write(tmp_path, {f"sys/bus/pci/devices/{place}/gpu_busy_percent": "88\n"})
    write(tmp_path, {f"sys/bus/pci/drivers/amdgpu/{place}/uevent": ""})
    devices = asked(tmp_path, nvmlInit_v2=9)
    devices.sample()
    (device,) = devices.of_job([1])
    assert device.used_share == pytest.approx(0.88)
    assert any("gpu_power_w" in note for note in devices.notes)


def test_a_machine_without_devices_says_so(tmp_path: Path) -> None:
    devices = asked(tmp_path, nvmlInit_v2=9)
    devices.sample()
    assert devices.of_job([1]) == ()
    assert devices.notes[0].startswith("devices: neither NVML")
