"""What this machine allows: files of the kernel and of the driver, packages, and room. Nothing is
changed, and nothing is run."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from msgspec import Struct

from stepscope.core.compiled import in_use
from stepscope.process.isolation import find_tool
from stepscope.protocol.control_group import cpu_quota, memory_limit
from stepscope.readers.cache import cache_folder

State = Literal["yes", "partly", "no", "not here"]


class MachineCheck(Struct, frozen=True):
    name: str
    state: State
    words: str
    """What was seen."""
    action: str = ""
    """What to do where it is not all there; empty where nothing is to be done."""
    is_needed: bool = False
    """Whether nothing can be recorded without it."""


PARAMS = Path("proc/driver/nvidia/params")
DRIVER = Path("proc/driver/nvidia/version")
AMD = Path("sys/module/amdgpu")
PTRACE = Path("proc/sys/kernel/yama/ptrace_scope")
PERF = Path("proc/sys/kernel/perf_event_paranoid")
MAX_READ = 4096
MIN_FREE_BYTES = 2 << 30
"""A recording of three steps is tens of megabytes a rank; a trace with stacks ten times that."""
MIN_SHM_BYTES = 1 << 30
"""What 8 loader workers with two batches of images each pass through it."""
EXTRAS = (
    ("attach", "py_spy", "py-spy", "stepscope attach, stacks in triage"),
    ("sql", "duckdb", "duckdb", "stepscope query"),
    ("notebook", "pandas", "pandas", "data frames and plots in a notebook"),
    ("remote", "fsspec", "fsspec", "traces in object storage"),
    ("tune", "optuna", "optuna", "stepscope tune"),
    ("cluster", "distributed", "dask-worker", "ranks read on a Dask cluster"),
    ("mcp", "mcp", "mcp", "stepscope mcp, for agents"),
)
Loader = Callable[[str], object]


def machine_checks(
    folder: Path, root: Path = Path("/"), load: Loader = ctypes.CDLL
) -> tuple[MachineCheck, ...]:
    """Everything; `folder` is where runs would be kept, `root` where the system's files are."""
    return tuple(_checks(folder, root, load))


def _checks(folder: Path, root: Path, load: Loader) -> Iterator[MachineCheck]:
    yield _torch()
    yield _room("room for runs", folder, is_needed=True)
    cache = cache_folder()
    if cache is not None:
        yield _room("room for the cache", cache, is_needed=False)
    yield _scanner()
    yield from _gpu(root, load)
    yield _ptrace(root)
    yield _perf(root)
    yield _proc(root)
    yield _cores(root)
    yield _shared_memory(root)
    yield from _extras()


def _torch() -> MachineCheck:
    try:
        installed = version("torch")
    except PackageNotFoundError:
        return MachineCheck(
            "torch",
            "no",
            "not installed in this Python",
            action="run stepscope with the job's own Python: traces can be read without torch, "
            "runs not recorded",
            is_needed=True,
        )
    return MachineCheck("torch", "yes", installed, is_needed=True)


def _room(name: str, folder: Path, *, is_needed: bool) -> MachineCheck:
    there = next(path for path in (folder, *folder.absolute().parents) if path.is_dir())
    free = shutil.disk_usage(there).free
    if not os.access(there, os.W_OK):
        words, action = f"{there} cannot be written", "give --out a folder that can be written"
        return MachineCheck(name, "no", words, action=action, is_needed=is_needed)
    words = f"{free / 1e9:.1f} GB free in {there}"
    if free < MIN_FREE_BYTES:
        action = "make room, or give --out a folder with more: a recording may be cut off"
        return MachineCheck(name, "partly", words, action=action)
    return MachineCheck(name, "yes", words, is_needed=is_needed)


def _scanner() -> MachineCheck:
    used = in_use()
    is_compiled = used == "compiled"
    return MachineCheck(
        "compiled scanner",
        "yes" if is_compiled else "partly",
        used,
        action=""
        if is_compiled
        else "install stepscope where a C compiler is (pip install --no-binary stepscope "
        "stepscope): large traces are then read several times faster",
    )


def _gpu(root: Path, load: Loader) -> Iterator[MachineCheck]:
    driver = _text(root / DRIVER)
    if not driver:
        if (root / AMD).exists():
            yield MachineCheck("GPU", "yes", "AMD's driver is loaded")
            return
        action = "steps on the CPU are recorded; for a GPU in a container pass it in (--gpus all)"
        yield MachineCheck("GPU", "not here", "no driver", action=action)
        return
    match = re.search(r"\b(\d{3}\.[\d.]{1,12})\b", driver)
    words = f"NVIDIA's driver {match[1]}" if match else "NVIDIA's driver"
    yield MachineCheck("GPU", "yes", words)
    yield _nvml(load)
    yield _counters(root)


def _nvml(load: Loader) -> MachineCheck:
    try:
        load("libnvidia-ml.so.1")
    except OSError:
        return MachineCheck(
            "NVML",
            "no",
            "libnvidia-ml.so.1 does not load: clocks, power and temperature are not sampled",
            action="in a container: NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        )
    return MachineCheck("NVML", "yes", "clocks, power, temperature, processes")


def _counters(root: Path) -> MachineCheck:
    """CUPTI's activities, which the profiler needs, are everybody's; counters may be root's."""
    only_root = re.search(r"RmProfilingAdminOnly:\s*1", _text(root / PARAMS))
    if only_root is None or _is_root():
        return MachineCheck("CUPTI counters", "yes", "ncu and range profiling are allowed")
    return MachineCheck(
        "CUPTI counters",
        "partly",
        "timelines can be recorded; counters (ncu) are root's",
        action="options nvidia NVreg_RestrictProfilingToAdminUsers=0 in /etc/modprobe.d, then load "
        "the driver anew; or run ncu as root",
    )


def _ptrace(root: Path) -> MachineCheck:
    name, scope = "ptrace (attach)", _number(root / PTRACE)
    if scope is None or scope == 0 or _is_root():
        return MachineCheck(name, "yes", "running processes of yours can be looked into")
    if scope == 3:
        return MachineCheck(
            name,
            "no",
            "kernel.yama.ptrace_scope is 3: nobody may, until the next start",
            action="stepscope run records from inside the job, which needs no ptrace",
        )
    return MachineCheck(
        name,
        "partly",
        f"kernel.yama.ptrace_scope is {scope}: stepscope attach needs root",
        action="sudo sysctl kernel.yama.ptrace_scope=0; in a container --cap-add SYS_PTRACE",
    )


def _perf(root: Path) -> MachineCheck:
    level = _number(root / PERF)
    if level is None:
        return MachineCheck("perf events", "not here", "this kernel has none to ask")
    if level <= 1 or _is_root():
        return MachineCheck("perf events", "yes", f"perf_event_paranoid is {level}")
    return MachineCheck(
        "perf events",
        "partly",
        f"perf_event_paranoid is {level}: perf sees no kernel, or nothing",
        action="sudo sysctl kernel.perf_event_paranoid=1 (needed for perf alone)",
    )


def _proc(root: Path) -> MachineCheck:
    wanted = ("stat", "schedstat", "io")
    missing = [name for name in wanted if not os.access(root / "proc/self" / name, os.R_OK)]
    if not missing:
        words = "cores, waits for a core, and input of each process"
        return MachineCheck("/proc", "yes", words)
    state = "no" if "stat" in missing else "partly"
    return MachineCheck(
        "/proc",
        "no" if state == "no" else "partly",
        f"/proc/self/{', '.join(missing)} cannot be read",
        action="what the host did is not measured; mount /proc in the container",
    )


def _cores(root: Path) -> MachineCheck:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quota, memory = cpu_quota(root), memory_limit(root)
    words = f"{cores} cores"
    words += "" if quota is None else f", {quota:g} by the container's quota"
    words += "" if memory is None else f", {memory / 1e9:.0f} GB of memory for the container"
    is_held = quota is not None and cores is not None and quota < cores
    return MachineCheck(
        "cores",
        "partly" if is_held else "yes",
        words,
        action="loader workers and threads share the quota, not the cores" if is_held else "",
    )


def _shared_memory(root: Path) -> MachineCheck:
    path = root / "dev/shm"
    if not path.is_dir():
        action = "loader workers pass batches through it; mount it, or --ipc=host in a container"
        return MachineCheck("shared memory", "no", "no /dev/shm", action=action)
    size = shutil.disk_usage(path).total
    words = f"{size / 1e9:.1f} GB"
    if size < MIN_SHM_BYTES:
        action = "docker run --shm-size 8g, or a memory-backed volume on /dev/shm in Kubernetes"
        return MachineCheck("shared memory", "partly", words, action=action)
    return MachineCheck("shared memory", "yes", words)


def _extras() -> Iterator[MachineCheck]:
    for extra, module, package, what in EXTRAS:
        is_there = find_spec(module) is not None or find_tool(package) is not None
        yield MachineCheck(
            f"extra {extra}",
            "yes" if is_there else "not here",
            what,
            action="" if is_there else f"pip install 'stepscope[{extra}]'",
        )


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(MAX_READ).decode("utf-8", "replace")
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if re.fullmatch(r"-?\d{1,3}", text) else None


def _is_root() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0
