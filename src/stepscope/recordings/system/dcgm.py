"""DCGM's samples: the text of `dcgmi dmon`, and what its exporter gives Prometheus, one look after
the other in a file.

    #Entity   GRACT        TENSO        DRAMA        POWER
    ID                                               W
    GPU 0     0.984        0.412        0.252        391.2

    DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="0",UUID="GPU-5f",modelName="NVIDIA H200",...} 0.984

A value that DCGM calls blank (2^47 and above, 0x7ffffff0 and above) is one it does not have.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from stepscope.api import Reader, Source, SystemRecording, TextLines
from stepscope.protocol.untrusted import finite_text
from stepscope.recordings.system.columns import DCGM, values_of
from stepscope.recordings.system.device_samples import MonitorSamples
from stepscope.recordings.system.nvidia_smi import reasons_of

REASONS = ("DVCCTR", "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "DCGM_FI_DEV_CLOCKS_EVENT_REASONS")
HINT = (
    "Record with dcgmi dmon -e 1001,1002,1004,1005,155,100 > dcgm.txt, or keep what the exporter "
    "serves: while sleep 1; do curl -s localhost:9400/metrics; done > dcgm.txt"
)

DMON_START = re.compile(rb"(?:^|\n)[ \t]*#[ \t]*Entity[ \t]+[A-Z]")
METRIC_START = re.compile(rb"(?:^|\n)(?:# (?:HELP|TYPE) )?DCGM_FI_(?:DEV|PROF)_[A-Z0-9_]{2,60}[ {]")
METRIC = re.compile(r"(DCGM_FI_\w{2,80})\{(.{0,4000})\}\s+(\S{1,40})(?:\s+(-?\d{1,15}))?\s*")
LABEL = re.compile(r'(\w{1,60})="((?:[^"\\]|\\.){0,400})"')
INSTANCE = re.compile(r"(?:^|\s)GPU-(?:I|CI)\s+\d")
"""A part of a device (MIG), in dmon."""
ROW = re.compile(r"(?:^|\s)GPU\s+(\d{1,6})(?=\s)")
BLANK_INT, BLANK_INT_END, BLANK = 0x7FFFFFF0, 0x7FFFFFFF, 2.0**47
MAX_COLUMNS = 400


def is_mine(head: bytes, _name: str) -> bool:
    return DMON_START.search(head) is not None or METRIC_START.search(head) is not None


@dataclass(slots=True)
class _Scrape:
    """One look of the exporter's at one device."""

    model: str | None
    metrics: dict[str, str] = field(default_factory=dict)
    time_s: float | None = None


@dataclass(slots=True)
class _DcgmParser:
    samples: MonitorSamples = field(default_factory=MonitorSamples)
    columns: list[str] | None = None
    """Columns of dmon's last header."""
    pending: dict[tuple[str | None, int | None], _Scrape] = field(default_factory=dict)
    """A device's scrape is whole when one of its metrics comes again."""
    num_bad: int = 0
    num_part_values: int = 0
    num_part_rows: int = 0

    def take(self, line: str) -> None:
        text = line.strip()
        if text.startswith("DCGM_FI_"):
            self._take_metric(text)
        elif text.startswith("#"):
            names = text.lstrip("#").split()[:MAX_COLUMNS]
            if len(names) > 1 and names[0] == "Entity":
                self.columns = names[1:]
        elif self.columns is not None:
            self._take_row(line, self.columns)

    def _take_row(self, line: str, columns: list[str]) -> None:
        match = ROW.search(line)
        if match is None:
            self.num_part_rows += INSTANCE.search(line) is not None
            return
        cells = line[match.end() :].split()
        if len(cells) != len(columns):
            self.num_bad += 1
        elif device := self.samples.device(int(match[1])):
            device.add(*_measured(dict(zip(columns, cells, strict=True))))

    def _take_metric(self, line: str) -> None:
        match = METRIC.fullmatch(line)
        if match is None:
            self.num_bad += 1
            return
        metric = match[1]
        if metric not in DCGM and metric not in REASONS:
            return
        labels = dict(LABEL.findall(match[2]))
        if labels.get("GPU_I_ID"):
            self.num_part_values += 1
            return
        number = labels.get("gpu", "")
        index = int(number) if number.isascii() and number.isdigit() and len(number) < 7 else None
        key = (labels.get("Hostname") or labels.get("hostname") or None, index)
        if key in self.pending and metric in self.pending[key].metrics:
            self._end_scrape(key)
        scrape = self.pending.setdefault(key, _Scrape(labels.get("modelName")))
        scrape.metrics[metric] = match[3]
        if match[4] is not None:
            scrape.time_s = int(match[4]) / 1e3

    def _end_scrape(self, key: tuple[str | None, int | None]) -> None:
        scrape, device = self.pending.pop(key), self.samples.device(key[1], key[0])
        if device is not None:
            device.add(*_measured(scrape.metrics), scrape.time_s)
            device.name = device.name or scrape.model

    def end(self) -> None:
        for key in list(self.pending):
            self._end_scrape(key)


def read_file(source: Source) -> SystemRecording:
    lines, parser = TextLines(source), _DcgmParser()
    for line in lines:
        parser.take(line)
    parser.end()
    problems = {
        "line(s) could not be read as samples": parser.num_bad,
        "value(s) of parts of a device (MIG) were left out": parser.num_part_values,
        "row(s) of parts of a device (MIG) were left out": parser.num_part_rows,
    }
    notes = [f"{source.label}: {num:,} {what}" for what, num in problems.items() if num]
    return parser.samples.recording(
        "dcgm", source, (*lines.notes, *parser.samples.notes(), *notes), HINT
    )


def _measured(metrics: Mapping[str, str]) -> tuple[dict[str, float], dict[str, float] | None]:
    """A sample's values by our fields, and its reasons to run slower."""
    reasons = None
    for name in REASONS:
        value = _number(metrics.get(name, ""))
        if value is not None and 0 <= value < 2**32:
            reasons = reasons_of(int(value))
    return values_of(metrics, DCGM, _number), reasons


def _number(text: str) -> float | None:
    value = finite_text(text, high=BLANK)
    is_blank = value is None or value >= BLANK or BLANK_INT <= value <= BLANK_INT_END
    return None if is_blank else value


READER = Reader(is_mine=is_mine, read_file=read_file)
