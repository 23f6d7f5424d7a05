"""Samples of AMD's monitors: amd-smi (`monitor`, `metric`) and rocm-smi, JSON or CSV, once or many
times over; and the table that rocm-smi prints without options.

    timestamp,gpu,power_usage,hotspot_temperature,memory_temperature,gfx_clk,gfx,vram_used,vram_total
    1763258464,0,612,71,58,1980,97,151234,196592

    {"card0": {"GPU use (%)": "97", "Average Graphics Package Power (W)": "612.0",
        "sclk clock speed:": "(1980Mhz)"}}

    Device  Node  Temp        Power     SCLK     MCLK     Fan  Perf  PwrCap  VRAM%  GPU%
    0       2     48.0°C      612.0W    1980Mhz  1300Mhz  0%   auto  750.0W  60%    97%

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

from stepscope.api import Reader, Source, Stream, SystemRecording
from stepscope.readers.text_lines import bounded_lines
from stepscope.recordings.rocm.table import Table, header_of
from stepscope.recordings.system.columns import AMD, UNITS, number_of, values_of
from stepscope.recordings.system.device_samples import MonitorSamples

SECTIONS = ("usage", "clock", "power", "temperature", "mem_usage", "throttle")
VIOLATIONS = {
    "ppt_violation_status": "power_violation",
    "socket_thermal_violation_status": "thermal_violation",
    "vr_thermal_violation_status": "thermal_violation",
    "hbm_thermal_violation_status": "thermal_violation",
    "prochot_violation_status": "hw_slowdown",
}
"""amd-smi metric, on MI300 and later: ACTIVE or NOT ACTIVE. Older ones write THROTTLED, and not by
what: that is left out."""
NAMES = ("card_series", "device_name", "market_name", "card_model")
SURE = frozenset(AMD) - {"gfx", "mem", "hotspot", "gfx_clock", "mem_clock"}
"""Names that no other tool's table has."""
CARD = re.compile(r"card(\d{1,5})")
JSON_CARD = re.compile(rb'"card\d{1,5}"\s*:\s*\{')
JSON_CARD_FIELD = re.compile(
    rb'"(?:GPU use \(%\)|[^"]{1,24}Graphics Package Power|Temperature \(Sensor|VRAM Total|sclk '
    rb"clock)"
)
JSON_GPU = re.compile(rb'"gpu"\s*:\s*"?\d{1,5}')
JSON_GPU_FIELD = re.compile(rb'"(?:power_usage|gfx_activity|socket_power|hotspot_temperature)"\s*:')
CONCISE = re.compile(rb"^(?:Device|GPU) [^\n]{1,300} VRAM% +GPU%", re.MULTILINE)
"""The header of what rocm-smi prints without options."""
CONCISE_CELL = re.compile(r"(?<![\w.])(\d{1,6}(?:\.\d{1,3})?)(?:\s?°)?(Mhz|[WcC%])(?!\w)")
OPENING = re.compile(r"[{\[]")
MAX_JSON_BYTES = 64 << 20
MAX_LINE_BYTES = 4096
MAX_DEPTH = 8
MAX_VALUES = 4096
"""Values of one sample at most."""
HINT = (
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
    return CONCISE.search(head) is not None or _is_header(
        [_plain(name) for name in header_of(head)]
    )


def read_file(source: Source) -> SystemRecording:
    parser = _AmdParser()
    stream = Stream(source.path, source.offset, source.length)
    with closing(Stream(source.path, source.offset, source.length).blocks()) as blocks:
        head = next(blocks, b"")
    if head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"["):
        parser.take_json(stream)
    elif CONCISE.search(head) is not None:
        parser.take_concise(stream)
    else:
        parser.take_table(stream)
    notes = [*parser.notes, *parser.samples.notes()]
    if parser.num_bad:
        notes.append(f"{parser.num_bad:,} sample(s) could not be read")
    if stream.problem:
        notes.append(stream.problem)
    labelled = [f"{source.label}: {note}" for note in notes]
    return parser.samples.recording("rocm-smi", source, labelled, HINT)


@dataclass(slots=True)
class _AmdParser:
    samples: MonitorSamples = field(default_factory=MonitorSamples)
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

    def take_concise(self, stream: Stream) -> None:
        """Values are known by their units: which columns there are differs from release to
        release, and blanks in cells from card to card."""
        with closing(stream.blocks()) as blocks:
            for line, _ in bounded_lines(blocks, MAX_LINE_BYTES):
                index, _, rest = line.partition(" ")
                if not (index.isascii() and index.isdigit()):
                    continue
                cells: dict[str, list[str]] = {}
                for value, unit in CONCISE_CELL.findall(rest):
                    cells.setdefault(unit.lower(), []).append(value)
                watts, clocks, shares = (cells.get(unit, []) for unit in ("w", "mhz", "%"))
                sample = {"device": index, "gpu_use": shares[-1]} if shares else {}
                sample |= dict(zip(("socket_power", "max_power"), watts, strict=False))
                sample |= dict(zip(("gfx_clk", "mem_clock"), clocks, strict=False))
                sample |= dict(zip(("hotspot_temperature",), cells.get("c", []), strict=False))
                self._take(sample)

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
        decoder = json.JSONDecoder(strict=False, parse_int=_whole, parse_constant=lambda _: None)
        end = 0
        # Past blanks, and past a comma or a line of words between two documents.
        while opening := OPENING.search(text, end):
            try:
                document, end = decoder.raw_decode(text, opening.start())
            except (ValueError, RecursionError):
                self.notes.append("the JSON is damaged or cut off: what follows was left out")
                return
            for sample in _samples(document):
                self._take(sample)

    def _take(self, sample: Mapping[str, Any]) -> None:
        index = _index(sample)
        values = values_of(sample, AMD)
        if index is None or not values:
            self.num_bad += 1
            return
        device = self.samples.device(index)
        if device is not None:
            device.add(values, _reasons(sample), number_of(sample.get("timestamp")))
            names = (sample[key] for key in NAMES if isinstance(sample.get(key), str))
            device.name = device.name or next(names, None)


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
        path, item = pending.pop()
        if isinstance(item, dict) and "value" in item:
            item = _with_unit(item)
        if isinstance(item, dict):
            if len(path) < MAX_DEPTH:
                children = list(item.items())[:MAX_VALUES]
                pending += [((*path, _plain(str(key))), child) for key, child in children]
        elif isinstance(item, str | int | float):
            flat["_".join(path[1:] if len(path) > 1 and path[0] in SECTIONS else path)] = item
    return flat


def _with_unit(item: Mapping[str, Any]) -> Any:
    """{"value": 612, "unit": "W"} as `612 W`."""
    value, unit = item["value"], item.get("unit")
    number = number_of(value)
    if number is None or not isinstance(unit, str) or unit.lower() not in UNITS:
        return value
    return f"{number:f} {unit}"


def _index(sample: Mapping[str, Any]) -> int | None:
    index = sample.get("gpu", sample.get("device"))
    text = str(index).strip() if isinstance(index, int | str) else ""
    if card := CARD.fullmatch(text):
        return int(card[1])
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else None


def _reasons(sample: Mapping[str, Any]) -> dict[str, float] | None:
    states = {
        name: str(sample[name]).upper() for name in VIOLATIONS if isinstance(sample.get(name), str)
    }
    if not {"ACTIVE", "NOT ACTIVE"}.intersection(states.values()):
        return None
    return {VIOLATIONS[name]: 1.0 for name, state in states.items() if state == "ACTIVE"}


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name[:200].lower()).strip("_")


def _whole(text: str) -> int | None:
    return int(text) if len(text) <= 20 else None


READER = Reader(is_mine=is_mine, read_file=read_file)
