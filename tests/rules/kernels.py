"""Kernels with counters, as a profiler would have measured them, for the rules about single
kernels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepscope.core.recordings.auxiliary import Auxiliary
from stepscope.core.recordings.kernels import KernelMetrics
from stepscope.readers.format import Source
from stepscope.recordings.ncu import csv as ncu_csv
from tests.recording_texts import kernel_report
from tests.shared_data import SAMPLES

RAW = SAMPLES / "formats/ncu_raw.csv"


def kernel(name: str = "k", /, **fields: Any) -> KernelMetrics:
    """A launch that fills the device and is near no roof: each test adds the fault."""
    plain: dict[str, Any] = {
        "duration_ns": 1000.0,
        "grid": (2112, 1, 1),
        "block": (128, 1, 1),
        "num_multiprocessors": 132,
        "occupancy": 0.9,
        "theoretical_occupancy": 1.0,
        "waves": 8.0,
        "active": 0.98,
        "compute_throughput": 0.3,
        "dram_throughput": 0.3,
        "l2_throughput": 0.3,
        "l1_throughput": 0.3,
        "tensor_pipe": 0.0,
        "issue": 0.4,
    }
    return KernelMetrics(name=name, **(plain | fields))


def healthy_gemm() -> KernelMetrics:
    """As cuBLAS has it on an H200: few warps, barriers, and a tensor pipe that is full."""
    return kernel(
        "nvjet",
        occupancy=0.15,
        theoretical_occupancy=0.19,
        limiters=("registers", "shared memory"),
        waves=1.0,
        compute_throughput=0.9,
        tensor_pipe=0.9,
        issue=0.12,
        stalls={"barrier": 0.33, "gmma": 0.24, "long_scoreboard": 0.2, "selected": 0.05},
        dram_throughput=0.7,
        l2_served=0.38,
        l2_size_bytes=60 << 20,
        l2_read_bytes=3.1e9,
        dram_read_bytes=4.2e8,
        dram_write_bytes=6.2e7,
        spill_instructions=40.0,
        instructions=1000.0,
        load_sectors=32.0,
        load_sectors_ideal=4.0,
        global_load_sectors=1e6,
    )


def beside(*kernels: KernelMetrics, shares: Mapping[str, float] | None = None) -> Auxiliary:
    return Auxiliary(kernels=kernel_report(kernels=kernels), kernel_shares=shares or {})


def recorded() -> Auxiliary:
    """Twelve launches of a training step on an H200."""
    return Auxiliary(kernels=ncu_csv.read([Source(path=RAW, label="ncu_raw.csv")]))
