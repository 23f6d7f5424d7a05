"""The time that no kernel can go below on a device.

Its bytes over the bandwidth, its products over the peak.
"""

from __future__ import annotations

from stepscope.core.hardware import DeviceRates
from stepscope.hardware.lookup import find_spec_by_key
from stepscope.tune.shapes.kernel_tuning import Floor

PRECISIONS = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "float64": "fp64"}


def datasheet_roofs(key: str | None) -> DeviceRates | None:
    """By the datasheet, where the device is surely known."""
    spec = None if key is None else find_spec_by_key(key)
    return None if spec is None else spec.rates(f"datasheet of {spec.name}")


def floor_of(
    roofs: DeviceRates | None,
    dtype: str,
    bytes_moved: int,
    flops: float | None,
    *,
    cache_bytes: int,
    allows_tf32: bool,
) -> Floor:
    fits = bytes_moved <= cache_bytes
    if roofs is None:
        return Floor(bytes_moved=bytes_moved, flops=flops, ns=None, bound=None, fits_cache=fits)
    memory_ns = bytes_moved / roofs.bandwidth_bytes_per_s * 1e9
    peak = _peak(roofs, dtype, allows_tf32)
    arithmetic_ns = flops / peak * 1e9 if flops and peak else 0.0
    bound = "arithmetic" if arithmetic_ns > memory_ns else "memory"
    return Floor(
        bytes_moved=bytes_moved,
        flops=flops,
        ns=max(memory_ns, arithmetic_ns),
        bound=bound,
        fits_cache=fits,
    )


def _peak(roofs: DeviceRates, dtype: str, allows_tf32: bool) -> float | None:
    """The best unit for this precision: TF32 only where the process allows it."""
    name = PRECISIONS.get(dtype, dtype)
    names = [name, f"{name}_tensor"] + (["tf32"] if name == "fp32" and allows_tf32 else [])
    peaks = [roofs.peak_flops[unit] for unit in names if unit in roofs.peak_flops]
    return max(peaks) if peaks else None
