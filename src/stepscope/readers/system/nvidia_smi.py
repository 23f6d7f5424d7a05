"""nvidia-smi's samples: `--query-gpu=... --format=csv` (with its header, units or none) and `dmon`.

    timestamp, index, utilization.gpu [%], clocks.current.sm [MHz], clocks_event_reasons.active
    2026/11/15 02:01:04.497, 0, 97 %, 1980 MHz, 0x0000000000000004

    # gpu    pwr  gtemp     sm   pclk
    # Idx      W      C      %    MHz
        0    391     43     97   1980

Columns are known by their header alone; one that is not known is left out.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from stepscope.core.recordings.system import SystemRecording, SystemReport
from stepscope.errors import FormatError
from stepscope.protocol.untrusted import finite_text
from stepscope.readers.source import Source
from stepscope.readers.system.device_samples import DeviceDraft, DeviceDrafts
from stepscope.readers.text_lines import TextLines

MIB, MB_PER_S = 1024.0**2, 1e6
QUERY: dict[str, tuple[str, float]] = {
    "utilization.gpu": ("busy_share", 0.01),
    "utilization.memory": ("memory_busy_share", 0.01),
    "clocks.current.sm": ("sm_clock_mhz", 1.0),
    "clocks.sm": ("sm_clock_mhz", 1.0),
    "clocks.max.sm": ("max_sm_clock_mhz", 1.0),
    "clocks.current.memory": ("memory_clock_mhz", 1.0),
    "clocks.mem": ("memory_clock_mhz", 1.0),
    "power.draw": ("power_w", 1.0),
    "power.draw.instant": ("power_w", 1.0),
    "power.draw.average": ("power_w", 1.0),
    "power.limit": ("power_limit_w", 1.0),
    "enforced.power.limit": ("power_limit_w", 1.0),
    "temperature.gpu": ("temperature_c", 1.0),
    "memory.used": ("memory_used_bytes", MIB),
    "memory.total": ("memory_total_bytes", MIB),
}
"""By the names of --help-query-gpu, without unit: the field, and what one of its unit is in the
field's."""
DMON: dict[str, tuple[str, float]] = {
    "sm": ("busy_share", 0.01),
    "mem": ("memory_busy_share", 0.01),
    "pclk": ("sm_clock_mhz", 1.0),
    "mclk": ("memory_clock_mhz", 1.0),
    "pwr": ("power_w", 1.0),
    "gtemp": ("temperature_c", 1.0),
    "temp": ("temperature_c", 1.0),
    "fb": ("memory_used_bytes", MIB),
    "rxpci": ("pcie_rx_bytes_per_s", MB_PER_S),
    "txpci": ("pcie_tx_bytes_per_s", MB_PER_S),
}
SCALES = {"KiB": 1 / 1024, "MiB": 1.0, "GiB": 1024.0, "mW": 1e-3, "kW": 1e3, "GHz": 1e3}
"""A value's own unit, where it is not the usual one of its column."""
BITS = {
    0x001: "gpu_idle",
    0x002: "applications_clocks_setting",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
"""nvml.h, nvmlClocksEventReason*."""
SINGLE = {name.removesuffix("_setting"): name for name in BITS.values()} | {
    name: name for name in BITS.values()
}
"""How columns of one reason each end."""
REASONS = re.compile(r"clocks_(?:throttle|event)_reasons\.(\w{1,60})")
CELL = re.compile(r"([\w.]{1,80})(?: \[([^\]]{1,12})\])?")
VALUE = re.compile(r"(-?\d{1,15}(?:\.\d{1,9})?)(?:\s*([%A-Za-z/]{1,8}))?")
IDENTITY = ("index", "uuid", "gpu_uuid", "pci.bus_id", "gpu_bus_id", "serial", "gpu_serial")
MAX_COLUMNS = 400
DAY_S = 86_400.0


def is_mine(head: bytes, _name: str) -> bool:
    """A header of either kind among the first lines: a wrapper script may have written something
    before it."""
    lines = head[:8192].decode("utf-8", "replace").splitlines()[:20]
    return any(_header(line) is not None or _dmon_header(line) is not None for line in lines)


def read(sources: Sequence[Source]) -> SystemReport:
    """All files, one Recording each."""
    return SystemReport(recordings=tuple(map(_read, sources)))


@dataclass(slots=True)
class _Day:
    """Midnights passed, where dmon tells the time of the day alone."""

    num: int = 0
    last_s: float | None = None

    def seconds(self, time_s: float) -> float:
        if self.last_s is not None and time_s < self.last_s - DAY_S / 2:
            self.num += 1
        self.last_s = time_s
        return self.num * DAY_S + time_s


@dataclass(slots=True)
class _Table:
    """What the last header said."""

    columns: list[str]
    is_dmon: bool
    drafts: DeviceDrafts
    identities: dict[str, int] = field(default_factory=dict)
    day: _Day = field(default_factory=_Day)
    num_bad: int = 0

    def take(self, cells: list[str]) -> None:
        if len(cells) != len(self.columns):
            self.num_bad += 1
            return
        row = dict(zip(self.columns, cells, strict=True))
        device = self._device(row)
        if device is None:
            return
        known = DMON if self.is_dmon else QUERY
        values: dict[str, float | None] = {}
        for column, (field_name, scale) in known.items():
            if column in row and values.get(field_name) is None:
                value = _number(row[column])
                values[field_name] = None if value is None else value * scale
        if all(value is None for value in values.values()):
            self.num_bad += 1
        reasons = _violations(row) if self.is_dmon else _reasons(row)
        time_s = _time(row, is_dmon=self.is_dmon)
        if time_s is not None and self.is_dmon and "date" not in row:
            time_s = self.day.seconds(time_s)
        device.add(values, reasons, time_s)
        if device.name is None:
            device.name = row.get("name") or row.get("gpu_name")

    def _device(self, row: Mapping[str, str]) -> DeviceDraft | None:
        told = (
            row.get("gpu")
            if self.is_dmon
            else next((row[name] for name in IDENTITY if name in row), None)
        )
        if told is None:
            return self.drafts.of(None)
        if told.isascii() and told.isdigit() and len(told) < 6:
            return self.drafts.of(int(told))
        if self.is_dmon:
            self.num_bad += 1
            return None
        return self.drafts.of(
            self.identities.setdefault(told[:80], len(self.identities))
            if len(self.identities) < 4096
            else None
        )


def _read(source: Source) -> SystemRecording:
    lines, drafts = TextLines(source), DeviceDrafts()
    table: _Table | None = None
    identities, day = dict[str, int](), _Day()
    num_bad = num_before = 0
    for line in lines:
        columns = _header(line) or _dmon_header(line)
        if columns is not None:
            num_bad += 0 if table is None else table.num_bad
            table = _Table(columns, line.lstrip().startswith("#"), drafts, identities, day)
        elif table is None:
            num_before += bool(line.strip())
        elif line.strip() and not line.lstrip().startswith("#"):
            table.take(_cells(line, table))
    if table is None or not drafts.devices:
        raise FormatError(
            f"{source.label}: no sample of a device in it. Record with nvidia-smi "
            "--query-gpu=timestamp,index,utilization.gpu,"
            "clocks.sm,clocks.max.sm,power.draw,clocks_event_reasons.active --format=csv -l 1, or "
            "nvidia-smi dmon -s pucvmet"
        )
    num_bad += table.num_bad
    notes = [*lines.notes, *drafts.notes()]
    if num_bad:
        notes.append(f"{source.label}: {num_bad:,} line(s) could not be read as samples")
    if (None, None) in drafts.devices:
        notes.append(
            f"{source.label}: devices cannot be distinguished, if there were several: add index "
            "to the query"
        )
    if identities:
        named = ", ".join(f"{number} is {name}" for name, number in list(identities.items())[:8])
        notes.append(
            f"{source.label}: devices are numbered as they come, for the query has no index: "
            f"{named}"
        )
    return SystemRecording(
        format="nvidia-smi", paths=(source.label,), notes=tuple(notes), devices=drafts.series()
    )


def _header(line: str) -> list[str] | None:
    """Columns of --query-gpu: every cell a name, and two at least that nvidia-smi has."""
    if "," not in line or len(line) > 16_384 or line.lstrip().startswith(("#", "{", "[")):
        return None
    cells = [CELL.fullmatch(cell.strip().lstrip("\ufeff")) for cell in line.split(",")]
    if len(cells) > MAX_COLUMNS or any(cell is None for cell in cells):
        return None
    names = [cell[1] for cell in cells if cell is not None]
    known = sum(name in QUERY or REASONS.fullmatch(name) is not None for name in names)
    return (
        names
        if known >= 1
        and known + sum(name in (*IDENTITY, "timestamp", "name") for name in names) >= 2
        else None
    )


def _dmon_header(line: str) -> list[str] | None:
    if not line.lstrip().startswith("#") or len(line) > 16_384:
        return None
    names = re.split(r"[,\s]+", line.strip().lstrip("#").strip().lower())[:MAX_COLUMNS]
    known = sum(name in DMON or name in ("pviol", "tviol") for name in names)
    return names if "gpu" in names[:3] and known >= 2 else None


def _cells(line: str, table: _Table) -> list[str]:
    if table.is_dmon:
        return re.split(r"[,\s]+", line.strip().strip(","), maxsplit=MAX_COLUMNS)
    try:
        return [
            cell.strip()
            for cell in next(csv.reader([line.replace("\x00", "")], skipinitialspace=True), [])
        ]
    except csv.Error:
        return []


def _number(text: str) -> float | None:
    """`1980 MHz` as 1980; None for N/A, [Not Supported], - and whatever else is no number."""
    told = VALUE.fullmatch(text.strip())
    number = None if told is None else finite_text(told[1], -1e18, 1e18)
    return None if told is None or number is None else number * SCALES.get(told[2] or "", 1.0)


def mask_of(text: str) -> int | None:
    text = text.strip()
    try:
        return int(text, 16 if text.lower().startswith("0x") else 10) if len(text) < 24 else None
    except ValueError:
        return None


def reasons_of(mask: int) -> dict[str, float]:
    return {name: 1.0 for bit, name in BITS.items() if mask & bit}


def _reasons(row: Mapping[str, str]) -> dict[str, float] | None:
    found: dict[str, float] | None = None
    for column, text in row.items():
        told = REASONS.fullmatch(column)
        if told is None:
            continue
        mask = mask_of(text) if told[1] == "active" else None
        if mask is not None:
            found = (found or {}) | reasons_of(mask)
        elif told[1] in SINGLE and text in ("Active", "Not Active"):
            found = (found or {}) | ({SINGLE[told[1]]: 1.0} if text == "Active" else {})
    return found


def _violations(row: Mapping[str, str]) -> dict[str, float] | None:
    """dmon tells the share of the time that power held the clock down, and whether heat did."""
    power, heat = _number(row.get("pviol", "")), _number(row.get("tviol", ""))
    if power is None and heat is None:
        return None
    told = {"power_violation": min(power / 100, 1.0)} if power is not None and power > 0 else {}
    return told | ({"thermal_violation": 1.0} if heat is not None and heat > 0 else {})


def _time(row: Mapping[str, str], *, is_dmon: bool) -> float | None:
    """Seconds; of the day where dmon tells no date."""
    if is_dmon:
        text, pattern = f"{row.get('date', '19700101')} {row.get('time', '')}", "%Y%m%d %H:%M:%S"
    else:
        text, pattern = row.get("timestamp", "").partition(".")[0], "%Y/%m/%d %H:%M:%S"
    try:
        whole = (datetime.strptime(text, pattern) - datetime(1970, 1, 1)).total_seconds()  # noqa: DTZ001, DTZ007
    except ValueError:
        return None
    part = row.get("timestamp", "").partition(".")[2]
    return whole + (
        float(f"0.{part}") if part.isascii() and part.isdigit() and len(part) < 10 else 0.0
    )
