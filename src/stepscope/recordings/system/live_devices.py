"""The devices of this machine, asked now: NVIDIA's through NVML, AMD's through the files of their
driver. The samples are those that a recording of nvidia-smi or rocm-smi would have."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from stepscope.api import DeviceSeries
from stepscope.capture.counters.amd import AmdDevice
from stepscope.capture.counters.nvml import Nvml, NvmlDevice, NvmlError
from stepscope.recordings.system.columns import AS_IT_IS, PERCENT
from stepscope.recordings.system.device_samples import DeviceSamples

VALUES = {
    "gpu_util_percent": ("busy_share", PERCENT),
    "gpu_memory_util_percent": ("memory_busy_share", PERCENT),
    "sm_clock_mhz": ("sm_clock_mhz", AS_IT_IS),
    "max_sm_clock_mhz": ("max_sm_clock_mhz", AS_IT_IS),
    "memory_clock_mhz": ("memory_clock_mhz", AS_IT_IS),
    "gpu_power_w": ("power_w", AS_IT_IS),
    "gpu_power_limit_w": ("power_limit_w", AS_IT_IS),
    "gpu_temperature_c": ("temperature_c", AS_IT_IS),
    "gpu_memory_used_bytes": ("memory_used_bytes", AS_IT_IS),
    "gpu_memory_total_bytes": ("memory_total_bytes", AS_IT_IS),
    "pcie_rx_bytes_s": ("pcie_rx_bytes_per_s", AS_IT_IS),
    "pcie_tx_bytes_s": ("pcie_tx_bytes_per_s", AS_IT_IS),
}
"""Our samples' names, the fields of DeviceSeries, and what one of the first is in the second."""
SAMPLE_S = 0.2
"""NVML's utilization is of the last sixth of a second to a second, by the device."""
MAX_PROCESSES = 256
AMD_DRIVER = Path("sys/bus/pci/drivers/amdgpu")


class RunningProcess(ctypes.Structure):
    """nvmlProcessInfo_t."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("memory", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class _Device:
    def __init__(
        self,
        index: int,
        name: str | None,
        counters: NvmlDevice | AmdDevice,
        pids: Callable[[], frozenset[int]] = frozenset,
    ) -> None:
        self.samples = DeviceSamples(index, name=name)
        self.counters = counters
        self.pids = pids


class LiveDevices:
    """All of the machine's, sampled as often as `sample` is called, and no more often than they
    count anew."""

    def __init__(
        self,
        library: Callable[[], Nvml] = Nvml,
        root: Path = Path("/"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.not_measured: list[str] = []
        self._clock = clock
        self._last_s: float | None = None
        self._devices = [*self._nvidia(library), *_amd(root)]
        if not self._devices:
            self.not_measured.append(
                "devices: neither NVML (libnvidia-ml.so.1) nor the amdgpu driver answers here"
            )

    def _nvidia(self, library: Callable[[], Nvml]) -> list[_Device]:
        try:
            nvml = library()
            number = ctypes.c_uint()
            nvml.call("nvmlDeviceGetCount_v2", ctypes.byref(number))
        except (OSError, NvmlError):
            return []
        devices = []
        for index in range(number.value):
            handle = ctypes.c_void_p()
            try:
                nvml.call(
                    "nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle)
                )
            except NvmlError as problem:
                self.not_measured.append(f"device {index}: {problem}")
                continue
            device = NvmlDevice(nvml, handle)
            devices.append(_Device(index, _name(nvml, handle), device, _processes_on(nvml, handle)))
        return devices

    def sample(self) -> None:
        now = self._clock()
        if self._last_s is not None and now - self._last_s < SAMPLE_S:
            return
        self._last_s = now
        for device in self._devices:
            taken = device.counters.take()
            values = {
                field: float(taken[name]) * scale
                for name, (field, scale) in VALUES.items()
                if isinstance(taken.get(name), int | float)
            }
            reasons = taken.get("throttle_reasons")
            named = None if reasons is None else dict.fromkeys(reasons, 1.0)
            device.samples.add(values, named, now)

    def of_job(self, pids: Iterable[int]) -> tuple[DeviceSeries, ...]:
        """The devices that these processes are on; all of them where the driver does not tell, or
        counts processes otherwise, as outside a container."""
        wanted = frozenset(pids)
        mine = [device for device in self._devices if wanted & device.pids()]
        if not mine and len(self._devices) > 1:
            self.not_measured.append(
                "which devices are the job's: the driver names none of its processes, so all "
                "devices that were at work are taken for its own"
            )
        return tuple(device.samples.series() for device in mine or self._devices)

    @property
    def notes(self) -> tuple[str, ...]:
        """What single devices refused, once for all of them."""
        refused = [note for device in self._devices for note in device.counters.notes]
        words = (note.removeprefix("not measured: ") for note in refused)
        return (*self.not_measured, *dict.fromkeys(words))


def _name(nvml: Nvml, handle: ctypes.c_void_p) -> str | None:
    name = ctypes.create_string_buffer(96)
    try:
        nvml.call("nvmlDeviceGetName", handle, name, ctypes.c_uint(len(name)))
    except NvmlError:
        return None
    return name.value.decode(errors="replace") or None


def _processes_on(nvml: Nvml, handle: ctypes.c_void_p) -> Callable[[], frozenset[int]]:
    def pids() -> frozenset[int]:
        number = ctypes.c_uint(MAX_PROCESSES)
        running = (RunningProcess * MAX_PROCESSES)()
        try:
            nvml.call(
                "nvmlDeviceGetComputeRunningProcesses_v3", handle, ctypes.byref(number), running
            )
        except NvmlError:
            return frozenset()
        return frozenset(running[at].pid for at in range(min(number.value, MAX_PROCESSES)))

    return pids


def _amd(root: Path) -> list[_Device]:
    devices: list[_Device] = []
    for folder in sorted((root / AMD_DRIVER).glob("*:*:*.*")):
        try:
            domain, bus, rest = folder.name.split(":")
            place: Any = SimpleNamespace(
                pci_domain_id=int(domain, 16),
                pci_bus_id=int(bus, 16),
                pci_device_id=int(rest.partition(".")[0], 16),
            )
            devices.append(_Device(len(devices), None, AmdDevice(place, root)))
        except (ValueError, RuntimeError):
            continue
    return devices
