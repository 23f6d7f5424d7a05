"""Recordings of AMD's tools in words: totals of rocprof, counters of rocprof-compute, MIOpen's
databases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from stepscope.core.recordings.find_db import DIRECTIONS, FindDb, Searched, Solver
from stepscope.core.recordings.kernels import KernelMetrics, KernelRecording, KernelTotal
from stepscope.report.recordings.text import Table, table

MAX_ROWS = 64
MAX_SHOWN = 12
FAR = 1.5
"""A solver that takes so much longer than the fastest is far from it."""
CHANNELS_LAST = {"NHWC": "NCHW", "NDHWC": "NCDHW"}
"""Each layout with channels last, and the same with channels first."""


def lines(recording: KernelRecording) -> Iterator[tuple[str, str]]:
    if recording.format == "rocprof-stats":
        totals = _all_totals(recording)
        yield "names", str(len(totals))
        yield "total", f"{sum(total.total_ns for total in totals) / 1e6:.1f} ms"
    elif recording.format == "rocprof-compute":
        if recording.kernels:
            yield "launches", str(len(recording.kernels))
        if recording.device:
            yield "device", recording.device
    elif recording.tuned is not None:
        tuned = recording.tuned
        yield "convolutions", f"{tuned.num_convolutions:,}, with {tuned.num_tuned:,} tuned solvers"
        yield "times", "no times are in it: the find-db (.ufdb.txt beside it) has them"
    elif recording.num_compiled is not None:
        ready = "ready to be loaded: a job with them starts sooner, and runs no faster"
        yield "compiled kernels", f"{recording.num_compiled:,}, {ready}"
    else:
        yield from _find_db_lines(recording.find_dbs)


def tables(recording: KernelRecording) -> Iterator[Table]:
    if recording.format == "rocprof-stats" and (totals := _all_totals(recording)):
        yield _totals_table(totals)
    elif recording.panel:
        yield table("Panel", "metric|>avg|unit|>peak|>% of peak", recording.panel)
    elif recording.kernels:
        longest = sorted(recording.kernels, key=lambda kernel: -(kernel.total_ns or 0))[:MAX_SHOWN]
        yield table(
            "Longest launches",
            "kernel|>us|>MFMA|>VALU|>HBM|>L2 hits|>LDS passes",
            map(_kernel_row, longest),
        )
    elif recording.tuned is not None and recording.tuned.solvers:
        solvers = tuple((name, f"{count:,}") for name, count in recording.tuned.solvers[:MAX_ROWS])
        yield table("tuned, by solver", "solver|>convolutions", solvers)
    elif recording.find_dbs:
        yield _searched_table(_searched(recording.find_dbs))


def _all_totals(recording: KernelRecording) -> list[KernelTotal]:
    return [*recording.totals, *(total for other in recording.others for total in other.rows)]


def _totals_table(totals: Sequence[KernelTotal]) -> Table:
    whole_ns = sum(total.total_ns for total in totals) or 1.0
    longest = sorted(totals, key=lambda total: -total.total_ns)[:MAX_SHOWN]
    rows = tuple(
        (
            total.name,
            str(total.count),
            f"{total.total_ns / 1e6:.2f}",
            f"{total.total_ns / total.count / 1e3:.1f}",
            f"{total.total_ns / whole_ns:.1%}",
        )
        for total in longest
    )
    return table("Totals", "name|>calls|>ms|>us each|>of all", rows)


def _kernel_row(kernel: KernelMetrics) -> tuple[str, ...]:
    ideal = kernel.shared_wavefronts_ideal
    passes = (
        kernel.shared_wavefronts / ideal if kernel.shared_wavefronts is not None and ideal else None
    )
    shares = (kernel.tensor_pipe, kernel.fma_pipe, kernel.dram_throughput, kernel.l2_hits)
    return (
        kernel.name,
        "-" if kernel.duration_ns is None else f"{kernel.duration_ns / 1e3:.1f}",
        *("-" if share is None else f"{share:.0%}" for share in shares),
        "-" if passes is None else f"{passes:.1f}x",
    )


def _searched(files: Sequence[FindDb]) -> list[Searched]:
    return [each for file in files for each in file.searched]


def _find_db_lines(files: Sequence[FindDb]) -> Iterator[tuple[str, str]]:
    searched = _searched(files)
    by_direction = Counter(each.problem.direction for each in searched)
    parts = ", ".join(
        f"{by_direction[direction]:,} {words}"
        for direction, words in DIRECTIONS.items()
        if by_direction[direction]
    )
    yield "convolutions", f"{len(searched):,}: {parts}"
    devices = Counter(
        f"{file.device}, {file.num_units} compute units"
        for file in files
        if file.device is not None
    )
    if devices:
        yield "device", "; ".join(devices)
    if any(file.is_system for file in files):
        yield "whose", "it came with MIOpen: AMD's own times, of many models and not of one job"
    yield "types", _counted(each.problem.dtype for each in searched)
    yield "layouts", _counted(each.problem.layout for each in searched)
    yield "fastest by", _counted(each.best.algorithm for each in searched)
    naive = [each for each in searched if each.best.is_naive]
    generic = [each for each in searched if each.is_generic and not each.best.is_naive]
    yield (
        "nothing better",
        (
            f"than the naive kernel for {len(naive):,}; than a kernel for any size for "
            f"{len(generic):,} more"
        ),
    )
    yield from _workspace(searched)
    yield from _layouts(searched)


def _workspace(searched: Sequence[Searched]) -> Iterator[tuple[str, str]]:
    """What memory the fastest want, and what a job that gives none gets."""
    wanting = [each for each in searched if each.best.workspace_bytes]
    if not wanting:
        yield "workspace", "the fastest of each needs none"
        return
    most = max(wanting, key=lambda each: each.best.workspace_bytes)
    without = [each for each in wanting if _is_far(each.best_without_workspace, each)]
    yield (
        "workspace",
        (
            f"the fastest of {len(wanting):,} need some, up to {_mb(most.best.workspace_bytes)} "
            f"({most.problem.words})"
        ),
    )
    yield (
        "without it",
        (
            f"{len(without):,} of these would take {FAR} times as long or more, or have no solver "
            "at all"
        ),
    )


def _is_far(solver: Solver | None, each: Searched) -> bool:
    return solver is None or solver.time_ms >= FAR * each.best.time_ms


def _layouts(searched: Sequence[Searched]) -> Iterator[tuple[str, str]]:
    """Where the same convolution was timed in two layouts."""
    by_sizes: dict[object, dict[str, Searched]] = {}
    for each in searched:
        by_sizes.setdefault(each.problem.sizes, {})[each.problem.layout] = each
    pairs = [
        (layouts[last].best.time_ms, layouts[first].best.time_ms)
        for layouts in by_sizes.values()
        for last, first in CHANNELS_LAST.items()
        if last in layouts and first in layouts
    ]
    if pairs:
        faster = sum(first >= FAR * last for last, first in pairs)
        slower = sum(last >= FAR * first for last, first in pairs)
        words = f"{faster:,} take {FAR} times as long or more without it, {slower:,} with it"
        yield (
            "channels_last",
            f"{len(pairs):,} convolutions were timed with and without it: {words}",
        )


def _searched_table(searched: Sequence[Searched]) -> Table:
    rows = []
    for each in sorted(searched, key=lambda problem: -problem.best.time_ms)[:MAX_ROWS]:
        free = each.best_without_workspace
        rows.append(
            (
                each.problem.label,
                f"{each.best.time_ms:,.3f}",
                f"{each.best.workspace_bytes / 1e6:,.1f}",
                "none" if free is None else f"{free.time_ms / each.best.time_ms:.1f} x",
                each.best.name,
            )
        )
    return table(
        "the longest, by their fastest solver: its time, its workspace, and how much longer the "
        "fastest without one takes",
        "convolution|>ms|>MB|>without|fastest solver",
        rows,
    )


def _counted(words: Iterator[str]) -> str:
    counts = Counter(words).most_common(8)
    return ", ".join(f"{count:,} {word}" for word, count in counts)


def _mb(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
