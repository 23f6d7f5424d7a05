"""Single numbers out of what a rank writes while it runs: RUN/rank-N/samples.jsonl and steps.jsonl."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Sample = Mapping[str, Any]


def rss_bytes(sample: Sample) -> int | None:
    """Memory of the process on the host."""
    return _whole(sample.get("rss_bytes"))


def device_bytes(sample: Sample) -> int | None:
    """Memory that the rank holds on its devices: what torch has reserved, else what the driver says is used."""
    reserved = [_whole(one.get("reserved_bytes")) for one in _each(sample, "allocators")]
    told = [size for size in reserved if size is not None]
    if not told:
        told = [size for one in _each(sample, "devices") if (size := _whole(one.get("gpu_memory_used_bytes"))) is not None]
    return sum(told) if told else None


def device_total_bytes(sample: Sample) -> int | None:
    told = [size for one in _each(sample, "devices") if (size := _whole(one.get("gpu_memory_total_bytes"))) is not None]
    return sum(told) if told else None


def gpu_util(sample: Sample) -> float | None:
    """Share of the time in which kernels ran, by the driver; the mean over devices."""
    told = [one.get("gpu_util_percent") for one in _each(sample, "devices")]
    known = [value / 100 for value in told if isinstance(value, int | float) and not isinstance(value, bool)]
    return sum(known) / len(known) if known else None


def usual_ns(row: Mapping[str, int | None]) -> int | None:
    """How long a step took that is like the others: no profiler, no save. By the device's clock where it told."""
    if row["state"] != 0 or row["save_ns"]:
        return None
    return row["device_ns"] or row["dur_ns"] or None


def _each(sample: Sample, name: str) -> list[dict[str, Any]]:
    told = sample.get(name)
    return [one for one in told if isinstance(one, dict)] if isinstance(told, list) else []


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
