"""The counters that a run's folder holds, around the time of a recording."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stepscope.protocol.untrusted import finite, objects_at, whole
from stepscope.readers.run_folder.folder import RankRecord
from stepscope.tables.timeline.tracks import Series

FAR_NS = 60_000_000_000
"""A sample further from the recording than this says nothing about it."""
MAX_SERIES = 200
OWN = frozenset({"at_ns", "step", "sample_wall_s", "sample_cpu_s", "device"})
"""What a sample says of itself."""
UNITS = (
    ("_bytes_s", "bytes/s"), ("_bytes", "bytes"), ("_percent", "%"), ("_mhz", "MHz"), ("_w", "W"),
    ("_c", "degrees C"), ("_cores", "cores"), ("_s_per_s", "s/s"), ("_per_s", "1/s"), ("_s", "s"),
)  # fmt: skip
"""Units by how a counter's name ends."""


def sampled_series(record: RankRecord, low_ns: int, high_ns: int) -> list[Series]:
    """Every number that was sampled,
    from the last before `low_ns` to the first after `high_ns`; wall-clock nanoseconds."""
    wall, perf = whole(record.metadata.get("wall_ns")), whole(record.metadata.get("perf_ns"))
    if wall is None or perf is None:
        return []
    timed = [
        (at_ns - perf + wall, sample)
        for sample in record.samples
        if (at_ns := whole(sample.get("at_ns"))) is not None
    ]
    samples = sorted(timed, key=lambda pair: pair[0])
    times = [time for time, _ in samples]
    first, last = max(bisect_right(times, low_ns) - 1, 0), bisect_left(times, high_ns) + 1
    near = [
        (time, sample)
        for time, sample in samples[first:last]
        if low_ns - FAR_NS <= time <= high_ns + FAR_NS
    ]
    points_of: dict[str, list[tuple[int, float]]] = {}
    for time, sample in near:
        for name, value in _numbers(sample):
            if name in points_of or len(points_of) < MAX_SERIES:
                points_of.setdefault(name, []).append((time, value))
    return [_series(name, points) for name, points in sorted(points_of.items())]


def _series(name: str, points: Sequence[tuple[int, float]]) -> Series:
    unit = next((unit for ending, unit in UNITS if name.endswith(ending)), "")
    time = np.array([time_ns for time_ns, _ in points], np.int64)
    return Series(
        name=name,
        unit=unit,
        time_ns=time,
        value=np.array([value for _, value in points], np.float64),
    )


def _numbers(sample: Mapping[str, Any]) -> list[tuple[str, float]]:
    """The sample's numbers with their names, those of a device with its number before it."""
    values = [(str(name), value) for name, value in sample.items() if name not in OWN]
    for device in objects_at(sample, "devices"):
        prefix = f"device {device.get('device')}: "
        values += [(prefix + name, value) for name, value in device.items() if name not in OWN]
    return [(name[:200], number) for name, value in values if (number := finite(value)) is not None]
