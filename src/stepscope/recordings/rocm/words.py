"""Recordings of AMD's tools in words: totals of rocprof, counters of rocprof-compute."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stepscope.api import KernelMetrics, KernelRecording, Table, table
from stepscope.core.recordings.kernels import KernelTotal

MAX_SHOWN = 12


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
