"""Columns of devices' monitors: for each tool a table of our field, its unit and the tool's names
for it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from stepscope.protocol.untrusted import finite, finite_text

Columns: TypeAlias = Mapping[str, tuple[str, float]]
"""Columns by the tool's name: the field of DeviceSeries, and what one of the column's unit is in
the field's."""
AS_IT_IS, PERCENT, MIB, MB_PER_S = 1.0, 0.01, 1024.0**2, 1e6
VALUE = re.compile(r"\(?\s*(-?\d{1,15}(?:\.\d{1,9})?)\s*([%A-Za-z/]{0,8})\s*\)?")
UNITS = {
    "b": 1 / MIB,
    "kb": 1 / 1024,
    "kib": 1 / 1024,
    "gb": 1024.0,
    "gib": 1024.0,
    "tb": MIB,
    "hz": 1e-6,
    "khz": 1e-3,
    "ghz": 1e3,
    "mw": 1e-3,
    "kw": 1e3,
}
"""What a value with one of these behind it is in the units that monitors usually write: MB, MHz,
W."""


def _columns(*rows: tuple[str, float, str]) -> Columns:
    return {name: (field, scale) for field, scale, names in rows for name in names.split()}


NVIDIA_QUERY = _columns(
    ("busy_share", PERCENT, "utilization.gpu"),
    ("memory_busy_share", PERCENT, "utilization.memory"),
    ("sm_clock_mhz", AS_IT_IS, "clocks.current.sm clocks.sm"),
    ("max_sm_clock_mhz", AS_IT_IS, "clocks.max.sm"),
    ("memory_clock_mhz", AS_IT_IS, "clocks.current.memory clocks.mem"),
    ("power_w", AS_IT_IS, "power.draw power.draw.instant power.draw.average"),
    ("power_limit_w", AS_IT_IS, "power.limit enforced.power.limit"),
    ("temperature_c", AS_IT_IS, "temperature.gpu"),
    ("memory_used_bytes", MIB, "memory.used"),
    ("memory_total_bytes", MIB, "memory.total"),
)
"""nvidia-smi --help-query-gpu."""
NVIDIA_DMON = _columns(
    ("busy_share", PERCENT, "sm"),
    ("memory_busy_share", PERCENT, "mem"),
    ("sm_clock_mhz", AS_IT_IS, "pclk"),
    ("memory_clock_mhz", AS_IT_IS, "mclk"),
    ("power_w", AS_IT_IS, "pwr"),
    ("temperature_c", AS_IT_IS, "gtemp temp"),
    ("memory_used_bytes", MIB, "fb"),
    ("pcie_rx_bytes_per_s", MB_PER_S, "rxpci"),
    ("pcie_tx_bytes_per_s", MB_PER_S, "txpci"),
)
DCGM = _columns(
    ("engine_active_share", AS_IT_IS, "GRACT DCGM_FI_PROF_GR_ENGINE_ACTIVE"),
    ("sm_active_share", AS_IT_IS, "SMACT DCGM_FI_PROF_SM_ACTIVE"),
    ("sm_occupancy_share", AS_IT_IS, "SMOCC DCGM_FI_PROF_SM_OCCUPANCY"),
    ("tensor_active_share", AS_IT_IS, "TENSO DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"),
    ("dram_active_share", AS_IT_IS, "DRAMA DCGM_FI_PROF_DRAM_ACTIVE"),
    ("pcie_rx_bytes_per_s", AS_IT_IS, "PCIRX DCGM_FI_PROF_PCIE_RX_BYTES"),
    ("pcie_tx_bytes_per_s", AS_IT_IS, "PCITX DCGM_FI_PROF_PCIE_TX_BYTES"),
    ("nvlink_rx_bytes_per_s", AS_IT_IS, "NVLRX DCGM_FI_PROF_NVLINK_RX_BYTES"),
    ("nvlink_tx_bytes_per_s", AS_IT_IS, "NVLTX DCGM_FI_PROF_NVLINK_TX_BYTES"),
    ("busy_share", PERCENT, "GPUTL DCGM_FI_DEV_GPU_UTIL"),
    ("memory_busy_share", PERCENT, "MCUTL DCGM_FI_DEV_MEM_COPY_UTIL"),
    ("sm_clock_mhz", AS_IT_IS, "SMCLK DCGM_FI_DEV_SM_CLOCK"),
    ("max_sm_clock_mhz", AS_IT_IS, "SMMAX DCGM_FI_DEV_MAX_SM_CLOCK"),
    ("memory_clock_mhz", AS_IT_IS, "MMCLK DCGM_FI_DEV_MEM_CLOCK"),
    ("power_w", AS_IT_IS, "POWER DCGM_FI_DEV_POWER_USAGE"),
    ("power_limit_w", AS_IT_IS, "EPLMT DCGM_FI_DEV_ENFORCED_POWER_LIMIT"),
    ("power_limit_w", AS_IT_IS, "PMLMT DCGM_FI_DEV_POWER_MGMT_LIMIT"),
    ("temperature_c", AS_IT_IS, "TMPTR DCGM_FI_DEV_GPU_TEMP"),
    ("memory_used_bytes", MIB, "FBUSD DCGM_FI_DEV_FB_USED"),
    ("memory_total_bytes", MIB, "FBTTL DCGM_FI_DEV_FB_TOTAL"),
)
"""The short names of dcgmi dmon (dcgm_fields.cpp), and the exporter's."""
AMD = _columns(
    ("busy_share", PERCENT, "gfx gfx_activity gpu_use"),
    ("memory_busy_share", PERCENT, "mem umc_activity gpu_memory_read_write_activity"),
    ("sm_clock_mhz", AS_IT_IS, "gfx_clk gfx_clock gfx_0_clk sclk_clock_speed"),
    ("max_sm_clock_mhz", AS_IT_IS, "gfx_0_max_clk"),
    ("memory_clock_mhz", AS_IT_IS, "mem_clock mem_0_clk mclk_clock_speed"),
    ("power_w", AS_IT_IS, "power_usage socket_power average_graphics_package_power_w"),
    ("power_w", AS_IT_IS, "current_socket_graphics_package_power_w"),
    ("power_limit_w", AS_IT_IS, "max_power max_graphics_package_power_w"),
    # The junction is the hottest spot, and what AMD throttles by.
    ("temperature_c", AS_IT_IS, "hotspot_temperature hotspot temperature_sensor_junction_c"),
    ("temperature_c", AS_IT_IS, "temperature_sensor_edge_c"),
    ("memory_used_bytes", MIB, "vram_used used_vram"),
    ("memory_used_bytes", AS_IT_IS, "vram_total_used_memory_b"),
    ("memory_total_bytes", MIB, "vram_total total_vram"),
    ("memory_total_bytes", AS_IT_IS, "vram_total_memory_b"),
)
"""amd-smi monitor, amd-smi metric (whose JSON has the section's name before these) and rocm-smi, in
lower case with _ for everything else."""


def number_of(value: Any) -> float | None:
    """`1980 MHz`, `(1980Mhz)`, 612: None for N/A, [Not Supported], - and whatever else is no
    number."""
    if not isinstance(value, str):
        return finite(value, -1e18, 1e18)
    match = VALUE.fullmatch(value.strip()) if len(value) < 64 else None
    number = finite_text(match[1], -1e18, 1e18) if match else None
    return None if match is None or number is None else number * UNITS.get(match[2].lower(), 1.0)


def values_of(
    sample: Mapping[str, Any],
    columns: Columns,
    number: Callable[[Any], float | None] = number_of,
) -> dict[str, float]:
    """Values of a sample by our field; the first column with a number counts."""
    values: dict[str, float] = {}
    for name, (field, scale) in columns.items():
        if name in sample and field not in values and (value := number(sample[name])) is not None:
            values[field] = value * scale
    return values
