"""The peaks of a device: how long work must take at least.

Peaks are the datasheet's, and so are floors and MFU. Where the machine was calibrated, `measured`
says which share of them it reaches, in place of the share that such devices usually do.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from stepscope.core.calibrated import Calibrated
from stepscope.core.hardware import DeviceSpec, ProbedTimes


class DevicePeaks(Struct, frozen=True, kw_only=True):
    """Peaks of one device, for arithmetic by precision and for memory."""

    spec: DeviceSpec
    measured: Calibrated | None = None
    probed: ProbedTimes | None = None
    """Operators that were timed on the device."""

    def matrix_share(self, precision: str | None, usual: float) -> float:
        """Share of the peak that the best products reach for long."""
        peak = self.peak_flops(precision, matrix=True)
        if self.measured is None or precision is None or peak is None:
            return usual
        best = self.measured.best_flops(precision)
        return usual if best is None else best / peak

    def stream_share(self, usual: float) -> float:
        """Share of the bandwidth that a large copy within the device reaches."""
        rate = None if self.measured is None else self.measured.copy_bytes_per_s()
        return usual if rate is None else rate / self.spec.bandwidth_bytes_per_s.value

    def shortest_ns(self) -> float | None:
        """What the shortest kernel takes; None where it was not measured."""
        launch = None if self.measured is None else self.measured.launch
        return None if launch is None or launch.device is None else launch.device.seconds * 1e9

    def peak_flops(self, precision: str | None, *, matrix: bool) -> float | None:
        """The dense peak for a precision.
        Other than matrix work runs on the vector units, whose peak is the one for fp32."""
        if precision is None:
            return None
        is_vector = not matrix and precision != "fp64"
        name = "fp32" if is_vector else precision
        figure = self.spec.peak_flops.get(name)
        if figure is None and name == "tf32":
            figure = self.spec.peak_flops.get("fp32")
        return None if figure is None else figure.value

    def arithmetic_ns(self, flops: float | None, precision: str | None, *, matrix: bool) -> float:
        """The least time for the arithmetic; NaN when not known."""
        peak = self.peak_flops(precision, matrix=matrix)
        return np.nan if flops is None or peak is None else flops / peak * 1e9

    def traffic_ns(self, size: float | None) -> float:
        """The least time for the bytes; NaN when not known."""
        return np.nan if size is None else size / self.spec.bandwidth_bytes_per_s.value * 1e9

    def floor_ns(
        self, flops: float | None, size: float | None, precision: str | None, *, matrix: bool
    ) -> float:
        """The least time for both: max(FLOPs/peak, bytes/bandwidth); NaN when neither is known."""
        return float(
            np.fmax(self.arithmetic_ns(flops, precision, matrix=matrix), self.traffic_ns(size))
        )
