"""Whether the process holds more memory of the host from step to step, by its samples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from stepscope.analyses.run.samples import rss_bytes
from stepscope.core.run import HostGrowth
from stepscope.protocol.untrusted import whole

MIN_SAMPLES = 8
"""Eight that only rise are 3.5 deviations from a series without a trend."""
Z = 3.4
MIN_SHARE = 0.05
"""Share of what was held at first from which growth counts; less is nobody's trouble."""
MIN_BYTES = 64 << 20
LASTING = 0.5
"""The last third rises at this share of the mean rate at least: what levels off is no leak."""


def kendall_z(values: Sequence[float]) -> float:
    """Pairs in rising order less those in falling, in standard deviations of a series without a
    trend (Mann 1945)."""
    n = len(values)
    s = sum((b > a) - (b < a) for i, a in enumerate(values) for b in values[i + 1 :])
    return s / math.sqrt(n * (n - 1) * (2 * n + 5) / 18)


def host_growth(samples: Sequence[Mapping[str, Any]]) -> HostGrowth | None:
    """None where it does not grow all the time, or that was not seen. The first sample is of the
    first steps, which make what stays."""
    known = [
        (step, float(size))
        for sample in samples[1:]
        if (step := whole(sample.get("step"))) is not None
        and (size := rss_bytes(sample)) is not None
    ]
    bins = _binned(known)
    if len(bins) < MIN_SAMPLES:
        return None
    (first_step, first), (last_step, last) = bins[0], bins[-1]
    grown, third = last - first, len(bins) // 3
    late_step, late = bins[-1 - third]
    if last_step <= late_step or grown < max(MIN_BYTES, MIN_SHARE * first):
        return None
    rate = grown / (last_step - first_step)
    if (last - late) / (last_step - late_step) < LASTING * rate:
        return None
    if kendall_z([size for _, size in bins]) < Z:
        return None
    return HostGrowth(
        num_samples=len(known),
        first_step=int(first_step),
        last_step=int(last_step),
        first_bytes=first,
        last_bytes=last,
        bytes_per_step=rate,
    )


def _binned(known: Sequence[tuple[int, float]]) -> list[tuple[float, float]]:
    """Points, at most some dozens, each the median of neighbours."""
    each = max(1, math.ceil(len(known) / 48))
    return [
        (median(step for step, _ in part), median(size for _, size in part))
        for part in (known[i : i + each] for i in range(0, len(known), each))
    ]
