"""Samples of AMD's monitors: amd-smi (`monitor`, `metric`) and rocm-smi, JSON or CSV, once or many
times over.

    timestamp,gpu,power_usage,hotspot_temperature,memory_temperature,gfx_clk,gfx,vram_used,vram_total
    1763258464,0,612,71,58,1980,97,151234,196592

    {"card0": {"GPU use (%)": "97", "Average Graphics Package Power (W)": "612.0", "sclk clock speed:": "(1980Mhz)"}}

Both write the same things under different names from release to release: whatever the layout, a
sample is made a flat list of names and values, and the names are looked up in one table.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from stepscope.core.recordings.system import SystemRecording, SystemReport
from stepscope.errors import FormatError
from stepscope.protocol.untrusted import finite, finite_text
from stepscope.readers.rocm.table import Table, header_of
from stepscope.readers.source import Source
from stepscope.readers.stream import Stream
from stepscope.readers.system.device_samples import DeviceDrafts

MIB = 1024.0**2
FIELDS: dict[str, tuple[str, float]] = {
    # amd-smi monitor
    "gfx": ("busy_share", 0.01),
    "mem": ("memory_busy_share", 0.01),
    "gfx_clk": ("sm_clock_mhz", 1.0),
    "gfx_clock": ("sm_clock_mhz", 1.0),
    "mem_clock": ("memory_clock_mhz", 1.0),
    "power_usage": ("power_w", 1.0),
    "max_power": ("power_limit_w", 1.0),
    "hotspot_temperature": ("temperature_c", 1.0),
    "vram_used": ("memory_used_bytes", MIB),
    "vram_total": ("memory_total_bytes", MIB),
    # amd-smi metric: JSON has the section's name before these
    "gfx_activity": ("busy_share", 0.01),
    "umc_activity": ("memory_busy_share", 0.01),
    "gfx_0_clk": ("sm_clock_mhz", 1.0),
    "gfx_0_max_clk": ("max_sm_clock_mhz", 1.0),
    "mem_0_clk": ("memory_clock_mhz", 1.0),
    "socket_power": ("power_w", 1.0),
    "hotspot": ("temperature_c", 1.0),
    "used_vram": ("memory_used_bytes", MIB),
    "total_vram": ("memory_total_bytes", MIB),
    # rocm-smi
    "gpu_use": ("busy_share", 0.01),
    "gpu_memory_read_write_activity": ("memory_busy_share", 0.01),
    "sclk_clock_speed": ("sm_clock_mhz", 1.0),
    "mclk_clock_speed": ("memory_clock_mhz", 1.0),
    "average_graphics_package_power_w": ("power_w", 1.0),
    "current_socket_graphics_package_power_w": ("power_w", 1.0),
    "max_graphics_package_power_w": ("power_limit_w", 1.0),
    "temperature_sensor_junction_c": ("temperature_c", 1.0),
    "temperature_sensor_edge_c": ("temperature_c", 1.0),
    "vram_total_memory_b": ("memory_total_bytes", 1.0),
    "vram_total_used_memory_b": ("memory_used_bytes", 1.0),
}
"""By name, in lower case with _ for everything else: the field, and what one of its unit is in the
field's. The first that has a number counts: the junction is the hottest place, and what AMD
throttles by."""
SECTIONS = ("usage", "clock", "power", "temperature", "mem_usage", "throttle")
VIOLATIONS = {
    "ppt_violation_status": "power_violation",
    "socket_thermal_violation_status": "thermal_violation",
    "vr_thermal_violation_status": "thermal_violation",
    "hbm_thermal_violation_status": "thermal_violation",
    "prochot_violation_status": "hw_slowdown",
}
"""amd-smi metric, on MI300 and later: ACTIVE or NOT ACTIVE. Older ones tell THROTTLED, and not by
what: that is left out."""
NAMES = ("card_series", "device_name", "market_name", "card_model")
SURE = frozenset(FIELDS) - {"gfx", "mem", "hotspot", "gfx_clock", "mem_clock"}
"""Names that no other tool's table has."""
CARD = re.compile(r"card(\d{1,5})")
JSON_CARD = re.compile(rb'"card\d{1,5}"\s*:\s*\{')
JSON_CARD_FIELD = re.compile(
    rb'"(?:GPU use \(%\)|[^"]{1,24}Graphics Package Power|Temperature \(Sensor|VRAM Total|sclk '
    rb"clock)"
)
JSON_GPU = re.compile(rb'"gpu"\s*:\s*"?\d{1,5}')
JSON_GPU_FIELD = re.compile(rb'"(?:power_usage|gfx_activity|socket_power|hotspot_temperature)"\s*:')
VALUE = re.compile(r"\(?\s*(-?\d{1,15}(?:\.\d{1,9})?)\s*([%A-Za-z]{0,8})\s*\)?")
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
"""What a value with one of these behind it is in the units that AMD's monitors usually write: MB,
MHz, W."""
OPENING = re.compile(r"[{\[]")
MAX_JSON_BYTES = 64 << 20
MAX_DEPTH = 8
MAX_VALUES = 4096
"""Of one sample."""
WANTED = (
    "Record with: amd-smi monitor -p -t -u -v -w 1 --csv > amd_smi.csv, or rocm-smi -P -t -u -c "
    "--showmeminfo vram --json"
)


def is_mine(head: bytes, _name: str) -> bool:
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
    if start in (b"{", b"["):
        has_cards = JSON_CARD.search(head) is not None and JSON_CARD_FIELD.search(head) is not None
        return has_cards or (
            JSON_GPU.search(head) is not None and JSON_GPU_FIELD.search(head) is not None
        )
    return _is_header([_plain(name) for name in header_of(head)])


def read(sources: Sequence[Source]) -> SystemReport:
    """All files, one Recording each."""
    return SystemReport(recordings=tuple(map(_read, sources)))


def _read(source: Source) -> SystemRecording:
    reading = _Reading()
    stream = Stream(source.path, source.offset, source.length)
    with closing(Stream(source.path, source.offset, source.length).blocks()) as blocks:
        start = next(blocks, b"").lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
    if start in (b"{", b"["):
        reading.take_json(stream)
    else:
        reading.take_table(stream)
    if not reading.drafts.devices:
        raise FormatError(f"{source.label}: no sample of a device in it. {WANTED}")
    devices = reading.drafts.series()
    told = [*reading.notes, *reading.drafts.notes()]
    told += [f"{reading.num_bad:,} sample(s) could not be read"] if reading.num_bad else []
    told += [stream.problem] if stream.problem else []
    notes = tuple(f"{source.label}: {note}" for note in told)
    return SystemRecording(format="rocm-smi", paths=(source.label,), notes=notes, devices=devices)


@dataclass(slots=True)
class _Reading:
    drafts: DeviceDrafts = field(default_factory=DeviceDrafts)
    notes: list[str] = field(default_factory=list)
    num_bad: int = 0

    def take_table(self, stream: Stream) -> None:
        """Rows under a header, which a loop around the monitor writes again and again, not always
        the same."""
        columns: list[str] = []
        table = Table(stream=stream)
        for row in table.raw_rows():
            names = [_plain(cell) for cell in row[:MAX_VALUES]]
            if _is_header(names):
                columns = names
            elif columns and len(row) == len(columns):
                self._take(dict(zip(columns, row, strict=True)))
            else:
                self.num_bad += bool(columns)
        self.num_bad += table.num_cut + table.num_malformed

    def take_json(self, stream: Stream) -> None:
        """One document after the other."""
        parts, size = [], 0
        for block in stream.blocks():
            parts.append(block[: MAX_JSON_BYTES - size])
            size += len(parts[-1])
            if size >= MAX_JSON_BYTES:
                self.notes.append(f"what comes after {MAX_JSON_BYTES >> 20} MiB was left out")
                break
        text = b"".join(parts).decode("utf-8", "replace").lstrip("\ufeff")
        decoder, at = (
            json.JSONDecoder(strict=False, parse_int=_whole, parse_constant=lambda _: None),
            0,
        )
        while (at := _next_document(text, at)) < len(text):
            try:
                document, at = decoder.raw_decode(text, at)
            except (ValueError, RecursionError):
                self.notes.append("the JSON is damaged or cut off: what follows was left out")
                return
            for sample in _samples(document):
                self._take(sample)

    def _take(self, sample: Mapping[str, Any]) -> None:
        index = _index(sample)
        values: dict[str, float | None] = {}
        for name, (field_name, scale) in FIELDS.items():
            if values.get(field_name) is None and (value := _number(sample.get(name))) is not None:
                values[field_name] = value * scale
        if index is None or not values:
            self.num_bad += 1
            return
        device = self.drafts.of(index)
        if device is not None:
            device.add(values, _reasons(sample), _number(sample.get("timestamp")))
            device.name = device.name or next(
                (sample[key] for key in NAMES if isinstance(sample.get(key), str)), None
            )


def _is_header(names: Sequence[str]) -> bool:
    return bool({"gpu", "device"} & set(names)) and bool(SURE & set(names))


def _samples(document: Any) -> Iterator[dict[str, Any]]:
    """Each device's values, flat: of {"card0": {}}, of [{"gpu": 0}], of {"gpu_data": [{"gpu":
    0}]}."""
    if isinstance(document, dict) and isinstance(document.get("gpu_data"), list):
        document = document["gpu_data"]
    if isinstance(document, dict) and "gpu" not in document:
        for key, value in document.items():
            if CARD.fullmatch(key) and isinstance(value, dict):
                yield {**_flat(value), "device": key}
        return
    for entry in document if isinstance(document, list) else [document]:
        if isinstance(entry, dict):
            yield _flat(entry)


def _flat(value: Mapping[str, Any]) -> dict[str, Any]:
    """{"power": {"socket_power": {"value": 612, "unit": "W"}}} as {"socket_power": 612}."""
    flat: dict[str, Any] = {}
    pending: list[tuple[tuple[str, ...], Any]] = [((), value)]
    while pending and len(flat) < MAX_VALUES:
        path, here = pending.pop()
        if isinstance(here, dict) and "value" in here:
            unit = here.get("unit")
            has_unit = (
                isinstance(unit, str)
                and unit.lower() in UNITS
                and _number(here["value"]) is not None
            )
            here = f"{_number(here['value']):f} {unit}" if has_unit else here["value"]
        if isinstance(here, dict):
            if len(path) < MAX_DEPTH:
                pending += [
                    ((*path, _plain(str(key))), one) for key, one in list(here.items())[:MAX_VALUES]
                ]
        elif isinstance(here, str | int | float):
            flat["_".join(path[1:] if len(path) > 1 and path[0] in SECTIONS else path)] = here
    return flat


def _index(sample: Mapping[str, Any]) -> int | None:
    told = sample.get("gpu", sample.get("device"))
    text = str(told).strip() if isinstance(told, int | str) else ""
    if found := CARD.fullmatch(text):
        return int(found[1])
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else None


def _reasons(sample: Mapping[str, Any]) -> dict[str, float] | None:
    known = {
        name: str(sample[name]).upper() for name in VIOLATIONS if isinstance(sample.get(name), str)
    }
    if not {"ACTIVE", "NOT ACTIVE"}.intersection(known.values()):
        return None
    return {VIOLATIONS[name]: 1.0 for name, state in known.items() if state == "ACTIVE"}


def _number(value: Any) -> float | None:
    """`(1980Mhz)`, `612 W`, 612: None for N/A and whatever else is no number."""
    if not isinstance(value, str):
        return finite(value, -1e18, 1e18)
    told = VALUE.fullmatch(value.strip()) if len(value) < 64 else None
    number = finite_text(told[1], -1e18, 1e18) if told else None
    return None if told is None or number is None else number * UNITS.get(told[2].lower(), 1.0)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name[:200].lower()).strip("_")


def _whole(text: str) -> int | None:
    return int(text) if len(text) <= 20 else None


def _next_document(text: str, at: int) -> int:
    """Past blanks, and past a comma or a line of words between two documents."""
    found = OPENING.search(text, at)
    return found.start() if found else len(text)
