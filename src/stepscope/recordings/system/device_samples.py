"""Samples of devices, one after the other, made into one DeviceSeries for each: what every vendor's
monitor is read through."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import fmean, median
from typing import Any, TypeAlias, cast

from stepscope.api import DeviceSeries, FormatError, Source, Spread, SystemRecording

AT_WORK = 0.1
"""Share of a sampling period with a kernel running from which a sample is one of the device at
work."""
MAX_SAMPLES = 1_000_000
"""Kept over all devices: eight of them, sampled every second for a day, are 700 000."""
MAX_DEVICES = 4096
MAX_NAME = 120
SERIES = (
    "busy_share", "memory_busy_share", "sm_clock_mhz", "memory_clock_mhz", "power_w",
    "temperature_c", "memory_used_bytes", "pcie_rx_bytes_per_s", "pcie_tx_bytes_per_s",
    "nvlink_rx_bytes_per_s", "nvlink_tx_bytes_per_s", "engine_active_share", "sm_active_share",
    "sm_occupancy_share", "tensor_active_share", "dram_active_share",
)  # fmt: skip
"""Fields of DeviceSeries that are spreads over all samples."""
SHARES = frozenset(name for name in SERIES if name.endswith("_share"))
CONSTANTS = ("max_sm_clock_mhz", "power_limit_w", "memory_total_bytes")
"""Fields that come with each sample, and do not change."""
WORKING = {"sm_clock_mhz": "sm_clock_working_mhz", "power_w": "power_working_w"}
WORK_FIELDS = ("busy_share", "engine_active_share", "sm_active_share")
"""What shows that a device is at work: the first of these that was recorded."""
Reasons: TypeAlias = tuple[tuple[str, float], ...]


@dataclass(slots=True)
class DeviceSamples:
    """Samples of one device."""

    index: int | None
    host: str | None = None
    name: str | None = None
    columns: dict[str, array[float]] = field(
        default_factory=lambda: {name: array("d") for name in SERIES}
    )
    constants: dict[str, float] = field(default_factory=dict)
    times: array[float] = field(default_factory=lambda: array("d"))
    reasons: list[Reasons | None] = field(default_factory=list)
    num: int = 0

    def add(
        self,
        values: Mapping[str, float],
        reasons: Mapping[str, float] | None = None,
        time_s: float | None = None,
    ) -> None:
        """One sample. What is not among the values, or not a number, was not recorded.

        `reasons` has each reason to run slower with the share of the sample's time it held: 1.0
        where it is simply named.
        """
        self.num += 1
        for name, column in self.columns.items():
            column.append(_sane(name, values.get(name)))
        for name in CONSTANTS:
            value = _sane(name, values.get(name))
            if not math.isnan(value) and value > 0:
                self.constants[name] = max(value, self.constants.get(name, 0.0))
        self.reasons.append(None if reasons is None else _shared(tuple(sorted(reasons.items()))))
        self.times.append(math.nan if time_s is None else time_s)

    def series(self) -> DeviceSeries:
        working = self._working()
        spreads: dict[str, Any] = {name: spread_of(column) for name, column in self.columns.items()}
        at_work = range(self.num) if working is None else working
        spreads |= {
            of: spread_of(self.columns[name][i] for i in at_work) for name, of in WORKING.items()
        }
        if working:
            spreads["busy_run_share"] = spread_of(
                self.columns["busy_share"][working[0] : working[-1] + 1]
            )
        times = [time for time in self.times if not math.isnan(time)]
        return DeviceSeries(
            index=self.index,
            host=self.host,
            name=None if self.name is None else self.name[:MAX_NAME],
            num_samples=self.num,
            num_working=None if working is None else len(working),
            span_s=max(times) - min(times) if len(times) > 1 else None,
            throttled=self._throttled(at_work),
            **spreads,
            **cast("dict[str, Any]", self.constants),
        )

    def _working(self) -> list[int] | None:
        """Indices of the samples of the device at work; None where nothing shows it."""
        for name in WORK_FIELDS:
            column = self.columns[name]
            if any(not math.isnan(value) for value in column):
                return [i for i, value in enumerate(column) if value >= AT_WORK]
        return None

    def _throttled(self, chosen: Iterable[int]) -> Mapping[str, float] | None:
        samples = [reasons for i in chosen if (reasons := self.reasons[i]) is not None]
        if not samples:
            return None
        sums: dict[str, float] = {}
        for reasons in samples:
            for reason, share in reasons:
                sums[reason] = sums.get(reason, 0.0) + share
        ordered = sorted(sums.items(), key=lambda item: -item[1])
        return {reason: share / len(samples) for reason, share in ordered if share > 0}


@dataclass(slots=True)
class MonitorSamples:
    """All devices of a recording."""

    devices: dict[tuple[str | None, int | None], DeviceSamples] = field(default_factory=dict)
    num: int = 0
    left_out: Counter[str] = field(default_factory=Counter)

    def device(self, index: int | None, host: str | None = None) -> DeviceSamples | None:
        """The device to add one sample to; None where there are too many."""
        if self.num >= MAX_SAMPLES:
            self.left_out[f"samples after the first {MAX_SAMPLES:,}"] += 1
            return None
        device = self.devices.get((host, index))
        if device is None:
            if len(self.devices) >= MAX_DEVICES:
                self.left_out[f"samples of devices after the first {MAX_DEVICES}"] += 1
                return None
            device = self.devices[host, index] = DeviceSamples(index, host)
        self.num += 1
        return device

    def recording(
        self, format_name: str, source: Source, notes: Iterable[str], hint: str
    ) -> SystemRecording:
        """All devices; where there is none, an error with the hint how to record."""
        if not self.devices:
            raise FormatError(f"{source.label}: no sample of a device in it. {hint}")
        ordered = sorted(
            self.devices, key=lambda key: (key[0] or "", -1 if key[1] is None else key[1])
        )
        return SystemRecording(
            format=format_name,
            paths=(source.label,),
            notes=tuple(notes),
            devices=tuple(self.devices[key].series() for key in ordered),
        )

    def notes(self) -> tuple[str, ...]:
        return tuple(f"{count:,} {what} were left out" for what, count in self.left_out.items())


def spread_of(values: Iterable[float]) -> Spread | None:
    """Spread of the values that were recorded; a percentile is the nearest sample's."""
    ordered = sorted(value for value in values if not math.isnan(value))
    if not ordered:
        return None
    last = len(ordered) - 1
    return Spread(
        num=len(ordered),
        low=ordered[round(0.1 * last)],
        median=median(ordered),
        high=ordered[round(0.9 * last)],
        mean=fmean(ordered),
    )


def _sane(name: str, value: float | None) -> float:
    """NaN for what no device can have: a monitor writes an absurd number where it has none."""
    if (
        value is None
        or not math.isfinite(value)
        or value < 0
        or value > 1e18
        or (name in SHARES and value > 1.5)
    ):
        return math.nan
    return min(value, 1.0) if name in SHARES else value


@lru_cache(maxsize=4096)
def _shared(reasons: Reasons) -> Reasons:
    """The same object for equal ones: a million samples have a handful of them."""
    return reasons
