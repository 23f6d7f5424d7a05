"""The machine this process may use: its cores, the quota on them, memory, threads and devices."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from stepscope.capture.describe.peek import ask, attempt
from stepscope.protocol.control_group import cpu_quota, memory_limit

MAX_DEVICES = 64


def machine_notes(torch: Any, root: Path = Path("/")) -> dict[str, Any]:
    """What the process may use. Whatever this system does not say is None."""
    shm = attempt(os.statvfs, root / "dev/shm") if hasattr(os, "statvfs") else None
    return {
        "cpu_count": os.cpu_count(),
        "cpu_affinity": attempt(lambda: len(os.sched_getaffinity(0))),
        "cpu_quota": cpu_quota(root),
        "cpu_name": attempt(_cpu_name, root),
        "ram_bytes": attempt(_ram_bytes, root),
        "memory_limit_bytes": memory_limit(root),
        "shm_bytes": None if shm is None else shm.f_blocks * shm.f_frsize,
        "num_threads": ask(torch, "get_num_threads"),
        "num_interop_threads": ask(torch, "get_num_interop_threads"),
        "devices": device_notes(torch),
    }


def device_notes(torch: Any) -> list[dict[str, Any]]:
    """The visible GPUs, once the job uses one: asking earlier would set CUDA up in its place."""
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not attempt(cuda.is_initialized):
        return []
    notes, used = [], ask(cuda, "current_device")
    for index in range(min(attempt(cuda.device_count) or 0, MAX_DEVICES)):
        properties = attempt(cuda.get_device_properties, index)
        if properties is not None:
            major, minor = getattr(properties, "major", None), getattr(properties, "minor", None)
            notes.append(
                {
                    "index": index,
                    "is_used": index == used,
                    "uuid": attempt(lambda held=properties: str(held.uuid)),
                    "name": getattr(properties, "name", None),
                    "capability": None if major is None else f"{major}.{minor}",
                    "arch": getattr(properties, "gcnArchName", None),
                    "memory_bytes": getattr(properties, "total_memory", None),
                    "num_sms": getattr(properties, "multi_processor_count", None),
                }
            )
    return notes


def _ram_bytes(root: Path) -> int:
    for line in (root / "proc/meminfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _cpu_name(root: Path) -> str | None:
    # The whole file has a paragraph for each core, which takes long on a large machine.
    with (root / "proc/cpuinfo").open(encoding="utf-8", errors="replace") as file:
        for line, _ in zip(file, range(32), strict=False):
            if line.startswith("model name"):
                return line.partition(":")[2].strip()[:200]
    return None
