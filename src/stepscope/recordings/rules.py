"""The rules that judge the recordings of other tools alone, in the order in which they are asked. A
new one is its file, beside the tool's readers, and its line here; its code is the file's name.

They are imported where such a recording was given, or where all rules are listed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any

from stepscope.api import Advice, Advised, Auxiliary, Rule

MODULES = (
    "ncu.barrier_stalls",
    "ncu.dram_bound",
    "host.gil_contention",
    "system.idle_device",
    "ncu.idle_tensor_cores",
    "ncu.latency_bound",
    "job_log.failed_job",
    "host.full_cores",
    "job_log.killed_workers",
    "ncu.low_l2_hits",
    "ncu.low_occupancy",
    "ncu.memory_stalls",
    "system.one_busy_core",
    "host.page_cache_misses",
    "ncu.register_pressure",
    "host.short_host_memory",
    "rocm.slow_pair",
    "host.slow_storage",
    "host.stalled_cores",
    "flight.hung_collective",
    "network.link_errors",
    "network.network_congestion",
    "ncu.tail_wave",
    "ncu.uncoalesced_access",
    "system.underloaded_gpu",
    "system.uneven_devices",
)
CODES = tuple(name.rpartition(".")[2].replace("_", "-") for name in MODULES)
ADVICE = (
    "compiler.graph_breaks",
    "compiler.recompilation",
    "host.python_overhead",
    "host.serial_loader",
    "host.starved_loader",
    "nsys.allocator_churn",
    "nsys.device_sync",
    "nsys.fp32_matmul",
    "nsys.launch_overhead",
)
"""Modules whose `advise` says what recordings show of the core's findings of the same names."""
ADVISERS = ("frameworks.phase_advice", "job_log.advice", "host.standing")
"""Modules whose `advise` says what recordings show of the faults of several rules."""


@cache
def rules() -> tuple[Rule, ...]:
    return tuple(_module(name).RULE for name in MODULES)


def advice() -> Mapping[str, Callable[[Auxiliary], Advised]]:
    """Advice by the finding's code."""
    return {_module(name).CODE: _module(name).advise for name in ADVICE}


def advisers() -> tuple[Callable[[Auxiliary], Sequence[Advice]], ...]:
    return tuple(_module(name).advise for name in ADVISERS)


def _module(name: str) -> Any:
    return import_module(f"stepscope.recordings.{name}")
