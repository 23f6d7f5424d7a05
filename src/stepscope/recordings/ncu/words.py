"""A recording of Nsight Compute in words: its kernels by the time they took, and what Nsight
Compute itself says of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stepscope.api import KernelMetrics, KernelRecording, Table, table
from stepscope.core.recordings.kernels import Remark

MAX_ROWS = 50
NAME_CHARS = 160
TEXT_CHARS = 300


def lines(recording: KernelRecording) -> list[tuple[str, str]]:
    kernels = recording.kernels
    timed = [kernel.total_ns for kernel in kernels if kernel.total_ns is not None]
    launches = f"{len(kernels)} of {len({kernel.name for kernel in kernels})} kernels"
    devices = sorted({kernel.device for kernel in kernels if kernel.device})
    return [
        (
            "launches",
            launches + (f", {_ms(sum(timed))} together" if timed else ", no times recorded"),
        ),
        *([("device", ", ".join(devices))] if devices else []),
    ]


def tables(recording: KernelRecording) -> Iterator[Table]:
    yield _kernel_table(recording.kernels)
    yield _launch_table(recording.kernels)
    if recording.remarks:
        yield _remark_table(recording.remarks)


def _kernel_table(kernels: Sequence[KernelMetrics]) -> Table:
    return table(
        "Kernels, by time: of each unit's peak, and what warps wait for most",
        "kernel|>us|>compute|>tensor|>DRAM|>L2|waits for",
        (_kernel_row(kernel) for kernel in _by_time(kernels)),
    )


def _launch_table(kernels: Sequence[KernelMetrics]) -> Table:
    return table(
        (
            "How they were launched: warps held and allowed, what "
            "bounds them, FLOP for a byte of DRAM"
        ),
        "kernel|>warps|bound by|>waves|>L2 hits|>FLOP/B",
        (_launch_row(kernel) for kernel in _by_time(kernels)),
    )


def _by_time(kernels: Sequence[KernelMetrics]) -> list[KernelMetrics]:
    return sorted(kernels, key=lambda kernel: -(kernel.total_ns or 0.0))[:MAX_ROWS]


def _kernel_row(kernel: KernelMetrics) -> tuple[str, ...]:
    waits = next((stall for stall in kernel.stalls.items() if stall[0] != "selected"), None)
    return (
        _short(kernel.name),
        "-" if kernel.duration_ns is None else f"{kernel.duration_ns / 1e3:,.1f}",
        _percent(kernel.compute_throughput),
        _percent(kernel.tensor_pipe),
        _percent(kernel.dram_throughput),
        _percent(kernel.l2_throughput),
        "-" if waits is None else f"{waits[0]} {_percent(waits[1])}",
    )


def _launch_row(kernel: KernelMetrics) -> tuple[str, ...]:
    return (
        _short(kernel.name),
        f"{_percent(kernel.occupancy)} / {_percent(kernel.theoretical_occupancy)}",
        ", ".join(kernel.limiters) or "-",
        "-" if kernel.waves is None else f"{kernel.waves:,.2f}",
        _percent(kernel.l2_hits),
        "-" if kernel.intensity is None else f"{kernel.intensity:,.1f}",
    )


def _short(name: str) -> str:
    """Name without what every name of a C++ kernel begins with."""
    return name.removeprefix("void ").removeprefix("at::native::").removeprefix("at::")[:NAME_CHARS]


def _remark_table(remarks: Sequence[Remark]) -> Table:
    order = sorted(remarks, key=lambda remark: -(remark.gain or 0.0))
    rows = (
        (f"{remark.rule}, {_short(remark.kernel)[:40]}: {remark.text[:TEXT_CHARS]}", _gain(remark))
        for remark in order[:MAX_ROWS]
    )
    return table(
        "What Nsight Compute itself says, by the gain that it reckons", "remark|>its gain", rows
    )


def _gain(remark: Remark) -> str:
    return "-" if remark.gain is None else f"{remark.gain:.0f} % {remark.gain_kind}".rstrip()


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share * 100:.0f} %"


def _ms(ns: float) -> str:
    return f"{ns / 1e6:,.2f} ms"
