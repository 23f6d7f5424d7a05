"""Curves over the run from a run's folder,
and the allocator's memory over one step from its trace."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from stepscope.core.facts import RankFacts
from stepscope.core.trace import Trace
from stepscope.protocol.untrusted import finite, objects_at, whole
from stepscope.readers.run_folder.folder import RankRecord, RunRecord


class Curve(Struct, frozen=True, kw_only=True):
    """Lines over one axis. A point whose value was not measured is left out."""

    title: str
    words: str
    """The chart in a sentence, for those who cannot see it."""
    x: str
    """What the axis counts, with its unit."""
    unit: str
    lines: tuple[tuple[str, tuple[tuple[float, float], ...]], ...]
    from_zero: bool = True
    steps: bool = False
    """Whether a value holds until the next one."""


MAX_POINTS = 600
MAX_RANKS = 8
"""Ranks with a line of their own; of more, those that differ most from the median are shown."""
ON_CUDA = 1
"""The allocator's number for a CUDA device."""

Line = tuple[str, tuple[tuple[float, float], ...]]

COUNTERS = (
    ("util", "How busy the device says it is", "gpu_util_percent", "%"),
    ("clock", "The device's clock", "sm_clock_mhz", "MHz"),
    ("power", "The device's power", "power_w", "W"),
    ("temperature", "The device's temperature", "temperature_c", "C"),
)


def run_curves(run: RunRecord) -> dict[str, Curve]:
    """Step times, the device's counters, memory and the host's cores over the run;
    what was not measured is not there."""
    ranks = _shown(run.ranks)
    began = min((_first_ns(rank) for rank in ranks if rank.rows or rank.samples), default=0)
    curves = {
        "steps": _curve(
            "How long steps took",
            "ms",
            [(_name(rank), _steps(rank, began)) for rank in ranks],
            from_zero=True,
        ),
    }
    for name, title, field, unit in COUNTERS:
        curves[name] = _curve(
            title,
            unit,
            [(_name(r), _samples(r, began, lambda s, f=field: _of_device(s, f))) for r in ranks],
        )
    curves["memory"] = _curve(
        "Memory that torch holds on the device",
        "B",
        [(_name(r), _samples(r, began, _allocated)) for r in ranks],
        from_zero=True,
    )
    curves["cores"] = _curve(
        "Cores that the rank uses",
        "cores",
        [(_name(r), _samples(r, began, _cores)) for r in ranks],
        from_zero=True,
    )
    return {name: curve for name, curve in curves.items() if curve is not None}


def peak_memory(run: RunRecord) -> dict[int, float]:
    """The most bytes that torch held at once on each
    rank's devices together, where it was measured."""
    peaks: dict[int, float] = {}
    for rank in run.ranks:
        for sample in rank.samples:
            allocators = objects_at(sample, "allocators")
            sizes = [finite(allocator.get("peak_allocated_bytes")) for allocator in allocators]
            measured = [size for size in sizes if size is not None]
            if measured:
                peaks[rank.rank] = max(peaks.get(rank.rank, 0.0), sum(measured))
    return peaks


def memory_curve(trace: Trace, facts: RankFacts) -> Curve | None:
    """Allocated bytes of the busiest device over the median step;
    None when allocations were not recorded."""
    memory, windows = trace.memory, facts.steps.median_windows
    if memory is None or not windows or not facts.steps.windows:
        return None
    low, high = facts.steps.windows[windows[0]]
    told = (memory.time_ns >= low) & (memory.time_ns < high) & (memory.allocated_bytes >= 0)
    on_device, on_host = told & (memory.device_type == ON_CUDA), told & (memory.device_type == 0)
    inside = on_device if on_device.any() else on_host
    if not inside.any():
        return None
    where = "Memory" if on_device.any() else "Host memory"
    devices, counts = np.unique(memory.device[inside], return_counts=True)
    mine = np.flatnonzero(inside & (memory.device == devices[np.argmax(counts)]))
    time_ms, allocated = (memory.time_ns[mine] - low) / 1e6, memory.allocated_bytes[mine]
    points = _peaks(list(zip(time_ms.tolist(), allocated.astype(float).tolist(), strict=True)))
    words = f"at most {_gigabytes(allocated.max())}, at least {_gigabytes(allocated.min())}"
    reserved = memory.reserved_bytes[mine].astype(float)
    more: tuple[Line, ...] = ()
    if on_device.any() and len(reserved) and reserved.min() >= 0 and reserved.max() > 0:
        points_above = _peaks(list(zip(time_ms.tolist(), reserved.tolist(), strict=True)))
        more = (("reserved", tuple(points_above)),)
    return Curve(
        title=f"{where} over one step",
        words=words,
        x="ms into the step",
        unit="B",
        lines=(("allocated", tuple(points)), *more),
        steps=True,
    )


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 1e7 else f"{size / 1e6:.3g} MB"


def _shown(ranks: Sequence[RankRecord]) -> list[RankRecord]:
    if len(ranks) <= MAX_RANKS:
        return list(ranks)
    typical = {
        rank.rank: statistics.median([row["dur_ns"] or 0 for row in rank.rows] or [0])
        for rank in ranks
    }
    middle = statistics.median(typical.values())
    far = sorted(ranks, key=lambda rank: -abs(typical[rank.rank] - middle))[:MAX_RANKS]
    return sorted(far, key=lambda rank: rank.rank)


def _name(rank: RankRecord) -> str:
    return f"rank {rank.rank}"


def _first_ns(rank: RankRecord) -> int:
    """The first time that a step or a sample was written with."""
    steps = (row["end_ns"] for row in rank.rows)
    samples = (whole(sample.get("at_ns")) for sample in rank.samples)
    firsts = [next((ns for ns in times if ns is not None), None) for times in (steps, samples)]
    return min((ns for ns in firsts if ns is not None), default=0)


def _steps(rank: RankRecord, began: int) -> Iterable[tuple[float, float]]:
    for row in rank.rows:
        end, dur = row["end_ns"], row["dur_ns"]
        if end is not None and dur is not None:
            yield (end - began) / 1e9, dur / 1e6


def _samples(rank: RankRecord, began: int, value: Any) -> Iterable[tuple[float, float]]:
    for sample in rank.samples:
        at_ns, figure = whole(sample.get("at_ns")), value(sample)
        if at_ns is not None and figure is not None:
            yield (at_ns - began) / 1e9, figure


def _curve(
    title: str,
    unit: str,
    lines: Iterable[tuple[str, Iterable[tuple[float, float]]]],
    *,
    from_zero: bool = False,
) -> Curve | None:
    kept = [(name, tuple(_peaks(list(points)))) for name, points in lines]
    kept = [(name, points) for name, points in kept if len(points) > 1]
    if not kept:
        return None
    values = [value for _, points in kept for _, value in points]
    words = (
        f"between {_say(min(values), unit)} and {_say(max(values), unit)}, the median "
        f"{_say(statistics.median(values), unit)}"
    )
    return Curve(
        title=title, words=words, x="seconds", unit=unit, lines=tuple(kept), from_zero=from_zero
    )


def _peaks(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points, at most MAX_POINTS: of each stretch the lowest and the highest, so that no peak is
    lost."""
    if len(points) <= MAX_POINTS:
        return points
    kept: list[tuple[float, float]] = []
    size = -(-len(points) // (MAX_POINTS // 2))
    for first in range(0, len(points), size):
        stretch = points[first : first + size]
        low = min(stretch, key=lambda point: point[1])
        high = max(stretch, key=lambda point: point[1])
        kept += [low] if low is high else sorted((low, high))
    return kept


def _say(value: float, unit: str) -> str:
    return f"{value / 1e9:.2f} GB" if unit == "B" else f"{value:.4g} {unit}"


def _of_device(sample: Mapping[str, Any], field: str) -> float | None:
    devices = objects_at(sample, "devices")
    return finite(devices[0].get(field)) if devices else None


def _allocated(sample: Mapping[str, Any]) -> float | None:
    allocators = objects_at(sample, "allocators")
    return finite(allocators[0].get("allocated_bytes")) if allocators else None


def _cores(sample: Mapping[str, Any]) -> float | None:
    user, system = finite(sample.get("cpu_user_cores")), finite(sample.get("cpu_sys_cores"))
    if user is None or system is None:
        return None
    return user + system + (finite(sample.get("children_cores")) or 0.0)
