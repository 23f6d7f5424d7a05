"""What torch itself counts, and the counters of the devices that this process uses through it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from stepscope.capture.counters.amd import AmdDevice
from stepscope.capture.counters.nvml import Nvml, NvmlDevice

WHOLE_COMPILES = ("entire_frame_compile", "entire_backward_compile")
"""What the compiler's own clock calls all of a compilation; of a backward pass it is done when
that first runs."""
SELDOM = 10
"""Samples between two looks at which devices are in use."""


def devices_in_use(torch: Any) -> list[int]:
    """The devices on which this process has memory, as torch numbers them; none before the job uses
    any.

    The current device is of no help: each thread has its own, and nothing set it in ours.
    """
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return []
    num_devices = cuda.device_count()
    try:
        used = [index for index in range(num_devices) if cuda.memory_reserved(index) > 0]
    except (RuntimeError, NotImplementedError):
        # An allocator of the job's own, which does not count.
        used = []
    local = os.environ.get("LOCAL_RANK", "0")
    return used or [int(local) if local.isdecimal() and int(local) < num_devices else 0]


class AllocatorCounters:
    """torch's own memory on each device in use."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self._devices: list[int] = []
        self._num_taken = 0

    def take(self) -> dict[str, Any]:
        torch = sys.modules.get("torch")
        if not self._devices or self._num_taken % SELDOM == 0:
            self._devices = devices_in_use(torch)
        self._num_taken += 1
        if not self._devices:
            return {}
        return {"allocators": [_allocator(torch, index) for index in self._devices]}


def _allocator(torch: Any, index: int) -> dict[str, Any]:
    # Nested as the allocator gives it: to flatten it takes longer than to ask.
    stats = torch.cuda.memory_stats_as_nested_dict(index)
    allocated, reserved = (
        stats.get(name, {}).get("all", {}) for name in ("allocated_bytes", "reserved_bytes")
    )
    return {
        "device": index,
        "allocated_bytes": allocated.get("current"),
        "reserved_bytes": reserved.get("current"),
        "peak_allocated_bytes": allocated.get("peak"),
        "peak_reserved_bytes": reserved.get("peak"),
        "num_alloc_retries": stats.get("num_alloc_retries"),
        "num_ooms": stats.get("num_ooms"),
        "num_device_allocs": stats.get("num_device_alloc"),
    }


class DeviceCounters:
    """The driver's counters of each device in use."""

    def __init__(
        self, library: Callable[[], Nvml] = Nvml, amd: Callable[[Any], AmdDevice] = AmdDevice
    ) -> None:
        self.notes: list[str] = []
        self._library, self._amd = library, amd
        self._nvml: Nvml | None = None
        self._probes: dict[int, NvmlDevice | AmdDevice] = {}
        self._num_taken = 0

    def take(self) -> dict[str, Any]:
        torch = sys.modules.get("torch")
        if not self._probes or self._num_taken % SELDOM == 0:
            for index in devices_in_use(torch):
                if index not in self._probes:
                    self._probes[index] = self._probe(torch, index)
        self._num_taken += 1
        samples = []
        for index, probe in self._probes.items():
            samples.append({"device": index, **probe.take()})
            self.notes += [f"device {index}: {note}" for note in probe.notes]
            probe.notes.clear()
        return {"devices": samples} if samples else {}

    def _probe(self, torch: Any, index: int) -> NvmlDevice | AmdDevice:
        properties = torch.cuda.get_device_properties(index)
        if getattr(torch.version, "hip", None):
            return self._amd(properties)
        if self._nvml is None:
            self._nvml = self._library()
        return NvmlDevice(self._nvml, self._nvml.handle(properties, index))


class DynamoCounters:
    """What the compiler has done since the process began.

    Nothing in a job that does not compile.
    """

    def __init__(self) -> None:
        self.notes: list[str] = []

    def take(self) -> dict[str, Any]:
        utils = sys.modules.get("torch._dynamo.utils")
        counters = getattr(utils, "counters", None)
        if counters is None:
            return {}
        # get() and not []: these are defaultdicts, and asking would add to them.
        frames, stats = counters.get("frames") or {}, counters.get("stats") or {}
        sample = {
            "dynamo_frames": frames.get("total", 0),
            "dynamo_ops": stats.get("calls_captured", 0),
            "dynamo_graph_breaks": sum(list((counters.get("graph_break") or {}).values())),
            "dynamo_unique_graphs": stats.get("unique_graphs", 0),
        }
        compiled = getattr(
            sys.modules.get("torch._dynamo.convert_frame"), "FRAME_COMPILE_COUNTER", None
        )
        if compiled is not None:
            nums = list(compiled.values())
            sample["dynamo_recompiles"] = sum(num - 1 for num in nums if num > 1)
            config = sys.modules.get("torch._dynamo.config")
            limit = getattr(config, "recompile_limit", getattr(config, "cache_size_limit", None))
            if isinstance(limit, int):
                # The attempt at which it gave up is counted.
                sample["dynamo_given_up"] = sum(num > limit for num in nums)
        spent = getattr(utils, "cumulative_time_spent_ns", None) or {}
        if WHOLE_COMPILES[0] in spent:
            sample["dynamo_compile_s"] = sum(spent.get(name, 0) for name in WHOLE_COMPILES) / 1e9
        return sample
