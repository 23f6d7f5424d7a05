"""Tables of `nsys stats`, one report or several in one output, into a KernelReport.

    Processing [run.sqlite] with [.../cuda_gpu_kern_sum.py]...
    Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name

Without `--format csv` the same columns stand under one another, two spaces apart. A table begins
with its names, whatever stands before them; the names tell which report it is. Older releases
write `Time(%)` and `Average`, and --timeunit another unit behind each name.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field

from stepscope.api import FormatError, KernelRecording, Reader, Source, Stream
from stepscope.core.recordings.kernels import KernelReport, KernelTotal, OtherTotals
from stepscope.protocol.untrusted import finite_text
from stepscope.readers.text_lines import bounded_lines, csv_cells

MAX_LINE_BYTES = 1 << 20
MAX_ROWS = 100_000
"""Rows of one report at most. There is a row per name."""
MAX_NAME_CHARS = 4096
RECORD = (
    "nsys stats --format csv --report cuda_gpu_kern_sum,cuda_api_sum,nvtx_gpu_proj_sum run.nsys-rep"
)

NEXT = rb'"?(?:,|[ \t]{2,64})"?'
HEADER = re.compile(
    rb'^[ \t]{0,64}"?(?:Time ?\(%\)'
    + NEXT
    + rb"Total Time|Range"
    + NEXT
    + rb"Style"
    + NEXT
    + rb"Total Proj Time"
    + rb"|Total(?: Size)? \([KMGT]?i?B\)"
    + NEXT
    + rb"(?:Count|Operations))",
    re.MULTILINE,
)
APART = re.compile(r"\s{2,}")
RULE_LINE = re.compile(r"^\s*-{2,}(?:\s+-{2,})+\s*$")
SUBJECT = re.compile(r"\[([^\[\]]{1,4096})\] with \[")
"""Recording in a line such as `Processing [run.sqlite] with [.../cuda_gpu_kern_sum.py]...`: one
output may be of several recordings."""
REPORT_NAME = re.compile(r"([a-z]\w*sum)\b", re.IGNORECASE)
OTHERS = re.compile(r"vulkan|opengl|nvvideo|syscall|mpi|dx1|openacc|openmp|um_")
"""Reports with the same columns that are not about CUDA."""
UNIT = re.compile(r"^(.*?)\s*\(([^()]*)\)$")
NS = {"ns": 1.0, "nsec": 1.0, "us": 1e3, "usec": 1e3, "ms": 1e6, "msec": 1e6, "s": 1e9, "sec": 1e9}
KERNELS, CALLS, OS_CALLS, COPY_TIMES, COPY_SIZES, RANGES, PROJECTIONS = (
    "cuda_gpu_kern_sum", "cuda_api_sum", "osrt_sum", "cuda_gpu_mem_time_sum",
    "cuda_gpu_mem_size_sum", "nvtx_sum", "nvtx_gpu_proj_sum",
)  # fmt: skip
ALIKE = {"average": "avg", "minimum": "min", "maximum": "max", "median": "med"}
COUNTS = ("instances", "num calls", "count", "range instances", "calls", "operations")
NAMES = ("name", "range", "operation")


@dataclass(slots=True)
class Row:
    """A line of a report: times in nanoseconds, sizes as written."""

    name: str
    count: int | None
    total: float
    means: dict[str, float | None]


@dataclass(slots=True)
class Head:
    """The names of a table's columns, without their units."""

    names: list[str]
    units: list[str]
    report: str
    is_text: bool = False
    """Columns stand under one another, with no commas between them."""

    def index_of(self, *wanted: str) -> int | None:
        return next((self.names.index(name) for name in wanted if name in self.names), None)


@dataclass(slots=True)
class ParsedReports:
    reports: dict[str, list[Row]] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def add(self, report: str, row: Row) -> None:
        rows = self.reports.setdefault(report, [])
        if len(rows) < MAX_ROWS:
            rows.append(row)
        else:
            self.counts[f"row(s) of {report} after the first {MAX_ROWS} were left out"] += 1


def is_mine(head: bytes, name: str) -> bool:  # noqa: ARG001
    """Tell a file by the names of a table's first columns."""
    return HEADER.search(head) is not None


def read(sources: Sequence[Source]) -> KernelReport:
    """All reports of all files; kernels of one name, which a release may list by grid, are one."""
    parsed = ParsedReports()
    for source in sources:
        _read_file(parsed, source)
    recording = KernelRecording(
        format="nsys-stats",
        paths=tuple(source.label for source in sources),
        notes=(
            *parsed.problems,
            *(f"{count} {what}" for what, count in parsed.counts.items() if count),
        ),
        totals=_totals(parsed.reports.get(KERNELS, [])),
        others=tuple(_others(parsed, report) for report in parsed.reports if report != KERNELS),
    )
    return KernelReport(recordings=(recording,))


def _others(parsed: ParsedReports, report: str) -> OtherTotals:
    mean = "proj avg" if report == PROJECTIONS else "avg"
    rows = sorted(parsed.reports[report], key=lambda row: -row.total)
    return OtherTotals(
        of=report,
        rows=tuple(
            KernelTotal(
                name=row.name,
                count=row.count or 0,
                total_ns=row.total,
                mean_ns=row.means.get(mean),
            )
            for row in rows
        ),
        unit=parsed.units.get(report, "") if report == COPY_SIZES else "",
    )


def _read_file(parsed: ParsedReports, source: Source) -> None:
    stream = Stream(source.path, source.offset, source.length)
    hint, head, num_rows = source.path.name, None, 0
    subject, seen = "", set()
    with closing(stream.blocks()) as blocks:
        for line, is_whole in bounded_lines(blocks, MAX_LINE_BYTES):
            if not is_whole:
                parsed.counts[f"line(s) longer than {MAX_LINE_BYTES >> 10} KiB were left out"] += 1
            elif HEADER.match(line.encode("utf-8", "replace")):
                head = _head(line, hint)
                if head is None:
                    parsed.counts["table(s) of a kind that is not read were left out"] += 1
                elif (subject, head.report) in seen:
                    # cuda_gpu_kern_gb_sum has the same kernels once more, by their grids.
                    parsed.counts["table(s) that tell the same again were left out"] += 1
                    head = None
                else:
                    parsed.units.setdefault(head.report, _unit(head))
            elif head is not None and head.is_text and RULE_LINE.match(line):
                continue
            elif head is not None and (row := _row(head, line)) is not None:
                parsed.add(head.report, row)
                seen.add((subject, head.report))
                num_rows += 1
            else:
                is_damaged = (
                    head is not None and ("," in line or head.is_text) and bool(line.strip())
                )
                parsed.counts["line(s) of a table were not understood"] += is_damaged
                if line.strip():
                    hint = line
                if not is_damaged:
                    head = None
                if match := SUBJECT.search(line):
                    subject = match[1]
    if stream.problem:
        parsed.problems.append(f"{source.label}: {stream.problem}")
    if not num_rows:
        why = f" ({stream.problem})" if stream.problem else ""
        raise FormatError(
            f"{source.label} has no row of a table of nsys stats{why}. Make one with: {RECORD}"
        )


def _head(line: str, hint: str) -> Head | None:
    """What a table's columns are; None where it is none of the reports that are read."""
    is_text = "," not in line
    cells = APART.split(line.strip()) if is_text else csv_cells(line) or []
    names, units = [], []
    for cell in cells:
        match = UNIT.match(cell.strip())
        name, unit = (match[1], match[2]) if match else (cell.strip(), "")
        names.append(ALIKE.get(name.lower(), name.lower()))
        units.append(unit)
    report = _report(names, units, hint)
    return None if report is None else Head(names, units, report, is_text)


def _report(names: list[str], units: list[str], hint: str) -> str | None:
    # cuda_api_gpu_sum, which mixes what others list; MPI's events.
    if "category" in names or "source" in names:
        return None
    if "total proj time" in names:
        return PROJECTIONS
    if "style" in names and "range" in names:
        return RANGES
    if "operation" in names:
        if "total time" in names:
            return COPY_TIMES
        return COPY_SIZES if any("B" in unit for unit in units) else None
    names_in_hint = REPORT_NAME.findall(hint)
    report = names_in_hint[-1].lower() if names_in_hint else ""
    if "num calls" in names and "name" in names:
        if "osrt" in report:
            return OS_CALLS
        return None if OTHERS.search(report) else CALLS
    if "range" in names:
        return RANGES
    is_kernels = "name" in names and "instances" in names and not OTHERS.search(report)
    return KERNELS if is_kernels else None


def _unit(head: Head) -> str:
    index = head.index_of("total", "total size")
    return head.units[index] if index is not None else ""


def _row(head: Head, line: str) -> Row | None:
    """A row of the table; None for a line that is none."""
    if head.is_text:
        cells = APART.split(line.strip(), maxsplit=len(head.names) - 1)
    else:
        cells = csv_cells(line) or []
    name_index = head.index_of(*NAMES)
    total_index = head.index_of("total proj time", "total time", "total", "total size")
    if len(cells) != len(head.names) or name_index is None or total_index is None:
        return None
    total = _number(head, cells, total_index)
    if total is None:
        return None
    count_index = head.index_of(*COUNTS)
    count = _number(head, cells, count_index) if count_index is not None else None
    means: dict[str, float | None] = {
        name: _number(head, cells, head.names.index(name))
        for name in ("avg", "proj avg")
        if name in head.names
    }
    name = cells[name_index][:MAX_NAME_CHARS]
    return Row(
        name=name.lstrip(":") if "range" in head.names else name,
        count=None if count is None else int(count),
        total=total,
        means=means,
    )


def _number(head: Head, cells: Sequence[str], index: int) -> float | None:
    """A cell's number, a time as nanoseconds; None where there is none."""
    number = finite_text(cells[index].replace(",", ""), 0, 1e18)
    # Releases that write no unit mean nanoseconds.
    return None if number is None else number * NS.get(head.units[index].lower(), 1.0)


def _totals(rows: Sequence[Row]) -> tuple[KernelTotal, ...]:
    by_name: dict[str, list[Row]] = {}
    for row in rows:
        by_name.setdefault(row.name, []).append(row)
    totals = [_total(name, mine) for name, mine in by_name.items()]
    return tuple(sorted(totals, key=lambda total: -total.total_ns))


def _total(name: str, rows: Sequence[Row]) -> KernelTotal:
    count, total = sum(row.count or 0 for row in rows), sum(row.total for row in rows)
    return KernelTotal(
        name=name,
        count=count,
        total_ns=total,
        mean_ns=total / count if count else None,
    )


READER = Reader(is_mine=is_mine, read_together=read)
