"""Samples of devices, one after the other, made into one DeviceSeries for each: what every vendor's monitor is read through."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import median
from typing import Any, TypeAlias, cast

from stepscope.core.recording import Table
from stepscope.core.system_report import IDLE, DeviceSeries, Spread

AT_WORK = 0.1
"""Of a sampling period with a kernel running, from which a sample is one of the device at work."""
MAX_SAMPLES = 1_000_000
"""Kept over all devices: eight of them, sampled every second for a day, are 700 000."""
MAX_DEVICES = 4096
MAX_NAME = 120
SERIES = (
    "busy_share",
    "memory_busy_share",
    "sm_clock_mhz",
    "memory_clock_mhz",
    "power_w",
    "temperature_c",
    "memory_used_bytes",
    "pcie_rx_bytes_per_s",
    "pcie_tx_bytes_per_s",
    "nvlink_rx_bytes_per_s",
    "nvlink_tx_bytes_per_s",
    "engine_active_share",
    "sm_active_share",
    "sm_occupancy_share",
    "tensor_active_share",
    "dram_active_share",
)
"""Fields of DeviceSeries that are spreads over all samples."""
SHARES = frozenset(name for name in SERIES if name.endswith("_share"))
CONSTANTS = ("max_sm_clock_mhz", "power_limit_w", "memory_total_bytes")
"""Fields that are told with each sample, and do not change."""
WORKING = {"sm_clock_mhz": "sm_clock_working_mhz", "power_w": "power_working_w"}
WORK_FIELDS = ("busy_share", "engine_active_share", "sm_active_share")
"""What tells that a device is at work: the first of these that was recorded."""
Reasons: TypeAlias = tuple[tuple[str, float], ...]


@dataclass(slots=True)
class DeviceDraft:
    """One device, while its samples come."""

    index: int | None
    host: str | None = None
    name: str | None = None
    columns: dict[str, array[float]] = field(default_factory=lambda: {name: array("d") for name in SERIES})
    constants: dict[str, float] = field(default_factory=dict)
    times: array[float] = field(default_factory=lambda: array("d"))
    reasons: list[Reasons | None] = field(default_factory=list)
    num: int = 0

    def add(
        self, values: Mapping[str, float | None], reasons: Mapping[str, float] | None = None, time_s: float | None = None
    ) -> None:
        """One sample. What is not among the values, None or not a number was not recorded.

        `reasons` has each reason to run slower with the share of the sample's time it held: 1.0 where it is simply told.
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
        spreads |= {of: spread_of(self.columns[name][i] for i in at_work) for name, of in WORKING.items()}
        if working:
            spreads["busy_run_share"] = spread_of(self.columns["busy_share"][working[0] : working[-1] + 1])
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
        """Which samples are of the device at work; None where nothing tells."""
        for name in WORK_FIELDS:
            column = self.columns[name]
            if any(not math.isnan(value) for value in column):
                return [i for i, value in enumerate(column) if value >= AT_WORK]
        return None

    def _throttled(self, chosen: Iterable[int]) -> Mapping[str, float] | None:
        told = [reasons for reasons in (self.reasons[i] for i in chosen) if reasons is not None]
        if not told:
            return None
        sums: dict[str, float] = {}
        for reasons in told:
            for reason, share in reasons:
                sums[reason] = sums.get(reason, 0.0) + share
        return {reason: sums[reason] / len(told) for reason in sorted(sums, key=lambda one: -sums[one]) if sums[reason] > 0}


@dataclass(slots=True)
class DeviceDrafts:
    """All devices of a recording."""

    devices: dict[tuple[str | None, int | None], DeviceDraft] = field(default_factory=dict)
    num: int = 0
    left_out: Counter[str] = field(default_factory=Counter)

    def of(self, index: int | None, host: str | None = None) -> DeviceDraft | None:
        """The device to add one sample to; None where there are too many."""
        if self.num >= MAX_SAMPLES:
            self.left_out[f"samples after the first {MAX_SAMPLES:,}"] += 1
            return None
        draft = self.devices.get((host, index))
        if draft is None:
            if len(self.devices) >= MAX_DEVICES:
                self.left_out[f"samples of devices after the first {MAX_DEVICES}"] += 1
                return None
            draft = self.devices[host, index] = DeviceDraft(index, host)
        self.num += 1
        return draft

    def series(self) -> tuple[DeviceSeries, ...]:
        return tuple(self.devices[key].series() for key in sorted(self.devices, key=_order))

    def notes(self) -> tuple[str, ...]:
        return tuple(f"{count:,} {what} were left out" for what, count in self.left_out.items())


def spread_of(values: Iterable[float]) -> Spread | None:
    """Of those that were recorded; a percentile is the nearest sample's."""
    known = sorted(value for value in values if not math.isnan(value))
    if not known:
        return None
    last = len(known) - 1
    return Spread(num=len(known), low=known[round(0.1 * last)], median=median(known), high=known[round(0.9 * last)])


def sample_lines(drafts: DeviceDrafts, devices: Sequence[DeviceSeries]) -> tuple[tuple[str, str], ...]:
    """How many samples of how many devices, for a Recording's lines."""
    span = max((one.span_s for one in devices if one.span_s is not None), default=None)
    names = Counter(one.name for one in devices if one.name is not None)
    told = ", ".join(f"{count} x {name}" for name, count in names.most_common(3)) or f"{len(devices):,}"
    return ("samples", f"{drafts.num:,}{'' if span is None else f' in {span:,.0f} s'}"), ("devices", told)


def device_table(devices: Iterable[DeviceSeries]) -> Table:
    """What a person wants to see of them first; a dash where it was not recorded."""
    rows = tuple(
        (
            one.label,
            f"{one.num_samples}" if one.num_working is None else f"{one.num_working} of {one.num_samples}",
            _cell(one.busy_run_share or one.busy_share, 100, "%"),
            _clock(one),
            _cell(one.power_working_w or one.power_w, 1, "W", one.power_limit_w),
            _cell(one.temperature_c, 1, "C", top=True),
            _cell(one.memory_used_bytes, 1e-9, "GB", one.memory_total_bytes, top=True),
            _reasons(one),
        )
        for one in devices
    )
    columns = ("device", "at work", "busy", "clock", "power", "temperature", "memory", "held down by")
    return Table(
        title="Devices: medians; busy from the first sample at work to the last, clock and power at work; temperature and memory"
        " at the ninetieth percentile",
        columns=columns,
        rows=rows,
        right=(1, 2, 3, 4, 5, 6),
    )


def _cell(spread: Spread | None, scale: float, unit: str, limit: float | None = None, *, top: bool = False) -> str:
    if spread is None:
        return "-"
    value = (spread.high if top else spread.median) * scale
    return f"{value:.3g} {unit}" if limit is None else f"{value:.3g} of {limit * scale:.3g} {unit}"


def _clock(one: DeviceSeries) -> str:
    clock = one.sm_clock_working_mhz
    if clock is None:
        return "-"
    most = "" if one.max_sm_clock_mhz is None else f" of {one.max_sm_clock_mhz:.0f}"
    return f"{clock.median:.0f}{most} MHz"


def _reasons(one: DeviceSeries) -> str:
    if one.throttled is None:
        return "-"
    named = [f"{share:.0%} {reason}" for reason, share in one.throttled.items() if reason != IDLE]
    return ", ".join(named[:2]) or "nothing"


def _sane(name: str, value: float | None) -> float:
    """NaN for what no device can have: a monitor writes an absurd number where it has none."""
    if value is None or not math.isfinite(value) or value < 0 or value > 1e18 or (name in SHARES and value > 1.5):
        return math.nan
    return min(value, 1.0) if name in SHARES else value


def _order(key: tuple[str | None, int | None]) -> tuple[str, int]:
    return key[0] or "", -1 if key[1] is None else key[1]


@lru_cache(maxsize=4096)
def _shared(reasons: Reasons) -> Reasons:
    """The same object for equal ones: a million samples tell a handful of them."""
    return reasons
