"""Reads AMD's counters of every launch: `pmc_perf.csv` of rocprof-compute (omniperf) and what its
`analyze --save-dfs` wrote, `*_counter_collection.csv` of rocprofv3 --pmc, and `results.csv` of
rocprof v1 -i.

While counters are collected kernels run one by one: their times are each launch's own, and no
timeline.

The figures are made of the counters as rocprof-compute's own speed-of-light panel makes them; the
device's sizes come from the `sysinfo.csv` beside the table. Without it what needs a peak is None.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stepscope.api import (
    FormatError,
    InputError,
    KernelMetrics,
    KernelRecording,
    Reader,
    Source,
    Stream,
)
from stepscope.core.numbers import true_notes
from stepscope.core.recordings.kernels import KernelTotal
from stepscope.recordings.rocm.counters import Device, metrics_of
from stepscope.recordings.rocm.table import DAMAGED, Table, cell, header_of, number, whole

COUNTER = re.compile(r"(?:sq|sqc|tcc|tcp|ta|td|grbm|spi|cpc|cpf)_[a-z0-9_]+")
"""Names of AMD's counters, by the block they count in."""
NAME, LAUNCH = ("kernel_name", "kernelname"), ("dispatch_id", "index")
COUNTED = {"counter_name", "counter_value", "dispatch_id"}
"""Columns of rocprofv3's table, which has a row for each counter of a launch."""
PANEL = {"metric", "avg", "unit"}
"""Columns of a panel that `analyze --save-dfs` wrote, beside Peak and Pct of Peak, or Min and
Max."""
TOP = {"kernel_name", "count", "sum(ns)"}
"""Columns of the list of top kernels."""
LAUNCHES, COUNTERS, PANELS, TOPS = "launches", "counters", "panel", "top"
SUFFIX = re.compile(r"\s*(?:\(\.kd\)|\[clone \.kd\]|\.kd)\Z")
SYSTEM_FILE = "sysinfo.csv"
MAX_LAUNCHES = 50_000
MAX_PANEL_ROWS = 400
MAX_NAME = 4096
WANTED = (
    "Record with: rocprof-compute profile -n run -- python train.py, and give "
    "workloads/run/*/pmc_perf.csv"
)


def is_mine(head: bytes, _name: str) -> bool:
    return kind_of(header_of(head)) is not None


def kind_of(header: Sequence[str]) -> str | None:
    columns = set(header)
    if columns >= TOP:
        return TOPS
    if columns >= PANEL and columns & {"pct_of_peak", "peak", "max"}:
        return PANELS
    if not columns.intersection(NAME) or not columns.intersection(LAUNCH):
        return None
    if columns >= COUNTED:
        return COUNTERS
    return LAUNCHES if any(map(COUNTER.fullmatch, columns)) else None


def read_file(source: Source) -> KernelRecording:
    stream = Stream(source.path, source.offset, source.length)
    table = Table(stream=stream)
    builder = _RecordingBuilder(table=table, device=_device_of(source))
    for row in table.rows():
        if builder.kind is None:
            builder.kind = kind_of(table.header)
            if builder.kind is None:
                raise FormatError(f"{source.label} is no table of AMD's counters. {WANTED}")
        builder.take(row)
    stream.refuse_empty(source.label, WANTED)
    if builder.kind is None and kind_of(table.header) is None:
        raise FormatError(f"{source.label} is no table of AMD's counters. {WANTED}")
    return builder.recording(source)


@dataclass(slots=True)
class _Counted:
    """One launch of rocprofv3's table, while its rows come."""

    name: str
    about: Mapping[str, int]
    values: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class _RecordingBuilder:
    table: Table
    device: Device
    kind: str | None = None
    kernels: list[KernelMetrics] = field(default_factory=list)
    counted: dict[tuple[int | None, int | None], _Counted] = field(default_factory=dict)
    """Counts by process and launch."""
    totals: list[KernelTotal] = field(default_factory=list)
    panel: list[tuple[str, ...]] = field(default_factory=list)
    num_beyond: int = 0

    def take(self, row: list[str]) -> None:
        if self.kind == LAUNCHES:
            self._launch(row)
        elif self.kind == COUNTERS:
            self._counter(row)
        elif self.kind == TOPS:
            self._top(row)
        elif len(self.panel) < MAX_PANEL_ROWS:
            column = self.table.column
            columns = ("metric", "avg", "unit", "peak", "pct_of_peak")
            self.panel.append(tuple(cell(row, column(name))[:200] for name in columns))
        else:
            self.num_beyond += 1

    def _launch(self, row: list[str]) -> None:
        if len(self.kernels) >= MAX_LAUNCHES:
            self.num_beyond += 1
            return
        indices = [index for index, name in enumerate(self.table.header) if COUNTER.fullmatch(name)]
        values = {
            self.table.titles[index]: number(row, index)
            for index in indices
            if "[" not in self.table.titles[index]
        }
        counters = {title: value for title, value in values.items() if value is not None}
        about = self._about(row)
        self.kernels.append(metrics_of(self._name(row), about, counters, self.device))

    def _name(self, row: list[str]) -> str:
        return SUFFIX.sub("", cell(row, self.table.column(*NAME)))[:MAX_NAME] or "(no name)"

    def _counter(self, row: list[str]) -> None:
        """One counter of a launch; those of several dies are one sum."""
        column = self.table.column
        title = cell(row, column("counter_name"))[:MAX_NAME]
        value = number(row, column("counter_value"))
        key = (whole(row, column("process_id")), whole(row, column("dispatch_id")))
        launch = self.counted.get(key)
        if launch is None and len(self.counted) < MAX_LAUNCHES:
            launch = self.counted[key] = _Counted(self._name(row), self._about(row))
        if launch is None or value is None or not title:
            self.num_beyond += 1
        else:
            launch.values[title] = launch.values.get(title, 0.0) + value

    def _about(self, row: list[str]) -> Mapping[str, int]:
        names = (
            ("items", ("grid_size", "grd")),
            ("group", ("workgroup_size", "wgr")),
            ("shared", ("lds_per_workgroup", "lds_block_size", "lds")),
            ("vector", ("arch_vgpr", "vgpr_count", "vgpr")),
            ("matrix", ("accum_vgpr", "accum_vgpr_count")),
            ("start", ("start_timestamp", "beginns")),
            ("end", ("end_timestamp", "endns")),
        )
        values = {key: whole(row, self.table.column(*columns)) for key, columns in names}
        return {key: value for key, value in values.items() if value is not None}

    def _top(self, row: list[str]) -> None:
        column = self.table.column
        count, total = number(row, column("count")), number(row, column("sum(ns)"))
        if count is None or total is None or len(self.totals) >= MAX_LAUNCHES:
            self.num_beyond += 1
            return
        mean = number(row, column("mean(ns)"))
        name = cell(row, column("kernel_name"))[:MAX_NAME]
        self.totals.append(KernelTotal(name=name, count=int(count), total_ns=total, mean_ns=mean))

    def recording(self, source: Source) -> KernelRecording:
        self.kernels += [
            metrics_of(launch.name, launch.about, launch.values, self.device)
            for launch in self.counted.values()
        ]
        problem, is_counted = self.table.stream.problem, self.kind in (LAUNCHES, COUNTERS)
        notes = true_notes(
            (problem, f"the file was read only in part: {problem}"),
            (self.table.num_damaged, DAMAGED),
            (self.num_beyond, "{n} row(s) were left out: too many, or without figures"),
            (is_counted, ONE_BY_ONE),
            (is_counted and self.device.num_cus is None, NO_SYSTEM),
            (not (self.kernels or self.totals or self.panel), "the table has no rows"),
        )
        return KernelRecording(
            format="rocprof-compute",
            paths=(source.label,),
            notes=tuple(notes),
            kernels=tuple(self.kernels),
            totals=tuple(self.totals),
            panel=tuple(self.panel),
            device=self.device.name,
        )


ONE_BY_ONE = (
    "kernels ran one by one while they were counted: their times are their own, and no timeline"
)
NO_SYSTEM = (
    "no sysinfo.csv lies beside it: the device's sizes are not known, and no share of a peak is "
    "told"
)


def _device_of(source: Source) -> Device:
    """What `sysinfo.csv` beside the table says of the device."""
    if not isinstance(source.path, Path) or source.archive is not None or source.offset:
        return Device()
    file = source.path.with_name(SYSTEM_FILE)
    if not file.is_file():
        return Device()
    table = Table(stream=Stream(file))
    try:
        row = next(table.rows(), None)
    except InputError:
        row = None
    if row is None:
        return Device()

    def figure(name: str) -> float | None:
        return number(row, table.column(name)) or None

    return Device(
        name=cell(row, table.column("gpu_model"))[:64] or None,
        num_cus=figure("cu_per_gpu"),
        clock_mhz=figure("max_sclk"),
        hbm_gb_s=figure("hbm_bw"),
        num_l2_channels=figure("total_l2_chan"),
        num_xcds=figure("num_xcd") or 1.0,
    )


READER = Reader(is_mine=is_mine, read_file=read_file)
