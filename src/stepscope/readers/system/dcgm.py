"""DCGM's samples: the text of `dcgmi dmon`, and what its exporter tells Prometheus, one look after
the other in a file.

    #Entity   GRACT        TENSO        DRAMA        POWER
    ID                                               W
    GPU 0     0.984        0.412        0.252        391.2

    DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="0",UUID="GPU-5f",modelName="NVIDIA H200",Hostname="node7"} 0.984

A value that DCGM calls blank (2^47 and above, 0x7ffffff0 and above) is one it does not have.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from stepscope.core.recordings.system import SystemRecording, SystemReport
from stepscope.errors import FormatError
from stepscope.protocol.untrusted import finite_text
from stepscope.readers.source import Source
from stepscope.readers.system.device_samples import DeviceDrafts
from stepscope.readers.system.nvidia_smi import reasons_of
from stepscope.readers.text_lines import TextLines

MIB = 1024.0**2
FIELDS: dict[str, tuple[str, str, float]] = {
    "GRACT": ("PROF_GR_ENGINE_ACTIVE", "engine_active_share", 1.0),
    "SMACT": ("PROF_SM_ACTIVE", "sm_active_share", 1.0),
    "SMOCC": ("PROF_SM_OCCUPANCY", "sm_occupancy_share", 1.0),
    "TENSO": ("PROF_PIPE_TENSOR_ACTIVE", "tensor_active_share", 1.0),
    "DRAMA": ("PROF_DRAM_ACTIVE", "dram_active_share", 1.0),
    "PCIRX": ("PROF_PCIE_RX_BYTES", "pcie_rx_bytes_per_s", 1.0),
    "PCITX": ("PROF_PCIE_TX_BYTES", "pcie_tx_bytes_per_s", 1.0),
    "NVLRX": ("PROF_NVLINK_RX_BYTES", "nvlink_rx_bytes_per_s", 1.0),
    "NVLTX": ("PROF_NVLINK_TX_BYTES", "nvlink_tx_bytes_per_s", 1.0),
    "GPUTL": ("DEV_GPU_UTIL", "busy_share", 0.01),
    "MCUTL": ("DEV_MEM_COPY_UTIL", "memory_busy_share", 0.01),
    "SMCLK": ("DEV_SM_CLOCK", "sm_clock_mhz", 1.0),
    "SMMAX": ("DEV_MAX_SM_CLOCK", "max_sm_clock_mhz", 1.0),
    "MMCLK": ("DEV_MEM_CLOCK", "memory_clock_mhz", 1.0),
    "POWER": ("DEV_POWER_USAGE", "power_w", 1.0),
    "EPLMT": ("DEV_ENFORCED_POWER_LIMIT", "power_limit_w", 1.0),
    "PMLMT": ("DEV_POWER_MGMT_LIMIT", "power_limit_w", 1.0),
    "TMPTR": ("DEV_GPU_TEMP", "temperature_c", 1.0),
    "FBUSD": ("DEV_FB_USED", "memory_used_bytes", MIB),
    "FBTTL": ("DEV_FB_TOTAL", "memory_total_bytes", MIB),
}
"""By dmon's short name (dcgm_fields.cpp): the exporter's name, our field, and what one of its unit
is in the field's."""
DMON = {short: (name, scale) for short, (_, name, scale) in FIELDS.items()}
METRICS = {f"DCGM_FI_{long}": (name, scale) for long, name, scale in FIELDS.values()}
REASONS = frozenset(
    {"DVCCTR", "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "DCGM_FI_DEV_CLOCKS_EVENT_REASONS"}
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


def read(sources: Sequence[Source]) -> SystemReport:
    """All files, one Recording each."""
    return SystemReport(recordings=tuple(map(_read, sources)))


@dataclass(slots=True)
class _Scrapes:
    """The exporter's values, each a line: a device's sample is whole when one of its metrics comes
    again."""

    drafts: DeviceDrafts
    pending: dict[tuple[str | None, int | None], _Pending] = field(default_factory=dict)
    num_bad: int = 0
    num_instances: int = 0

    def take(self, line: str) -> None:
        told = METRIC.fullmatch(line)
        if told is None:
            self.num_bad += 1
            return
        metric = told[1]
        if metric not in METRICS and metric not in REASONS:
            return
        labels = dict(LABEL.findall(told[2]))
        if labels.get("GPU_I_ID"):
            self.num_instances += 1
            return
        number = labels.get("gpu", "")
        index = int(number) if number.isascii() and number.isdigit() and len(number) < 7 else None
        key = (labels.get("Hostname") or labels.get("hostname") or None, index)
        sample = self.pending.get(key)
        if sample is None or metric in sample.seen:
            self._put(key, sample)
            sample = self.pending[key] = _Pending(labels.get("modelName"))
        sample.seen.add(metric)
        sample.put(metric, told[3])
        sample.time_s = sample.time_s if told[4] is None else int(told[4]) / 1e3

    def end(self) -> None:
        for key, sample in self.pending.items():
            self._put(key, sample)

    def _put(self, key: tuple[str | None, int | None], sample: _Pending | None) -> None:
        draft = None if sample is None else self.drafts.of(key[1], key[0])
        if draft is not None and sample is not None:
            draft.add(sample.values, sample.reasons, sample.time_s)
            draft.name = draft.name or sample.model


@dataclass(slots=True)
class _Pending:
    model: str | None = None
    seen: set[str] = field(default_factory=set)
    values: dict[str, float | None] = field(default_factory=dict)
    reasons: dict[str, float] | None = None
    time_s: float | None = None

    def put(self, name: str, text: str) -> None:
        """A value by its short or its long name."""
        value = _number(text)
        if name in REASONS:
            self.reasons = (
                None if value is None or value < 0 or value >= 2**32 else reasons_of(int(value))
            )
            return
        known = DMON.get(name) or METRICS.get(name)
        if known is not None and self.values.get(known[0]) is None:
            self.values[known[0]] = None if value is None else value * known[1]


def _read(source: Source) -> SystemRecording:
    lines, drafts = TextLines(source), DeviceDrafts()
    scrapes, columns, num_bad, num_parts = _Scrapes(drafts), None, 0, 0
    for line in lines:
        text = line.strip()
        if text.startswith("DCGM_FI_"):
            scrapes.take(text)
        elif text.startswith("#"):
            columns = _columns(text) or columns
        elif columns is not None:
            told = ROW.search(line)
            num_parts += told is None and INSTANCE.search(line) is not None
            num_bad += told is not None and not _take_row(
                drafts, columns, int(told[1]), line[told.end() :].split()
            )
    scrapes.end()
    if not drafts.devices:
        raise FormatError(
            f"{source.label}: no sample of a device in it. Record with dcgmi dmon -e "
            "1001,1002,1004,1005,155,100 > dcgm.txt, or"
            " keep what the exporter tells: while sleep 1; do curl -s localhost:9400/metrics; "
            "done > dcgm.txt"
        )
    notes = [*lines.notes, *drafts.notes()]
    if num_bad + scrapes.num_bad:
        notes.append(
            f"{source.label}: {num_bad + scrapes.num_bad:,} line(s) could not be read as samples"
        )
    if scrapes.num_instances:
        notes.append(
            f"{source.label}: {scrapes.num_instances:,} value(s) of parts of a device (MIG) were "
            "left out"
        )
    if num_parts:
        notes.append(
            f"{source.label}: {num_parts:,} row(s) of parts of a device (MIG) were left out"
        )
    return SystemRecording(
        format="dcgm", paths=(source.label,), notes=tuple(notes), devices=drafts.series()
    )


def _columns(line: str) -> list[str] | None:
    names = line.lstrip("#").split()[:MAX_COLUMNS]
    return names[1:] if len(names) > 1 and names[0] == "Entity" else None


def _take_row(drafts: DeviceDrafts, columns: list[str], index: int, cells: list[str]) -> bool:
    """Whether the row has a cell for each column."""
    if len(cells) != len(columns):
        return False
    sample = _Pending()
    for name, text in zip(columns, cells, strict=True):
        sample.put(name, text)
    draft = drafts.of(index)
    if draft is not None:
        draft.add(sample.values, sample.reasons)
    return True


def _number(text: str) -> float | None:
    value = finite_text(text, high=BLANK)
    blank = value is None or value >= BLANK or BLANK_INT <= value <= BLANK_INT_END
    return None if blank else value
