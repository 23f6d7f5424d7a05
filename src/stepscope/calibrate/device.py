"""The device that is measured, and what is known of it."""

from __future__ import annotations

import importlib
import os
import time
from pathlib import Path
from typing import Any

from msgspec import Struct

from stepscope.calibrate.timer import DeviceTimer, HostTimer, Timer
from stepscope.core.calibrated import Machine
from stepscope.core.hardware import DeviceSpec
from stepscope.core.trace import DeviceProperties
from stepscope.errors import UsageError
from stepscope.hardware.lookup import find_spec

USUAL_CACHE_BYTES = 64 << 20
"""Where the device does not say: an H100 has 50 MB of L2, servers' CPUs 32 MB and more of L3."""

WARM_UP_S = 0.7


class Device(Struct, frozen=True, kw_only=True):
    """Torch, and which of its devices. `torch` is a module from outside, and Any."""

    torch: Any
    kind: str
    index: int
    timer: Timer

    @property
    def torch_device(self) -> str:
        return f"cuda:{self.index}" if self.kind == "cuda" else "cpu"

    @property
    def properties(self) -> Any:
        return self.torch.cuda.get_device_properties(self.index) if self.kind == "cuda" else None

    @property
    def cache_bytes(self) -> int:
        l2_bytes = getattr(self.properties, "L2_cache_size", 0) if self.kind == "cuda" else 0
        return int(l2_bytes) or USUAL_CACHE_BYTES

    def warm_up(self) -> None:
        """Keeps a GPU busy until its clocks have risen.

        An idle one starts at a fraction of them.
        """
        if self.kind != "cuda":
            return
        matrix = self.torch.randn(4096, 4096, device=self.torch_device, dtype=self.torch.bfloat16)
        until = time.perf_counter() + WARM_UP_S
        while time.perf_counter() < until:
            for _ in range(20):
                self.torch.mm(matrix, matrix)
            self.torch.cuda.synchronize()

    def free_bytes(self) -> int:
        """Memory that can still be had."""
        if self.kind == "cuda":
            self.torch.cuda.empty_cache()
            return int(self.torch.cuda.mem_get_info(self.index)[0])
        return host_free_bytes()


def find_device(kind: str | None, index: int = 0) -> Device:
    """The device asked for, or a GPU where there is one.

    Ranks beyond the number of GPUs share them.
    """
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError:
        raise UsageError(
            "kernels are timed through PyTorch, which cannot be imported here. Install it: pip "
            "install torch"
        ) from None
    has_cuda = bool(torch.cuda.is_available())
    if kind == "cuda" and not has_cuda:
        raise UsageError(
            "--device cuda: PyTorch sees no GPU here. Give --device cpu, or look at `python -m "
            "torch.utils.collect_env`"
        )
    if kind == "cpu" or not has_cuda:
        return Device(torch=torch, kind="cpu", index=0, timer=HostTimer())
    index %= torch.cuda.device_count()
    torch.cuda.set_device(index)
    return Device(torch=torch, kind="cuda", index=index, timer=DeviceTimer(torch))


def describe(device: Device) -> Machine:
    torch = device.torch
    version = str(torch.__version__)
    threads = int(torch.get_num_threads())
    if device.kind == "cpu":
        return Machine(
            kind="cpu",
            device=_cpu_name(),
            memory_bytes=_host_bytes(),
            num_devices=1,
            num_threads=threads,
            torch=version,
        )
    properties = device.properties
    return Machine(
        kind="cuda",
        device=str(properties.name)[:100],
        memory_bytes=int(properties.total_memory),
        num_sms=int(properties.multi_processor_count),
        num_devices=int(torch.cuda.device_count()),
        num_threads=threads,
        driver=_driver(),
        runtime=str(torch.version.cuda or torch.version.hip or "") or None,
        torch=version,
    )


def spec_of(machine: Machine) -> DeviceSpec | None:
    """The datasheet, where the device is surely one that we know."""
    if machine.kind != "cuda":
        return None
    return find_spec(
        DeviceProperties(
            index=0,
            name=machine.device,
            memory_bytes=machine.memory_bytes,
            num_sms=machine.num_sms,
            compute_capability=None,
            warp_size=None,
        )
    )


def first_line(problem: BaseException) -> str:
    """What an error says, for a note: the first line, else its kind."""
    return (str(problem).splitlines() or [""])[0][:120] or type(problem).__name__


def host_free_bytes() -> int:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii", errors="replace").splitlines()
        return next(
            int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")
        )
    except (OSError, StopIteration, ValueError, IndexError):
        return 4 << 30


def _host_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "CPU"
    name = next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), ""
    )
    return name[:100] or "CPU"


def _driver() -> str | None:
    try:
        words = (
            Path("/proc/driver/nvidia/version")
            .read_text(encoding="utf-8", errors="replace")
            .split()
        )
    except OSError:
        return None
    return next((word[:40] for word in words if word[0].isdigit() and "." in word), None)
