"""A profiler's printed table in words: what takes the most, on the device and on the host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stepscope.api import KernelRecording, Table, table
from stepscope.core.recordings.kernels import KernelTotal
from stepscope.recordings.printed.key_averages import CALLS, COPIES, OPERATORS

MAX_SHOWN = 50
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
        yield _times("Kernels", recording.totals)
    for other in recording.others:
        yield _times(TITLES[other.of], other.rows)


def _times(title: str, rows: Sequence[KernelTotal]) -> Table:
    whole = sum(row.total_ns for row in rows) or 1.0
    cells = tuple(
        (
            row.name,
            f"{row.total_ns / 1e6:.2f}",
            f"{100 * row.total_ns / whole:.1f} %",
            str(row.count),
            "-" if row.mean_ns is None else f"{row.mean_ns / 1e3:.1f}",
        )
        for row in rows[:MAX_SHOWN]
    )
    return table(title, "name|>ms|>share|>calls|>mean us", cells)


def _sum(rows: tuple[KernelTotal, ...]) -> str:
    ms, num = sum(row.total_ns for row in rows) / 1e6, sum(row.count for row in rows)
    return f"{ms:.2f} ms in {num:,} of {len(rows)} names"
