"""A profiler's printed table in words: what takes the most, on the device and on the host."""

from __future__ import annotations

from collections.abc import Iterator

from stepscope.api import KernelRecording, Table
from stepscope.core.recordings.kernels import KernelTotal
from stepscope.recordings.nsys.words import times
from stepscope.recordings.printed.key_averages import CALLS, COPIES, OPERATORS

TITLES = {
    OPERATORS: "Operators: the host's own time",
    CALLS: "Calls into the device's runtime",
    COPIES: "Copies and sets",
}


def lines(recording: KernelRecording) -> Iterator[tuple[str, str]]:
    if recording.totals:
        yield "kernels", _sum(recording.totals)
    for other in recording.others:
        yield other.of, _sum(other.rows)


def tables(recording: KernelRecording) -> Iterator[Table]:
    if recording.totals:
        yield times("Kernels", recording.totals, has_shares=True)
    for other in recording.others:
        yield times(TITLES[other.of], other.rows, has_shares=True)


def _sum(rows: tuple[KernelTotal, ...]) -> str:
    ms, num = sum(row.total_ns for row in rows) / 1e6, sum(row.count for row in rows)
    return f"{ms:.2f} ms in {num:,} of {len(rows)} names"
