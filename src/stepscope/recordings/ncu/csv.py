"""Nsight Compute's `--csv` output, of `--page raw` and of `--page details`, into a KernelReport.

    raw      one row for a launch, a column for every metric; the line under the names has the units
    details  one row for a metric of a launch: section, name as a person reads it, unit, value;
             rows of its rules between

Without `--csv` the details page is printed for people: printed.py.

Lines of the profiler (==PROF==) and of the program that was profiled may stand before, between and
behind.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field

from stepscope.api import FormatError, KernelMetrics, KernelRecording, Reader, Source, Stream
from stepscope.core.recordings.kernels import Dim, KernelReport, Remark
from stepscope.readers.text_lines import bounded_lines, csv_cells
from stepscope.recordings.ncu.metrics import is_wanted, kernel_of
from stepscope.recordings.ncu.printed import SIGN, PrintedDetails
from stepscope.recordings.ncu.units import has_decimal_comma, number_of, scale_of

LABELS = {
    "Duration": "gpu__time_duration.sum",
    "Elapsed Cycles": "sm__cycles_elapsed.max",
    "SM Active Cycles": "sm__cycles_active.avg",
    "Compute (SM) Throughput": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "Compute (SM) [%]": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "SM [%]": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "SOL SM": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "DRAM Throughput": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "SOL DRAM": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "L2 Cache Throughput": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "SOL L2 Cache": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "L1/TEX Cache Throughput": "l1tex__throughput.avg.pct_of_peak_sustained_active",
    "SOL L1/TEX Cache": "l1tex__throughput.avg.pct_of_peak_sustained_active",
    "L2 Hit Rate": "lts__t_sector_hit_rate.pct",
    "Warp Cycles Per Issued Instruction": "smsp__average_warp_latency_per_inst_issued.ratio",
    "One or More Eligible": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "Executed Instructions": "smsp__inst_executed.sum",
    "Local Memory Spilling Requests": "derived__local_spilling_requests",
    "Registers Per Thread": "launch__registers_per_thread",
    "Static Shared Memory Per Block": "launch__shared_mem_per_block_static",
    "Dynamic Shared Memory Per Block": "launch__shared_mem_per_block_dynamic",
    "Waves Per SM": "launch__waves_per_multiprocessor",
    "# SMs": "launch__sm_count",
    "Block Limit Registers": "launch__occupancy_limit_registers",
    "Block Limit Shared Mem": "launch__occupancy_limit_shared_mem",
    "Block Limit Warps": "launch__occupancy_limit_warps",
    "Block Limit SM": "launch__occupancy_limit_blocks",
    "Block Limit Barriers": "launch__occupancy_limit_barriers",
    "Theoretical Occupancy": "sm__maximum_warps_per_active_cycle_pct",
    "Achieved Occupancy": "sm__warps_active.avg.pct_of_peak_sustained_active",
}
"""Metrics by what the details page calls them, in Nsight Compute 2020 to 2025; older words stand
beside the newer ones. A label that has two meanings is distinguished by its unit."""
PERCENT_ONLY = {label for label, metric in LABELS.items() if "pct" in metric}
STALL = re.compile(r"(?:Stall )?(Selected|(?<=Stall )[A-Z][\w ]{1,40})")


def metric_of_label(label: str, unit: str) -> str | None:
    """The metric; None for one that no field is made of."""
    if (metric := LABELS.get(label)) is not None:
        return metric if label not in PERCENT_ONLY or unit in ("%", "") else None
    if match := STALL.fullmatch(label):
        reason = match[1].lower().replace(" ", "_")
        return f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio"
    return label if is_wanted(label) else None


MAX_LINE_BYTES = 4 << 20
"""A row of the raw page with every metric is 30 KiB, with all instances of each some 500."""
MAX_KERNELS = 20_000
"""Launches that are kept; Nsight Compute itself needs minutes for a hundred."""
MAX_COLUMNS = 20_000
MAX_METRICS = 512
"""Metrics of one launch that are kept; those that fields are made of are some 150."""
MAX_NAME_CHARS = 4096
MAX_PRINTED_CHARS = 8192
"""Characters of a line of what is printed for people."""
MAX_REMARKS = 200
MAX_ERRORS = 5

HEADER = re.compile(
    rb'^[ \t]{0,64}"?ID"?,"?Process ID"?,"?Process Name"?,"?Host Name"?,"?Kernel Name"?',
    re.MULTILINE,
)
LOG = re.compile(
    rb"^==PROF== (?:Connected to process|Profiling \"|Disconnected from|Report:)", re.MULTILINE
)
DIM = re.compile(r"\(?\s*(\d{1,10}),\s*(\d{1,10}),\s*(\d{1,10})\s*\)?")
SCALED = re.compile(r"time_duration|bytes|shared_mem_per|per_second")
"""Metrics that are printed in whatever unit suits the number."""
COMMAS = (
    "launches have decimal commas in their numbers and were left out; record or export them with "
    "LC_ALL=C"
)
UNITS = "launches of a table without its line of units are told without times and bytes"
EXPORT = "export it with: ncu --import FILE.ncu-rep --csv --page raw > ncu.csv"


def is_mine(head: bytes, name: str) -> bool:  # noqa: ARG001
    """Tell a file by the header of its table; or by its own messages, where a program's output
    fills the head."""
    return any(sign.search(head) is not None for sign in (HEADER, LOG, SIGN))


def read(sources: Sequence[Source]) -> KernelReport:
    """All launches of all files, in the order they were measured."""
    parsed = ParsedLaunches()
    for source in sources:
        _read_file(parsed, source)
    recording = KernelRecording(
        format="ncu-csv",
        paths=tuple(source.label for source in sources),
        notes=parsed.notes(),
        kernels=tuple(parsed.kernels),
        remarks=tuple(parsed.remarks),
    )
    return KernelReport(recordings=(recording,))


@dataclass(slots=True)
class Launch:
    """One launch of the details page, while its rows come in."""

    name: str
    device: str | None
    grid: Dim | None
    block: Dim | None
    values: dict[str, float] = field(default_factory=dict)
    has_commas: bool = False


@dataclass(slots=True)
class ParsedLaunches:
    kernels: list[KernelMetrics] = field(default_factory=list)
    remarks: list[Remark] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def add(self, kernel: KernelMetrics) -> None:
        if len(self.kernels) < MAX_KERNELS:
            self.kernels.append(kernel)
        else:
            self.counts[f"launches after the first {MAX_KERNELS} were left out"] += 1

    def notes(self) -> tuple[str, ...]:
        return (
            *self.problems,
            *(f"{count} {what}" for what, count in self.counts.items() if count),
        )


@dataclass(slots=True)
class Table:
    """The table that is being read: a file may hold several, each with its own header."""

    columns: dict[str, int]
    is_long: bool
    wanted: list[tuple[int, str]]
    """Places in the raw page's row of the metrics that fields are made of."""
    width: int
    """Cells of a row; a name may stand in the header twice."""
    scales: list[float] | None = None
    launches: dict[tuple[str, str, str], Launch] = field(default_factory=dict)
    """Launches of the details page, by process, number and name."""

    def cell(self, row: Sequence[str], column: str) -> str:
        index = self.columns.get(column)
        return row[index] if index is not None and index < len(row) else ""


def _read_file(parsed: ParsedLaunches, source: Source) -> None:
    stream = Stream(source.path, source.offset, source.length)
    before = len(parsed.kernels)
    errors: list[str] = []
    table: Table | None = None
    printed = PrintedDetails(metric_of_label)
    with closing(stream.blocks()) as blocks:
        for text, is_whole in bounded_lines(blocks, MAX_LINE_BYTES):
            if not is_whole:
                parsed.counts["lines too long to be of this format were left out"] += 1
                continue
            line = text.removeprefix("\ufeff")
            if table is None and len(line) < MAX_PRINTED_CHARS:
                printed.take(line, MAX_KERNELS)
            if line.startswith("==ERROR==") and len(errors) < MAX_ERRORS:
                errors.append(line.removeprefix("==ERROR==").strip()[:300])
            if not line or line.startswith("==") or not (row := csv_cells(line)):
                continue
            if row[0] == "ID" and "Kernel Name" in row:
                _finish(parsed, table)
                table = _table(row)
            elif table is not None:
                _take(parsed, table, row)
    _finish(parsed, table)
    for kernel in printed.kernels() if table is None else ():
        parsed.add(kernel)
    if stream.problem:
        parsed.problems.append(f"{source.label}: {stream.problem}")
    if len(parsed.kernels) == before:
        raise FormatError(
            _nothing(source.label, table, [COMMAS] if COMMAS in parsed.counts else [], errors)
        )


def _table(row: Sequence[str]) -> Table:
    columns = {name: index for index, name in enumerate(row[:MAX_COLUMNS])}
    is_long = "Metric Name" in columns and "Metric Value" in columns
    wanted = (
        [] if is_long else [(index, name) for name, index in columns.items() if is_wanted(name)]
    )
    return Table(
        columns=columns,
        is_long=is_long,
        wanted=wanted[:MAX_METRICS],
        width=min(len(row), MAX_COLUMNS),
    )


def _take(parsed: ParsedLaunches, table: Table, row: list[str]) -> None:
    if not table.is_long and table.scales is None and not row[0]:
        table.scales = [scale_of(unit) for unit in row[:MAX_COLUMNS]]
    elif not row[0].isdecimal():
        return  # The program's own output.
    elif len(row) < (table.width if not table.is_long else table.columns["Metric Value"] + 1):
        parsed.counts["rows were cut short and left out"] += 1
    elif table.is_long:
        _take_metric(parsed, table, row)
    elif any(has_decimal_comma(row[index]) for index, _ in table.wanted):
        parsed.counts[COMMAS] += 1
    else:
        parsed.counts[UNITS] += table.scales is None
        parsed.add(_wide(table, row))


def _wide(table: Table, row: Sequence[str]) -> KernelMetrics:
    values: dict[str, float] = {}
    for index, name in table.wanted:
        if table.scales is None and SCALED.search(name):
            continue
        if (value := number_of(row[index])) is not None:
            values[name] = value * (
                table.scales[index] if table.scales and index < len(table.scales) else 1.0
            )
    launch = _launch(table, row)
    return kernel_of(
        launch.name, values, device=launch.device, grid=launch.grid, block=launch.block
    )


def _launch(table: Table, row: Sequence[str]) -> Launch:
    return Launch(
        name=table.cell(row, "Kernel Name")[:MAX_NAME_CHARS],
        device=table.cell(row, "device__attribute_display_name")[:100] or None,
        grid=_dim(table.cell(row, "Grid Size")),
        block=_dim(table.cell(row, "Block Size")),
    )


def _take_metric(parsed: ParsedLaunches, table: Table, row: Sequence[str]) -> None:
    key = (table.cell(row, "Process ID"), row[0], table.cell(row, "Kernel Name"))
    launch = table.launches.get(key)
    if launch is None:
        if len(table.launches) >= MAX_KERNELS:
            parsed.counts[f"rows of launches after the first {MAX_KERNELS} were left out"] += 1
            return
        launch = table.launches.setdefault(key, _launch(table, row))
    if rule := table.cell(row, "Rule Name"):
        _take_rule(parsed, table, row, rule, launch.name)
        return
    unit = table.cell(row, "Metric Unit")
    metric = metric_of_label(table.cell(row, "Metric Name"), unit)
    cell = table.cell(row, "Metric Value")
    value = number_of(cell)
    launch.has_commas = launch.has_commas or (metric is not None and has_decimal_comma(cell))
    if metric is not None and value is not None and len(launch.values) < MAX_METRICS:
        launch.values.setdefault(metric, value * scale_of(unit))


def _take_rule(
    parsed: ParsedLaunches, table: Table, row: Sequence[str], rule: str, kernel: str
) -> None:
    if table.cell(row, "Rule Type") not in ("OPT", "WRN"):
        return
    if len(parsed.remarks) >= MAX_REMARKS:
        parsed.counts["remarks of Nsight Compute were left out"] += 1
        return
    gain = number_of(table.cell(row, "Estimated Speedup"))
    kind = table.cell(row, "Estimated Speedup Type")[:20]
    text = table.cell(row, "Rule Description")[:2000]
    parsed.remarks.append(
        Remark(kernel=kernel, rule=rule[:100], text=text, gain=gain, gain_kind=kind)
    )


def _finish(parsed: ParsedLaunches, table: Table | None) -> None:
    for launch in () if table is None else table.launches.values():
        if launch.has_commas:
            parsed.counts[COMMAS] += 1
        else:
            parsed.add(
                kernel_of(
                    launch.name,
                    launch.values,
                    device=launch.device,
                    grid=launch.grid,
                    block=launch.block,
                )
            )


def _dim(text: str) -> Dim | None:
    match = DIM.fullmatch(text.strip())
    return None if match is None else (int(match[1]), int(match[2]), int(match[3]))


def _nothing(
    label: str, table: Table | None, left_out: Sequence[str], errors: Sequence[str]
) -> str:
    if errors:
        return f"{label}: Nsight Compute measured no kernel; it says: {'; '.join(errors)}"
    if left_out:
        return f"{label}: nothing is left of it: its {'; '.join(left_out)}"
    if table is None:
        return (
            f"{label}: output of Nsight Compute without its CSV table; record with --csv --page "
            f"raw, or {EXPORT}"
        )
    return (
        f"{label}: Nsight Compute's table has no kernel; see that --kernel-name, --launch-skip, "
        "--nvtx-include meet one"
    )


READER = Reader(is_mine=is_mine, read_together=read)
