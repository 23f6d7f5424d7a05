"""Memory that runs out within minutes, at the rate it grows now.

trend.py tells a slow leak after minutes; here what counts is how soon the next limit is reached:
the device's memory, the control group's, the machine's, or the process's address space.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from statistics import median
from typing import Any

from stepscope.analyses.run.host_growth import kendall_z
from stepscope.analyses.run.samples import rss_bytes
from stepscope.live.alarms.episodes import Trouble, over
from stepscope.live.samples import device_bytes, device_total_bytes
from stepscope.protocol.untrusted import objects_at, whole

NUM_SAMPLES = 10
"""A second apart: ten that only rise are 4 deviations from a series without a trend."""
Z = 3.5
"""Deviations: of ten samples two may be out of order. By chance once in 4,000 series; a series that
moves by what follows as well is far rarer."""
SOON_S = 600.0
"""Seconds until it is full from which somebody must know: enough to save and to act."""
MIN_BYTES = 16 << 20
"""Within the ten samples."""
EVEN = 0.4
"""Share of the growth in each half of the samples: what is allocated once and stays is no leak."""
WARM_UP_S = 20.0
"""Seconds after a rank's first sample: caches fill, loaders start."""
GIB = 1 << 30

LIMITS = {
    "cgroup_memory_left_bytes": "the control group's limit",
    "address_space_left_bytes": "the limit of its address space",
    "memory_available_bytes": "the machine's memory",
}


class RankMemory:
    """Takes the samples of one rank."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._host = _Growth()
        self._device = _Growth()
        self._total: int | None = None
        self._others_bytes = 0
        """Bytes of the device's memory that are not this rank's: by the driver, which is asked
        seldom."""
        self._num_retries: int | None = None
        self._told: dict[str, Trouble] = {}
        self._first_s: float | None = None

    def add(self, at_s: float, sample: Mapping[str, Any]) -> list[Trouble]:
        if self._first_s is None:
            self._first_s = at_s
        self._total = device_total_bytes(sample) or self._total
        host, device = rss_bytes(sample), device_bytes(sample)
        troubles: list[Trouble] = []
        if host is not None:
            left, limit = _host_left(sample)
            troubles += self._judge("host-memory", self._host, at_s, host, left, limit)
        if device is not None:
            used = _driver_bytes(sample)
            if used is not None:
                self._others_bytes = max(used - device, 0)
            held = device + self._others_bytes
            free = None if self._total is None else max(self._total - held, 0)
            troubles += self._judge(
                "device-memory", self._device, at_s, device, free, "the device's memory"
            )
            troubles += self._retried(at_s, sample)
        return troubles

    def _judge(
        self, kind: str, growth: _Growth, at_s: float, size: int, left: int | None, limit: str
    ) -> list[Trouble]:
        growth.add(at_s, size)
        told = self._told.get(kind)
        rate = growth.bytes_per_s()
        if told is not None:
            if rate is not None or growth.is_growing():
                return []
            del self._told[kind]
            return [over(told, at_s)]
        is_warm = self._first_s is not None and at_s - self._first_s >= WARM_UP_S
        if rate is None or left is None or not is_warm or left > rate * SOON_S:
            return []
        trouble = Trouble(
            kind=kind,
            ranks=(self._rank,),
            words=(
                f"{limit} is full in {_time(left / rate)} at this rate: {size / GIB:.3g} GiB held, "
                f"{rate / GIB * 60:.2g} GiB more a minute, {left / GIB:.3g} GiB left"
            ),
            since_s=growth.since_s,
            before=growth.first_bytes,
            after=float(size),
            unit="bytes",
        )
        self._told[kind] = trouble
        return [trouble]

    def _retried(self, at_s: float, sample: Mapping[str, Any]) -> list[Trouble]:
        """The allocator found no room, gave its cache back to the driver and asked again."""
        counts = [
            num
            for allocator in objects_at(sample, "allocators")
            if (num := whole(allocator.get("num_alloc_retries"))) is not None
        ]
        before, self._num_retries = self._num_retries, sum(counts) if counts else None
        is_more = before is not None and self._num_retries is not None
        if not is_more or "device-memory" in self._told:
            return []
        num = (self._num_retries or 0) - (before or 0)
        if num <= 0:
            return []
        trouble = Trouble(
            kind="device-memory",
            ranks=(self._rank,),
            words=(
                f"the device's memory is full: the allocator gave its cache back {num} times "
                "within a second to find room"
            ),
            since_s=at_s,
            unit="bytes",
        )
        self._told["device-memory"] = trouble
        return [trouble]


class _Growth:
    """The last samples of a size."""

    def __init__(self) -> None:
        self._sizes: deque[tuple[float, int]] = deque(maxlen=NUM_SAMPLES)
        self._peak_bytes = 0
        """Peak of all that came before these."""

    def add(self, at_s: float, size: int) -> None:
        if len(self._sizes) == NUM_SAMPLES:
            self._peak_bytes = max(self._peak_bytes, self._sizes[0][1])
        self._sizes.append((at_s, size))

    @property
    def since_s(self) -> float:
        return self._sizes[0][0]

    @property
    def first_bytes(self) -> float:
        return float(self._sizes[0][1])

    def is_growing(self) -> bool:
        sizes = [size for _, size in self._sizes]
        return sizes[-1] > median(sizes[: len(sizes) // 2])

    def bytes_per_s(self) -> float | None:
        """None where it does not grow steadily, beyond what it ever was: what is allocated and
        freed in turns rises too."""
        if len(self._sizes) < NUM_SAMPLES or self._sizes[-1][1] <= self._peak_bytes:
            return None
        sizes = [float(size) for _, size in self._sizes]
        grown, middle = sizes[-1] - sizes[0], sizes[NUM_SAMPLES // 2] - sizes[0]
        is_even = EVEN * grown <= middle <= (1 - EVEN / 2) * grown
        if grown < MIN_BYTES or not is_even or kendall_z(sizes) < Z:
            return None
        return grown / (self._sizes[-1][0] - self._sizes[0][0])


def _host_left(sample: Mapping[str, Any]) -> tuple[int | None, str]:
    """Bytes until the nearest limit, and which that is."""
    known = {
        limit: left
        for name, limit in LIMITS.items()
        if (left := whole(sample.get(name))) is not None
    }
    limit = min(known, key=lambda name: known[name], default="")
    return known.get(limit), limit


def _driver_bytes(sample: Mapping[str, Any]) -> int | None:
    sizes = [whole(device.get("gpu_memory_used_bytes")) for device in objects_at(sample, "devices")]
    known = [size for size in sizes if size is not None]
    return sum(known) if known else None


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
