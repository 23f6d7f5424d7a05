"""Reads rocprof's tables of totals: `*_kernel_stats.csv` of rocprofv3 --stats, `results.stats.csv`
of rocprof v1.

    "Name","Calls","TotalDurationNs","AverageNs","Percentage","MinNs","MaxNs","StdDev"

One line for each name: of kernels, or of calls where the table is of an API
(`*_hip_api_stats.csv`). Nothing is told of when.
"""

from __future__ import annotations

import re

from stepscope.api import FormatError, KernelRecording, Reader, Source, Stream
from stepscope.core.numbers import true_notes
from stepscope.core.recordings.kernels import KernelTotal, OtherTotals
from stepscope.recordings.rocm.table import DAMAGED, Table, cell, header_of, number, whole

COLUMNS = {"name", "calls", "totaldurationns"}
CALL = re.compile(r"(?:__)?hip[A-Z]|hsa_|roctx[A-Z]|MEMORY_COPY|nccl(?!DevKernel|Kernel)[A-Z]")
"""How the names of API calls begin; those of kernels do not."""
MAX_ROWS = 100_000
MAX_NAME = 4096
WANTED = "Record with: rocprofv3 --kernel-trace --stats --output-format csv -- python train.py"


def is_mine(head: bytes, _name: str) -> bool:
    return set(header_of(head)) >= COLUMNS


def read_file(source: Source) -> KernelRecording:
    stream = Stream(source.path, source.offset, source.length)
    table = Table(stream=stream)
    totals: list[KernelTotal] = []
    num_beyond = 0
    for row in table.rows():
        if not set(table.header) >= COLUMNS:
            break
        total = _total(table, row)
        if total is None or len(totals) >= MAX_ROWS:
            num_beyond += 1
        else:
            totals.append(total)
    stream.refuse_empty(source.label, WANTED)
    if not set(table.header) >= COLUMNS:
        raise FormatError(f"{source.label} is no table of totals of rocprof. {WANTED}")
    kernels = [total for total in totals if not CALL.match(total.name)]
    notes = true_notes(
        (stream.problem, f"the file was read only in part: {stream.problem}"),
        (table.num_damaged, DAMAGED),
        (num_beyond, "{n} line(s) were left out: too many, or without figures"),
        (
            totals and not kernels,
            "these are calls, not kernels: give the table of kernels (kernel_stats.csv) too",
        ),
    )
    calls = tuple(total for total in totals if CALL.match(total.name))
    return KernelRecording(
        format="rocprof-stats",
        paths=(source.label,),
        notes=tuple(notes),
        totals=tuple(kernels),
        others=(OtherTotals(of="calls", rows=calls),) if calls else (),
    )


def _total(table: Table, row: list[str]) -> KernelTotal | None:
    column = table.column
    calls, total = whole(row, column("calls")), number(row, column("totaldurationns"))
    if not calls or total is None:
        return None
    return KernelTotal(
        name=cell(row, column("name")).removesuffix(".kd")[:MAX_NAME],
        count=calls,
        total_ns=total,
        mean_ns=number(row, column("averagens")),
    )


READER = Reader(is_mine=is_mine, read_file=read_file)
