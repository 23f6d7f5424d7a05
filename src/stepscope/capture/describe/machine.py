"""The machine this process may use: its cores, the quota on them, memory, threads and devices."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stepscope.capture.describe.peek import ask, attempt

NO_LIMIT_BYTES = 1 << 60
"""cgroup v1 says "no limit" by a number near 2**63."""
MOST_DEVICES = 64


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
    notes = []
    for index in range(min(attempt(cuda.device_count) or 0, MOST_DEVICES)):
        properties = attempt(cuda.get_device_properties, index)
        if properties is not None:
            major, minor = getattr(properties, "major", None), getattr(properties, "minor", None)
            notes.append(
                {
                    "index": index,
                    "name": getattr(properties, "name", None),
                    "capability": None if major is None else f"{major}.{minor}",
                    "arch": getattr(properties, "gcnArchName", None),
                    "memory_bytes": getattr(properties, "total_memory", None),
                    "num_sms": getattr(properties, "multi_processor_count", None),
                }
            )
    return notes


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Cores' worth of time that the control group grants; None where there is no limit.

    The tightest of all parents counts.
    """
    limits = [_words(folder / "cpu.max") for folder in _groups(root, "")]
    limits += [
        _words(folder / "cpu.cfs_quota_us") + _words(folder / "cpu.cfs_period_us")
        for folder in _groups(root, "cpu")
    ]
    quotas = [_quota(words) for words in limits]
    return min((quota for quota in quotas if quota is not None), default=None)


def memory_limit(root: Path = Path("/")) -> int | None:
    """Bytes that the control group grants; None where there is no limit."""
    files = [folder / "memory.max" for folder in _groups(root, "")]
    files += [folder / "memory.limit_in_bytes" for folder in _groups(root, "memory")]
    limits = [int(word) for file in files for word in _words(file)[:1] if word.isdecimal()]
    return min((limit for limit in limits if limit < NO_LIMIT_BYTES), default=None)


def throttle_file(root: Path = Path("/")) -> Path | None:
    """Where the control group counts the times it held this process back."""
    for controller in ("", "cpu"):
        for folder in _groups(root, controller):
            if _words(folder / "cpu.stat") and (
                _words(folder / "cpu.max") or _words(folder / "cpu.cfs_quota_us")
            ):
                return folder / "cpu.stat"
    return None


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """The folders of this process's control group and of its parents: v2 for "", else that
    controller of v1.

    In a container /proc may name the group as the host sees it, which is not there; the top folder
    then is the container's own.
    """
    lines = [word.split(":", 2) for word in _words(root / "proc/self/cgroup")]
    for path in [line[2] for line in lines if len(line) == 3 and controller in line[1].split(",")]:
        top = root / "sys/fs/cgroup" / controller
        inner = top / path.strip("/")
        while ".." not in inner.parts:
            yield inner
            if inner == top or top not in inner.parents:
                return
            inner = inner.parent


def _quota(words: list[str]) -> float | None:
    if len(words) < 2 or not words[0].isdecimal() or not words[1].isdecimal() or int(words[1]) == 0:
        return None
    return int(words[0]) / int(words[1])


def _words(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii", errors="replace").split()
    except OSError:
        return []


def _ram_bytes(root: Path) -> int:
    for line in (root / "proc/meminfo").read_text(encoding="ascii").splitlines():
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
