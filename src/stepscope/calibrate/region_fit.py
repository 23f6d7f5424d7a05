"""Time over size of one collective: up to three lines, each T = steps * alpha + volume / beta.

Libraries change their algorithm and protocol with the size, so that one line does not hold from a
kilobyte to a gigabyte. Lines are fitted on relative error (weights 1 / T^2) with nothing negative;
where to break is tried at every place, and a further line must be worth its constants (Schwarz,
1978: BIC).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import combinations, pairwise
from math import log, sqrt

import numpy as np

from stepscope.core.calibrated import CollectiveFit, CollectivePoint, Region, bus_factor, ring_steps
from stepscope.core.trace import Float64

MAX_REGIONS = 3
MIN_POINTS = 3
"""Points in a region: two make any line fit."""
NOISE = 0.02
"""Misfit that is not worth a further line: links are not steadier than this."""

Line = tuple[float, float]
"""Seconds at size 0, seconds a byte."""


def fit_collectives(points: Iterable[CollectivePoint]) -> tuple[CollectiveFit, ...]:
    """One fit for each collective of each group; none where there are too few sizes."""
    by_group: dict[tuple[str, str, str, int], list[CollectivePoint]] = defaultdict(list)
    for point in points:
        by_group[(point.kind, point.backend, point.tier, point.group_size)].append(point)
    fits = (fit_regions(members) for members in by_group.values())
    return tuple(fit for fit in fits if fit is not None)


def fit_regions(points: Sequence[CollectivePoint]) -> CollectiveFit | None:
    """Points of one collective in one group; None with fewer than three sizes or a group of one."""
    points = sorted(points, key=lambda point: point.size_bytes)
    sizes = np.array([point.size_bytes for point in points], np.float64)
    took = np.array([point.time.seconds for point in points])
    if len(np.unique(sizes)) < MIN_POINTS or points[0].group_size < 2:
        return None
    breaks = _best_breaks(sizes, took)
    ends = [0, *breaks, len(points)]
    spans = [slice(low, high) for low, high in pairwise(ends)]
    lines = [_line(sizes[span], took[span]) for span in spans]
    fitted = np.concatenate(
        [start + slope * sizes[span] for (start, slope), span in zip(lines, spans, strict=True)]
    )
    misfit = np.maximum(fitted / took, took / fitted)
    worst = int(misfit.argmax())
    first = points[0]
    return CollectiveFit(
        kind=first.kind,
        backend=first.backend,
        tier=first.tier,
        group_size=first.group_size,
        regions=tuple(
            _region(first, line, span, sizes) for line, span in zip(lines, spans, strict=True)
        ),
        r2=_r2(fitted, took),
        worst_misfit=float(misfit[worst]),
        worst_bytes=points[worst].size_bytes,
        num_points=len(points),
        mean_misfit=float(np.exp(np.log(misfit).mean())),
    )


def _region(first: CollectivePoint, line: Line, span: slice, sizes: Float64) -> Region:
    start, slope = line
    low, high = float(sizes[span][0]), float(sizes[span][-1])
    if start > slope * high:
        name = "latency"
    elif slope * low > start:
        name = "bandwidth"
    else:
        name = "mixed"
    return Region(
        name=name,
        up_to_bytes=sqrt(high * float(sizes[span.stop])) if span.stop < len(sizes) else None,
        alpha_s=start / ring_steps(first.kind, first.group_size),
        beta_bytes_per_s=bus_factor(first.kind, first.group_size) / slope if slope > 0 else None,
        num_points=span.stop - span.start,
    )


def _best_breaks(sizes: Float64, took: Float64) -> tuple[int, ...]:
    """Where a new line begins. A size that was measured twice is not parted."""
    count = len(sizes)
    candidates = [
        index
        for index in range(MIN_POINTS, count - MIN_POINTS + 1)
        if sizes[index] > sizes[index - 1]
    ]
    errors: dict[tuple[int, int], float] = {}

    def error(low: int, high: int) -> float:
        if (low, high) not in errors:
            start, slope = _line(sizes[low:high], took[low:high])
            errors[low, high] = float(
                (((start + slope * sizes[low:high]) / took[low:high] - 1) ** 2).sum()
            )
        return errors[low, high]

    best: tuple[float, tuple[int, ...]] = (float("inf"), ())
    for num_breaks in range(MAX_REGIONS):
        for breaks in combinations(candidates, num_breaks):
            ends = [0, *breaks, count]
            spans = list(pairwise(ends))
            if any(high - low < MIN_POINTS or sizes[high - 1] == sizes[low] for low, high in spans):
                continue
            mean = sum(error(low, high) for low, high in spans) / count
            score = count * log(mean + NOISE**2) + (2 * len(spans) + num_breaks) * log(count)
            best = min(best, (score, breaks))
    return best[1]


def _line(sizes: Float64, took: Float64) -> Line:
    """Least relative error, neither part negative."""
    ones, share = 1 / took, sizes / took
    rows = np.stack((ones, share), axis=1)
    (start, slope), *_ = np.linalg.lstsq(
        rows / np.abs(rows).max(axis=0), np.ones(len(took)), rcond=None
    )
    start, slope = start / np.abs(ones).max(), slope / np.abs(share).max()
    if slope < 0:
        return float(ones.sum() / (ones @ ones)), 0.0
    if start < 0:
        return 0.0, float(share.sum() / (share @ share))
    return float(start), float(slope)


def _r2(fitted: Float64, took: Float64) -> float:
    """1 - squared relative errors over those of the best constant."""
    flat = float((1 / took).sum() / (1 / took**2).sum())
    constant = float(((flat / took - 1) ** 2).sum())
    residual = float(((fitted / took - 1) ** 2).sum())
    return 1 - residual / constant if constant > 0 else 1.0
