"""NVIDIA's counters, asked of the driver's own library.

Calls into it leave Python's lock to the job.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping
from typing import Any

from stepscope.capture import clocks
from stepscope.capture.counters.rates import CounterRates

LIBRARY = "libnvidia-ml.so.1"
ERRORS = {
    1: "not initialized", 2: "invalid argument", 3: "not supported", 4: "no permission",
    6: "not found", 15: "GPU is lost",
}  # fmt: skip
SELDOM = 10
"""Samples between two questions about what changes slowly (temperature,
limits) or takes the driver long: PCIe some 20 ms."""
CLOCK_SM, CLOCK_MEMORY = 1, 2
TEMPERATURE_GPU = 0
PCIE_TX, PCIE_RX = 0, 1
NVLINK_TX, NVLINK_RX, ALL_LINKS = 138, 139, 0xFFFFFFFF
"""NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX and _RX, in KiB since the driver was loaded."""
THROTTLE_REASONS = {
    0x001: "gpu_idle", 0x002: "applications_clocks_setting", 0x004: "sw_power_cap",
    0x008: "hw_slowdown", 0x010: "sync_boost", 0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown", 0x080: "hw_power_brake_slowdown", 0x100: "display_clock_setting",
}  # fmt: skip
"""nvml.h, nvmlClocksEventReason*."""


class Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class Memory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class FieldValue(ctypes.Structure):
    _fields_ = (
        ("field", ctypes.c_uint), ("scope", ctypes.c_uint), ("timestamp", ctypes.c_longlong),
        ("latency_us", ctypes.c_longlong), ("value_type", ctypes.c_uint), ("error", ctypes.c_int),
        ("value", ctypes.c_ulonglong),
    )  # fmt: skip


class NvmlError(RuntimeError):
    """The library refused."""


class Nvml:
    """The library, ready to be asked."""

    def __init__(self, library: Any = None) -> None:
        self._library = ctypes.CDLL(LIBRARY) if library is None else library
        self.call("nvmlInit_v2")

    def call(self, name: str, *args: Any) -> None:
        function = getattr(self._library, name, None)
        if function is None:
            raise NvmlError(f"{name}: this driver has no such function")
        code = function(*args)
        if code:
            raise NvmlError(f"{name}: {ERRORS.get(code, f'error {code}')}")

    def handle(
        self, properties: Any, index: int, environ: Mapping[str, str] | None = None
    ) -> ctypes.c_void_p:
        """The library's handle of a device that torch numbers.

        It counts all of the machine's, torch only the visible ones.
        """
        refusal: NvmlError | None = None
        for name, wanted in _addresses(
            properties, index, os.environ if environ is None else environ
        ):
            handle = ctypes.c_void_p()
            try:
                self.call(name, wanted, ctypes.byref(handle))
            except NvmlError as problem:
                refusal = refusal or problem
            else:
                return handle
        raise refusal or NvmlError(f"device {index} has no address")


def _addresses(properties: Any, index: int, environ: Mapping[str, str]) -> list[tuple[str, Any]]:
    """Ways to name the device to the library, the surest first."""
    addresses: list[tuple[str, Any]] = []
    uuid = getattr(properties, "uuid", None)
    if uuid is not None:
        addresses += [
            ("nvmlDeviceGetHandleByUUID", f"{kind}-{uuid}".encode()) for kind in ("GPU", "MIG")
        ]
    bus = getattr(properties, "pci_bus_id", None)
    if bus is not None:
        domain, device = (
            getattr(properties, "pci_domain_id", 0),
            getattr(properties, "pci_device_id", 0),
        )
        addresses.append(
            ("nvmlDeviceGetHandleByPciBusId_v2", b"%08x:%02x:%02x.0" % (domain, bus, device))
        )
    if not addresses:
        visible = [
            word.strip()
            for word in environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
            if word.strip()
        ]
        mine = visible[index] if index < len(visible) else str(index)
        is_number = mine.isdecimal()
        name = "nvmlDeviceGetHandleByIndex_v2" if is_number else "nvmlDeviceGetHandleByUUID"
        addresses.append((name, ctypes.c_uint(int(mine)) if is_number else mine.encode()))
    return addresses


class NvmlDevice:
    """One device. A question that it refuses once is not asked again."""

    def __init__(
        self, nvml: Nvml, handle: ctypes.c_void_p, clock: Callable[[], int] = clocks.perf_counter_ns
    ) -> None:
        self.notes: list[str] = []
        self._nvml, self._handle = nvml, handle
        self._rates = CounterRates(clock)
        self._num_taken = 0
        self._questions: list[Callable[[], dict[str, Any]]] = [
            self._utilization,
            self._number("sm_clock_mhz", "nvmlDeviceGetClockInfo", CLOCK_SM),
            self._watts("gpu_power_w", "nvmlDeviceGetPowerUsage"),
            self._energy,
            self._throttling,
            self._nvlink,
        ]
        self._seldom: list[Callable[[], dict[str, Any]]] = [
            self._number("memory_clock_mhz", "nvmlDeviceGetClockInfo", CLOCK_MEMORY),
            self._number("max_sm_clock_mhz", "nvmlDeviceGetMaxClockInfo", CLOCK_SM),
            self._watts("gpu_power_limit_w", "nvmlDeviceGetEnforcedPowerLimit"),
            self._number("gpu_temperature_c", "nvmlDeviceGetTemperature", TEMPERATURE_GPU),
            self._memory,
            self._pcie,
            self._pcie_link,
        ]

    def take(self) -> dict[str, Any]:
        sample: dict[str, Any] = {}
        self._ask(self._questions, sample)
        if self._num_taken % SELDOM == 0:
            self._ask(self._seldom, sample)
        self._num_taken += 1
        return sample

    def _ask(self, questions: list[Callable[[], dict[str, Any]]], sample: dict[str, Any]) -> None:
        for question in list(questions):
            try:
                sample.update(question())
            except NvmlError as problem:
                questions.remove(question)
                self.notes.append(f"not measured: {problem}")

    def _uint(self, name: str, *args: int) -> int:
        value = ctypes.c_uint()
        self._nvml.call(name, self._handle, *map(ctypes.c_uint, args), ctypes.byref(value))
        return value.value

    def _ulong(self, name: str) -> int:
        value = ctypes.c_ulonglong()
        self._nvml.call(name, self._handle, ctypes.byref(value))
        return value.value

    def _number(self, key: str, name: str, of: int) -> Callable[[], dict[str, Any]]:
        return lambda: {key: self._uint(name, of)}

    def _watts(self, key: str, name: str) -> Callable[[], dict[str, Any]]:
        return lambda: {key: self._uint(name) / 1e3}

    def _utilization(self) -> dict[str, Any]:
        rates = Utilization()
        self._nvml.call("nvmlDeviceGetUtilizationRates", self._handle, ctypes.byref(rates))
        return {"gpu_util_percent": rates.gpu, "gpu_memory_util_percent": rates.memory}

    def _energy(self) -> dict[str, Any]:
        return self._rates.of(
            {"gpu_mean_power_w": self._ulong("nvmlDeviceGetTotalEnergyConsumption") / 1e3}
        )

    def _throttling(self) -> dict[str, Any]:
        mask = self._ulong("nvmlDeviceGetCurrentClocksThrottleReasons")
        return {"throttle_reasons": [name for bit, name in THROTTLE_REASONS.items() if mask & bit]}

    def _memory(self) -> dict[str, Any]:
        memory = Memory()
        self._nvml.call("nvmlDeviceGetMemoryInfo", self._handle, ctypes.byref(memory))
        return {"gpu_memory_used_bytes": memory.used, "gpu_memory_total_bytes": memory.total}

    def _pcie(self) -> dict[str, Any]:
        sent, received = (
            self._uint("nvmlDeviceGetPcieThroughput", direction) for direction in (PCIE_TX, PCIE_RX)
        )
        return {"pcie_tx_bytes_s": sent * 1000, "pcie_rx_bytes_s": received * 1000}

    def _pcie_link(self) -> dict[str, Any]:
        width, generation = (
            self._uint("nvmlDeviceGetCurrPcieLinkWidth"),
            self._uint("nvmlDeviceGetCurrPcieLinkGeneration"),
        )
        return {"pcie_link_width": width, "pcie_link_generation": generation}

    def _nvlink(self) -> dict[str, Any]:
        fields = (FieldValue * 2)(
            FieldValue(field=NVLINK_TX, scope=ALL_LINKS),
            FieldValue(field=NVLINK_RX, scope=ALL_LINKS),
        )
        self._nvml.call("nvmlDeviceGetFieldValues", self._handle, ctypes.c_int(2), fields)
        if any(field.error for field in fields):
            raise NvmlError(
                f"NVLink counters: {ERRORS.get(fields[0].error, f'error {fields[0].error}')}"
            )
        return self._rates.of(
            {
                "nvlink_tx_bytes_s": fields[0].value * 1024,
                "nvlink_rx_bytes_s": fields[1].value * 1024,
            }
        )
