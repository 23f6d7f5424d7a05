"""Tables of nsys stats in words: kernels, and whatever else a report lists."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stepscope.api import KernelRecording, Table, table
from stepscope.core.recordings.kernels import KernelTotal
from stepscope.recordings.nsys.stats import (
    CALLS,
    COPY_SIZES,
    COPY_TIMES,
    KERNELS,
    OS_CALLS,
    PROJECTIONS,
    RANGES,
)

MAX_SHOWN = 50
TITLES = {
    KERNELS: "Kernels",
    CALLS: "Calls into CUDA",
    OS_CALLS: "Calls into the operating system, all threads",
    COPY_TIMES: "Copies and sets",
    COPY_SIZES: "Copies and sets, by size",
    RANGES: "NVTX ranges, on the host",
    PROJECTIONS: "NVTX ranges on the device: from the first work launched inside to the last",
}


def lines(recording: KernelRecording) -> Iterator[tuple[str, str]]:
    totals = recording.totals
    if totals:
        launches = sum(total.count for total in totals)
        busy_ms = sum(total.total_ns for total in totals) / 1e6
        yield "kernels", f"{busy_ms:.2f} ms in {launches} launches of {len(totals)} kernels"
    others = {other.of: other.rows for other in recording.others}
    for report, word in ((COPY_TIMES, "copies"), (CALLS, "calls into CUDA")):
        if rows := others.get(report):
            num = sum(row.count for row in rows)
            yield word, f"{sum(row.total_ns for row in rows) / 1e6:.2f} ms in {num}"


def tables(recording: KernelRecording) -> Iterator[Table]:
    others = {other.of: other for other in recording.others}
    for report, title in TITLES.items():
        rows = others[report].rows if report in others else ()
        if report == KERNELS:
            rows = recording.totals
        if rows and report == COPY_SIZES:
            cells = tuple(
                (row.name, f"{row.total_ns:.3f}", str(row.count)) for row in rows[:MAX_SHOWN]
            )
            yield Table(
                title=title,
                columns=("name", others[report].unit or "MB", "calls"),
                rows=cells,
                right=(1, 2),
            )
        elif rows:
            yield _times(title, rows, has_shares=report not in (PROJECTIONS, RANGES))


def _times(title: str, rows: Sequence[KernelTotal], *, has_shares: bool) -> Table:
    """Ranges stand in one another: their shares would not add up."""
    whole = sum(row.total_ns for row in rows)
    cells = tuple(
        (
            row.name,
            f"{row.total_ns / 1e6:.2f}",
            f"{100 * row.total_ns / whole:.1f} %" if has_shares and whole else "-",
            str(row.count),
            "-" if row.mean_ns is None else f"{row.mean_ns / 1e3:.1f}",
        )
        for row in rows[:MAX_SHOWN]
    )
    return table(title, "name|>ms|>share|>calls|>mean us", cells)
