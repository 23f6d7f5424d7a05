"""The devices' counters that Nsight Systems samples (--gpu-metrics-devices): means over the
recorded work, and while it ran.

A device that waits half of the time shows half of what its kernels reach. So there are two
means: from the first work of the process to its last, and with each sample counted by how much of
it this work was on the device. Steps are not known here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import closing

import numpy as np

from stepscope.api import Kind
from stepscope.core.trace import DEVICE_WORK, Float64, Int64
from stepscope.recordings.nsys.database import Database
from stepscope.recordings.nsys.events import ProcessTraceBuilder
from stepscope.recordings.nsys.target import cuda_numbers

SAMPLES, NAMES = "GPU_METRICS", "TARGET_INFO_GPU_METRICS"
COUNTERS = re.compile(
    r"^(?:GR Active|SMs? Active|SM Issue|Tensor Active|DRAM (?:Read|Write) Bandwidth)\b",
    re.IGNORECASE,
)
MAX_COUNTERS = 8
MAX_SAMPLES = 10_000_000
"""Samples that are looked at: six counters of one device at 10 kHz for more than two minutes."""
MAX_NAMED = 64
"""Counters that are asked for: six of each of some eight devices."""
Key = tuple[int, int]
"""The type, whose lowest byte is the device's number (exporter manual, GENERIC_EVENTS), and the
metric."""


def counters_of(builder: ProcessTraceBuilder, low: int, high: int) -> list[str]:
    """Means of the counters, in words; nothing where none were sampled."""
    database = builder.database
    if not database.has(SAMPLES, "timestamp", "typeId", "metricId", "value"):
        return []
    if not database.has(NAMES, "typeId", "metricId", "metricName"):
        return []
    names: dict[Key, str] = {}
    for rows in database.rows(NAMES, '"typeId", "metricId", substr("metricName", 1, 96)'):
        counters = [row for row in rows if isinstance(row[2], str) and COUNTERS.match(row[2])]
        names.update(
            {
                (row[0], row[1]): row[2]
                for row in counters
                if isinstance(row[0], int) and isinstance(row[1], int)
            }
        )
    numbers = cuda_numbers(database, builder.process)
    used = _used_devices(builder, numbers)
    own = sorted(key for key in names if key[0] & 0xFF in used)[:MAX_NAMED]
    means = _means(builder, own, numbers, low, high) or _means(
        builder, sorted(names)[:MAX_NAMED], numbers, low, high
    )
    titles = ("mean over the recorded device work", "mean while this work was on the device")
    by_title = [{key: mean[index] for key, mean in means.items()} for index in (0, 1)]
    words = [list(_words(each, names)) for each in by_title]
    return [
        f"GPU metrics, {what}: {', '.join(texts)}"
        for what, texts in zip(titles, words, strict=True)
        if texts
    ]


def _words(means: dict[Key, float | None], names: dict[Key, str]) -> Iterator[str]:
    devices = {kind & 0xFF for kind, _ in means}
    for (kind, metric), mean in list(means.items())[:MAX_COUNTERS]:
        if mean is not None:
            text = f"{names[kind, metric].split(' [')[0]} {mean:.0f} %"
            yield text if len(devices) == 1 else f"GPU {kind & 0xFF} {text}"


def _used_devices(builder: ProcessTraceBuilder, numbers: dict[int, int]) -> set[int]:
    """The machine's numbers of the devices that ran this process' kernels; none where they are not
    recorded."""
    kernels = [
        chunk.device for chunk in builder.chunks if len(chunk.kind) and chunk.kind[0] == Kind.KERNEL
    ]
    used = set(np.unique(np.concatenate(kernels)).tolist()) if kernels else set()
    return {gpu for gpu, number in numbers.items() if number in used}


def _means(
    builder: ProcessTraceBuilder, keys: Sequence[Key], numbers: dict[int, int], low: int, high: int
) -> dict[Key, tuple[float, float | None]]:
    """Means of each counter that has samples: the plain one, and the one with every sample weighed
    by the work that was on the device in it.

    A sample is about the time since the one before it.
    """
    by_number = {
        number: _Busy(builder, number) for number in {numbers.get(kind & 0xFF) for kind, _ in keys}
    }
    busy = {kind: by_number[numbers.get(kind & 0xFF)] for kind, _ in keys}
    sums = {key: np.zeros(4) for key in keys}
    """How many samples, their sum, their weight, their weighed sum."""
    period: int | None = None
    for times, kinds, metrics, values in _samples(builder.database, keys, low, high):
        period = period or _period(times[(kinds == kinds[0]) & (metrics == metrics[0])])
        for kind, metric in keys:
            mine = (kinds == kind) & (metrics == metric)
            weight = busy[kind].within(times[mine] - (period or 0), times[mine])
            sums[kind, metric] += (
                mine.sum(),
                values[mine].sum(),
                weight.sum(),
                values[mine] @ weight,
            )
    totals = {key: each.tolist() for key, each in sums.items() if each[0]}
    return {
        key: (total / num, weighed / weight if weight else None)
        for key, (num, total, weight, weighed) in totals.items()
    }


def _samples(
    database: Database, keys: Sequence[Key], low: int, high: int
) -> Iterator[tuple[Int64, Int64, Int64, Float64]]:
    """Times, types, metrics and values of the samples, in blocks."""
    kinds, metrics = sorted({kind for kind, _ in keys}), sorted({metric for _, metric in keys})
    marks = [",".join("?" * len(some)) for some in (kinds, metrics)]
    query = (
        f'SELECT "timestamp", "typeId", "metricId", "value" FROM "{SAMPLES}"'  # noqa: S608
        ' WHERE "timestamp" BETWEEN ? AND ?'
        f' AND "typeId" IN ({marks[0]}) AND "metricId" IN ({marks[1]})'
        """ AND typeof("value") IN ('integer', 'real')"""
    )
    left = MAX_SAMPLES
    if not keys:
        return
    with closing(database.query(query, (low, high, *kinds, *metrics))) as blocks:
        for rows in blocks:
            columns = list(zip(*rows[:left], strict=True))
            first = [np.array(column, np.int64) for column in columns[:3]]
            yield first[0], first[1], first[2], np.array(columns[3], np.float64)
            left -= len(rows)
            if left <= 0:
                database.notes.append(f"GPU metrics: the first {MAX_SAMPLES:,} samples were read")
                return


def _period(times: Int64) -> int | None:
    """The time between two samples of one counter; None where there is one alone."""
    apart = np.diff(np.unique(times))
    return int(np.median(apart)) if len(apart) else None


class _Busy:
    """When a device had this process' work."""

    def __init__(self, builder: ProcessTraceBuilder, device: int | None) -> None:
        work = [
            chunk for chunk in builder.chunks if len(chunk.kind) and chunk.kind[0] in DEVICE_WORK
        ]
        of = [
            chunk.device == device if device is not None else np.ones(len(chunk.kind), np.bool_)
            for chunk in work
        ]
        pairs = list(zip(work, of, strict=True))
        none = np.empty(0, np.int64)
        start = np.concatenate([none, *(chunk.start_ns[mine] for chunk, mine in pairs)])
        dur = np.concatenate([none, *(chunk.dur_ns[mine] for chunk, mine in pairs)])
        order = np.argsort(start, kind="stable")
        start, end = (
            start[order],
            np.maximum.accumulate((start + dur)[order]) if len(order) else start,
        )
        first = np.concatenate([np.ones(min(len(start), 1), np.bool_), start[1:] > end[:-1]])
        low = start[first]
        high = end[np.concatenate([first[1:], np.ones(min(len(start), 1), np.bool_)])]
        self._edges = np.stack([low, high], axis=1).ravel()
        """Where it begins and ends, by turns."""
        sizes = np.concatenate([[0], np.cumsum(high - low)])
        self._so_far = np.repeat(sizes, 2)[1:-1]
        """The time busy up to each of them."""

    def within(self, low: Int64, high: Int64) -> Float64:
        """How much of each stretch it was busy, in nanoseconds."""
        if not len(self._edges):
            return np.zeros(len(low))
        base = self._edges[0]
        ends = [np.interp(at - base, self._edges - base, self._so_far) for at in (low, high)]
        busy_ns: Float64 = ends[1] - ends[0]
        return busy_ns
