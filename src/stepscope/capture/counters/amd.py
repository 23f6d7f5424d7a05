"""AMD's counters, from the files that the amdgpu driver keeps for each device. No library is loaded
and nothing is started.

`pcie_bw` is left alone: reading it takes a second.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

FILES: tuple[tuple[str, tuple[str, ...], float], ...] = (
    ("gpu_util_percent", ("gpu_busy_percent",), 1),
    ("gpu_memory_util_percent", ("mem_busy_percent",), 1),
    ("gpu_memory_used_bytes", ("mem_info_vram_used",), 1),
    ("gpu_memory_total_bytes", ("mem_info_vram_total",), 1),
    ("gpu_power_w", ("hwmon/*/power1_average", "hwmon/*/power1_input"), 1e-6),
    ("gpu_power_limit_w", ("hwmon/*/power1_cap",), 1e-6),
    ("gpu_temperature_c", ("hwmon/*/temp2_input", "hwmon/*/temp1_input"), 1e-3),
    ("sm_clock_mhz", ("hwmon/*/freq1_input",), 1e-6),
    ("memory_clock_mhz", ("hwmon/*/freq2_input",), 1e-6),
    ("pcie_link_width", ("current_link_width",), 1),
)
"""A value's name, the files that may have it, the first that is there, and what one of its units is
in ours.

The second temperature is that of the hottest point, the first that of the edge.
"""


class AmdDevice:
    """One device, found by its place on the PCI bus."""

    def __init__(self, properties: Any, root: Path = Path("/")) -> None:
        self.notes: list[str] = []
        bus = getattr(properties, "pci_bus_id", None)
        if bus is None:
            raise RuntimeError("this torch does not tell where on the PCI bus a device is")
        domain, device = (
            getattr(properties, "pci_domain_id", 0),
            getattr(properties, "pci_device_id", 0),
        )
        folder = root / f"sys/bus/pci/devices/{domain:04x}:{bus:02x}:{device:02x}.0"
        if not folder.is_dir():
            raise RuntimeError(f"{folder} is not there")
        self._readings: list[tuple[str, Callable[[], str], float]] = []
        for name, patterns, unit in FILES:
            path = next(
                (path for pattern in patterns for path in sorted(folder.glob(pattern))), None
            )
            if path is None:
                self.notes.append(f"not measured: {name}: the driver has no file for it")
            else:
                self._readings.append((name, path.read_text, unit))
        self._max_clock_mhz = _max_clock_mhz(folder / "pp_dpm_sclk")

    def take(self) -> dict[str, Any]:
        sample: dict[str, Any] = {}
        for reading in list(self._readings):
            name, read, unit = reading
            try:
                sample[name] = float(read()) * unit
            except (OSError, ValueError) as problem:
                self._readings.remove(reading)
                self.notes.append(f"not measured: {name}: {problem}")
        if self._max_clock_mhz is not None:
            sample["max_sm_clock_mhz"] = self._max_clock_mhz
        return sample


def _max_clock_mhz(path: Path) -> float | None:
    """The fastest clock in a table of lines like "1: 2100Mhz *"."""
    try:
        words = path.read_text(encoding="utf-8").split()
        return max(
            (float(word[:-3]) for word in words if word.lower().endswith("mhz")), default=None
        )
    except (OSError, ValueError):
        return None
