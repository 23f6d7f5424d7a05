"""Jobs as triage sees them, made by hand."""

from __future__ import annotations

from typing import Any

from stepscope.core.recordings.system import (
    RANK,
    WORKER,
    DeviceSeries,
    HostStacks,
    HostUse,
    ProcessUse,
    Spread,
    SystemRecording,
    SystemReport,
)


def flat(value: float, mean: float | None = None, **more: float) -> Spread:
    spread = {"low": value, "median": value, "high": value} | more
    return Spread(num=20, mean=value if mean is None else mean, **spread)


def device(busy: float = 0.97, power: float = 620.0, **more: Any) -> DeviceSeries:
    told: dict[str, Any] = {
        "index": 0,
        "name": "H200",
        "num_samples": 20,
        "num_working": 20 if busy else 0,
        "busy_share": flat(busy),
        "busy_run_share": flat(busy) if busy else None,
        "power_working_w": flat(power),
        "power_limit_w": 700.0,
        "sm_clock_working_mhz": flat(1950.0),
        "max_sm_clock_mhz": 1980.0,
        "throttled": {},
    }
    return DeviceSeries(**(told | more))


def rank(number: int = 0, cores: float | None = 1.0, **more: Any) -> ProcessUse:
    told: dict[str, Any] = {
        "pid": 100 + number,
        "role": RANK,
        "name": "train.py",
        "rank": number,
        "num_threads": 8,
        "cores": cores,
        "queued_cores": 0.0,
        "io_wait_share": 0.0,
        "read_bytes_s": 0.0,
        "disk_read_bytes_s": 0.0,
        "disk_write_bytes_s": 0.0,
        "uses_device": False,
    }
    return ProcessUse(**(told | more))


def worker(number: int = 0, cores: float = 1.0, **more: Any) -> ProcessUse:
    told: dict[str, Any] = {"pid": 200 + number, "role": WORKER, "parent": 100, "num_threads": 1}
    return rank(0, cores, **(told | more))


def host(*processes: ProcessUse, **more: Any) -> HostUse:
    told: dict[str, Any] = {
        "seconds": 30.0,
        "num_looks": 600,
        "processes": processes,
        "num_cores": 16.0,
        "busy_cores": 4.0,
        "other_cores": 0.0,
        "held_back_share": 0.0,
    }
    return HostUse(**(told | more))


def seen(*parts: DeviceSeries | HostUse | HostStacks) -> SystemReport:
    recording = SystemRecording(
        format="live",
        paths=(),
        devices=tuple(part for part in parts if isinstance(part, DeviceSeries)),
        hosts=tuple(part for part in parts if isinstance(part, HostUse)),
        stacks=tuple(part for part in parts if isinstance(part, HostStacks)),
    )
    return SystemReport(recordings=(recording,))
