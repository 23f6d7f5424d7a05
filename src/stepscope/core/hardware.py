"""Hardware: what a device can do, by datasheet or by measurement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from msgspec import Struct


class Figure(Struct, frozen=True, kw_only=True):
    """One number and where it was read."""

    value: float
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpec:
    """One kind of device. Peaks are dense (no sparsity), in FLOP/s, by precision: fp64, fp32, tf32,
    fp16, bf16, fp8, fp4, int8.

    `fp32`, `fp64` are the plain vector units; `fp64_tensor` the tensor cores where they differ.
    A precision that the device has no unit for is absent.
    """

    key: str
    name: str
    vendor: str
    memory_bytes: Figure
    bandwidth_bytes_per_s: Figure
    peak_flops: Mapping[str, Figure]
    link_bytes_per_s: Mapping[str, Figure]
    """One direction, all links of that kind together: nvlink, xgmi, pcie."""
    num_sms: int | None = None

    def rates(self, source: str) -> DeviceRates:
        return DeviceRates(
            device=self.name,
            source=source,
            peak_flops={name: figure.value for name, figure in self.peak_flops.items()},
            bandwidth_bytes_per_s=self.bandwidth_bytes_per_s.value,
        )


class DeviceRates(Struct, frozen=True, kw_only=True):
    """What arithmetic and memory can give at most on one device."""

    device: str
    source: str
    """A datasheet, or a measurement and where it stands."""
    peak_flops: Mapping[str, float]
    """By precision, in FLOP/s."""
    bandwidth_bytes_per_s: float
