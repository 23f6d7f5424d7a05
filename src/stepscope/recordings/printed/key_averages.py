"""The table that `print(prof.key_averages().table())` writes, into a KernelReport.

    -----------------  ------------  ------------  ------------  ------------  ------------
                 Name    Self CPU %      Self CPU     Self CUDA   Self CUDA %    # of Calls
    -----------------  ------------  ------------  ------------  ------------  ------------
             aten::mm         1.20%       1.203ms      20.100ms        66.80%           120

Columns differ by release and by what was recorded; a rule of dashes shows where each one stands. A
row is a kernel, a call into the driver's runtime, or an operator with what it did itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from stepscope.api import FormatError, KernelRecording, Reader, Source, Stream
from stepscope.core.recordings.kernels import KernelReport, KernelTotal, OtherTotals
from stepscope.protocol.untrusted import finite_text
from stepscope.readers.text_lines import bounded_lines

FORMAT = "profiler-table"
MAX_LINE_BYTES = 1 << 20
MAX_ROWS = 100_000
MAX_NAME_CHARS = 4096
RECORD = 'print(prof.key_averages().table(sort_by="self_cuda_time_total", row_limit=50))'

HEADER = re.compile(rb"^[ \t]{0,256}Name[ \t]{2,64}Self CPU %[ \t]", re.MULTILINE)
RULE_LINE = re.compile(r"^\s*-{3,}(?:\s+-{3,})+\s*$")
GAP = re.compile(r"\s{2,}|\t")
TIME = re.compile(r"^([\d.]+)(s|ms|us|ns)$")
NS = {"s": 1e9, "ms": 1e6, "us": 1e3, "ns": 1.0}
SELF_DEVICE = re.compile(r"^Self (?:CUDA|XPU|MTIA|HPU|PrivateUse\w*)$", re.IGNORECASE)
CALL = re.compile(r"^(?:cuda|cu|hip)[A-Z]")
COPY = re.compile(r"^Mem(?:cpy|set)\b")
OPERATORS, CALLS, COPIES = "operators", "calls", "copies"


@dataclass(slots=True)
class Columns:
    """Where the table has what is read."""

    names: list[str]
    spans: list[tuple[int, int]]
    host: int
    device: int | None
    calls: int

    def cells(self, line: str) -> list[str] | None:
        """A row's cells; None for a line that is no row. Empty ones are seen by their place."""
        cells = GAP.split(line.strip())
        if len(cells) == len(self.names):
            return cells
        if len(line.rstrip()) > self.spans[-1][1] + 2:
            return None
        cells = [line[first:last].strip() for first, last in self.spans]
        return cells if cells[0] and cells[self.calls] else None


@dataclass(slots=True)
class ParsedTable:
    kernels: list[KernelTotal] = field(default_factory=list)
    copies: list[KernelTotal] = field(default_factory=list)
    calls: list[KernelTotal] = field(default_factory=list)
    operators: list[KernelTotal] = field(default_factory=list)
    host_names: set[str] = field(default_factory=set)
    """Names with time on the host: a range that has some on the device too is no kernel."""
    num_damaged: int = 0
    num_more: int = 0
    """Tables after the first."""
    num_left_out: int = 0

    def add(self, row: tuple[str, int, float, float]) -> None:
        name, count, host_ns, device_ns = row
        if host_ns:
            self.host_names.add(name)
            kept = self.calls if CALL.match(name) else self.operators
            total_ns = host_ns
        else:
            kept, total_ns = (self.copies if COPY.match(name) else self.kernels), device_ns
        if len(kept) >= MAX_ROWS:
            self.num_left_out += 1
        elif total_ns:
            mean_ns = total_ns / count if count else None
            kept.append(KernelTotal(name=name, count=count, total_ns=total_ns, mean_ns=mean_ns))


def is_mine(head: bytes, name: str) -> bool:  # noqa: ARG001
    return HEADER.search(head) is not None


def read(sources: Sequence[Source]) -> KernelReport:
    """A recording for each table's file."""
    return KernelReport(recordings=tuple(_read_file(source) for source in sources))


def _read_file(source: Source) -> KernelRecording:
    table = ParsedTable()
    stream = Stream(source.path, source.offset, source.length)
    with closing(stream.blocks()) as blocks:
        lines = (line for line, is_whole in bounded_lines(blocks, MAX_LINE_BYTES) if is_whole)
        _read_lines(lines, table)
    if not (table.kernels or table.calls or table.operators):
        why = f" ({stream.problem})" if stream.problem else ""
        raise FormatError(
            f"{source.label} has no row of a profiler's table{why}. Make one with: {RECORD}"
        )
    notes = [f"{source.label}: {stream.problem}"] if stream.problem else []
    if table.num_damaged:
        notes.append(f"{source.label}: {table.num_damaged} line(s) of a table were not understood")
    if table.num_more:
        notes.append(f"{source.label}: {table.num_more} more table(s) tell the same again")
    if table.num_left_out:
        notes.append(f"{source.label}: {table.num_left_out:,} row(s) were left out")
    parts = ((OPERATORS, table.operators), (CALLS, table.calls), (COPIES, table.copies))
    return KernelRecording(
        format=FORMAT,
        paths=(source.label,),
        notes=tuple(notes),
        totals=_longest_first(row for row in table.kernels if row.name not in table.host_names),
        others=tuple(OtherTotals(of=of, rows=_longest_first(rows)) for of, rows in parts if rows),
    )


def _longest_first(rows: Iterator[KernelTotal] | list[KernelTotal]) -> tuple[KernelTotal, ...]:
    return tuple(sorted(rows, key=lambda row: -row.total_ns))


def _read_lines(lines: Iterator[str], table: ParsedTable) -> None:
    """The first table, with whatever a job wrote around it: a second one tells the same, sorted or
    grouped in another way."""
    rule, columns, has_rows = "", None, False
    for line in lines:
        is_rule = RULE_LINE.match(line) is not None
        if is_rule and has_rows:
            break
        if is_rule:
            rule = line
        elif columns is None and line.lstrip().startswith("Name") and "Self CPU" in line:
            columns = _columns(line, rule)
        elif columns is not None and line.strip():
            row = _row(columns, line)
            has_rows = has_rows or row is not None
            if row is not None:
                table.add(row)
            else:
                table.num_damaged += 1
    table.num_more = sum(HEADER.match(line.encode()) is not None for line in lines)


def _columns(line: str, rule: str) -> Columns | None:
    """What the columns are; None where one that is needed is not there."""
    names = GAP.split(line.strip())
    spans = [match.span() for match in re.finditer(r"-+", rule)]
    if len(spans) != len(names):
        spans = [(0, 0)] * len(names)
    device = next((i for i, name in enumerate(names) if SELF_DEVICE.match(name)), None)
    if "Self CPU" not in names or "# of Calls" not in names:
        return None
    return Columns(
        names=names,
        spans=spans,
        host=names.index("Self CPU"),
        device=device,
        calls=names.index("# of Calls"),
    )


def _row(columns: Columns, line: str) -> tuple[str, int, float, float] | None:
    """Name, calls, nanoseconds on the host and on the device."""
    cells = columns.cells(line)
    if cells is None:
        return None
    count = finite_text(cells[columns.calls], 0, 1e15)
    host_ns = _ns(cells[columns.host])
    device_ns = 0.0 if columns.device is None else _ns(cells[columns.device])
    if count is None or host_ns is None or device_ns is None:
        return None
    return cells[0][:MAX_NAME_CHARS], int(count), host_ns, device_ns


def _ns(text: str) -> float | None:
    """Nanoseconds; `--` stands for none."""
    if text in ("", "--"):
        return 0.0
    match = TIME.match(text)
    number = None if match is None else finite_text(match[1], 0, 1e15)
    return None if match is None or number is None else number * NS[match[2]]


READER = Reader(is_mine=is_mine, read_together=read)
