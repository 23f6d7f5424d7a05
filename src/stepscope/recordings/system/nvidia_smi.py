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
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from stepscope.api import Reader, Source, SystemRecording, TextLines
from stepscope.capture.counters.nvml import THROTTLE_REASONS
from stepscope.recordings.system.columns import NVIDIA_DMON, NVIDIA_QUERY, number_of, values_of
from stepscope.recordings.system.device_samples import MAX_DEVICES, DeviceSamples, MonitorSamples

SINGLE = {name.removesuffix("_setting"): name for name in THROTTLE_REASONS.values()} | {
    name: name for name in THROTTLE_REASONS.values()
}
"""How columns of one reason each end."""
REASONS = re.compile(r"clocks_(?:throttle|event)_reasons\.(\w{1,60})")
CELL = re.compile(r"([\w.]{1,80})(?: \[([^\]]{1,12})\])?")
IDENTITY = ("index", "uuid", "gpu_uuid", "pci.bus_id", "gpu_bus_id", "serial", "gpu_serial")
MAX_COLUMNS = 400
DAY_S = 86_400.0
HINT = (
    "Record with nvidia-smi --query-gpu=timestamp,index,utilization.gpu,clocks.sm,clocks.max.sm,"
    "power.draw,clocks_event_reasons.active --format=csv -l 1, or nvidia-smi dmon -s pucvmet"
)


def is_mine(head: bytes, _name: str) -> bool:
    """A header of either kind among the first lines: a wrapper script may have written something
    before it."""
    lines = head[:8192].decode("utf-8", "replace").splitlines()[:20]
    return any(_header(line) is not None or _dmon_header(line) is not None for line in lines)


@dataclass(slots=True)
class _Day:
    """Midnights passed, where dmon has the time of the day alone."""

    num: int = 0
    last_s: float | None = None

    def seconds(self, time_s: float) -> float:
        if self.last_s is not None and time_s < self.last_s - DAY_S / 2:
            self.num += 1
        self.last_s = time_s
        return self.num * DAY_S + time_s


@dataclass(slots=True)
class _SmiParser:
    columns: list[str] | None = None
    """Columns of the last header."""
    is_dmon: bool = False
    samples: MonitorSamples = field(default_factory=MonitorSamples)
    identities: dict[str, int] = field(default_factory=dict)
    day: _Day = field(default_factory=_Day)
    num_bad: int = 0

    def take(self, line: str) -> None:
        is_comment = line.lstrip().startswith("#")
        columns = _header(line) or _dmon_header(line)
        if columns is not None:
            self.columns, self.is_dmon = columns, is_comment
        elif self.columns is not None and line.strip() and not is_comment:
            self._take_row(self.columns, _dmon_cells(line) if self.is_dmon else _csv_cells(line))

    def _take_row(self, columns: list[str], cells: list[str]) -> None:
        if len(cells) != len(columns):
            self.num_bad += 1
            return
        row = dict(zip(columns, cells, strict=True))
        device = self._device(row)
        if device is None:
            return
        values = values_of(row, NVIDIA_DMON if self.is_dmon else NVIDIA_QUERY)
        self.num_bad += not values
        time_s = _time(row, is_dmon=self.is_dmon)
        if time_s is not None and self.is_dmon and "date" not in row:
            time_s = self.day.seconds(time_s)
        device.add(values, _violations(row) if self.is_dmon else _reasons(row), time_s)
        if device.name is None:
            device.name = row.get("name") or row.get("gpu_name")

    def _device(self, row: Mapping[str, str]) -> DeviceSamples | None:
        names = ("gpu",) if self.is_dmon else IDENTITY
        identity = next((row[name] for name in names if name in row), None)
        if identity is None:
            return self.samples.device(None)
        if identity.isascii() and identity.isdigit() and len(identity) < 6:
            return self.samples.device(int(identity))
        if self.is_dmon:
            self.num_bad += 1
            return None
        if len(self.identities) >= MAX_DEVICES:
            return self.samples.device(None)
        return self.samples.device(self.identities.setdefault(identity[:80], len(self.identities)))


def read_file(source: Source) -> SystemRecording:
    lines, parser = TextLines(source), _SmiParser()
    for line in lines:
        parser.take(line)
    notes = []
    if parser.num_bad:
        notes.append(f"{parser.num_bad:,} line(s) could not be read as samples")
    if (None, None) in parser.samples.devices:
        notes.append(
            "devices cannot be distinguished, if there were several: add index to the query"
        )
    if parser.identities:
        named = ", ".join(f"{index} is {name}" for name, index in [*parser.identities.items()][:8])
        notes.append(f"devices are numbered as they come, for the query has no index: {named}")
    labelled = [f"{source.label}: {note}" for note in notes]
    return parser.samples.recording(
        "nvidia-smi", source, (*lines.notes, *parser.samples.notes(), *labelled), HINT
    )


def _header(line: str) -> list[str] | None:
    """Columns of --query-gpu: every cell a name, and two at least that nvidia-smi has."""
    if "," not in line or len(line) > 16_384 or line.lstrip().startswith(("#", "{", "[")):
        return None
    cells = [CELL.fullmatch(cell.strip().lstrip("\ufeff")) for cell in line.split(",")]
    if len(cells) > MAX_COLUMNS or any(cell is None for cell in cells):
        return None
    names = [cell[1] for cell in cells if cell is not None]
    num_known = sum(name in NVIDIA_QUERY or REASONS.fullmatch(name) is not None for name in names)
    num_others = sum(name in (*IDENTITY, "timestamp", "name") for name in names)
    return names if num_known >= 1 and num_known + num_others >= 2 else None


def _dmon_header(line: str) -> list[str] | None:
    if not line.lstrip().startswith("#") or len(line) > 16_384:
        return None
    names = re.split(r"[,\s]+", line.strip().lstrip("#").strip().lower())[:MAX_COLUMNS]
    num_known = sum(name in NVIDIA_DMON or name in ("pviol", "tviol") for name in names)
    return names if "gpu" in names[:3] and num_known >= 2 else None


def _dmon_cells(line: str) -> list[str]:
    return re.split(r"[,\s]+", line.strip().strip(","), maxsplit=MAX_COLUMNS)


def _csv_cells(line: str) -> list[str]:
    try:
        rows = csv.reader([line.replace("\x00", "")], skipinitialspace=True)
        return [cell.strip() for cell in next(rows, [])]
    except csv.Error:
        return []


def mask_of(text: str) -> int | None:
    text = text.strip()
    try:
        return int(text, 16 if text.lower().startswith("0x") else 10) if len(text) < 24 else None
    except ValueError:
        return None


def reasons_of(mask: int) -> dict[str, float]:
    return {name: 1.0 for bit, name in THROTTLE_REASONS.items() if mask & bit}


def _reasons(row: Mapping[str, str]) -> dict[str, float] | None:
    reasons: dict[str, float] | None = None
    for column, text in row.items():
        match = REASONS.fullmatch(column)
        if match is None:
            continue
        mask = mask_of(text) if match[1] == "active" else None
        if mask is not None:
            reasons = (reasons or {}) | reasons_of(mask)
        elif match[1] in SINGLE and text in ("Active", "Not Active"):
            reasons = (reasons or {}) | ({SINGLE[match[1]]: 1.0} if text == "Active" else {})
    return reasons


def _violations(row: Mapping[str, str]) -> dict[str, float] | None:
    """dmon has the share of the time that power held the clock down, and whether heat did."""
    power, heat = number_of(row.get("pviol", "")), number_of(row.get("tviol", ""))
    if power is None and heat is None:
        return None
    reasons = {}
    if power is not None and power > 0:
        reasons["power_violation"] = min(power / 100, 1.0)
    if heat is not None and heat > 0:
        reasons["thermal_violation"] = 1.0
    return reasons


def _time(row: Mapping[str, str], *, is_dmon: bool) -> float | None:
    """Seconds; of the day where dmon has no date."""
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


READER = Reader(is_mine=is_mine, read_file=read_file)
