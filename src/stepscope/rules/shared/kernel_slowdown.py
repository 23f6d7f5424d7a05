"""The same kernels on several ranks: how much slower one rank runs them than the others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from stepscope.analyses.grouping import grouped
from stepscope.core.trace import Float64, Launch
from stepscope.rules.job_case import JobCase

Key = tuple[str, tuple[int, ...] | None, tuple[int, ...] | None]

MIN_KERNEL_NS = 10_000.0
"""Shorter kernels are launch and drain: they do not follow the clock."""
MIN_SAME = 0.9
"""Share of a rank's kernel time, and of the others', that must be in kernels that all launch
equally often with the same geometry: the same work."""
MAX_LACKING = 0.1
"""Largest ratio of the others' extra kernel time to the rank's own: up to this it does all that
they do. A library may choose another kernel for the same work on each rank."""


class KernelSlowdown(Struct, frozen=True, kw_only=True):
    """One rank against the median of the others, over the kernels they share."""

    factor: float
    """Ratio of its time to theirs, the median weighted by time."""
    low: float
    """The tenth percentile of that ratio, weighted by time."""
    num_kernels: int


def kernel_slowdown(job: JobCase, index: int) -> KernelSlowdown | None:
    """None when the ranks do not run the same kernels: then it is the work that differs."""
    by_rank = [_kernels(job, other) for other in range(len(job.cases))]
    own_kernels = by_rank[index]
    others = [kernels for other, kernels in enumerate(by_rank) if other != index]
    if not own_kernels or not others:
        return None
    same = [
        key
        for key, durations in own_kernels.items()
        if all(key in kernels and len(kernels[key]) == len(durations) for kernels in others)
    ]
    if any(
        _time(kernels, same) < MIN_SAME * _time(kernels, list(kernels))
        for kernels in (own_kernels, *others)
    ):
        return None
    usual = np.array([np.median([np.median(kernels[key]) for kernels in others]) for key in same])
    own = np.array([np.median(own_kernels[key]) for key in same])
    weight = usual * np.array([len(own_kernels[key]) for key in same])
    chosen = usual >= MIN_KERNEL_NS
    if not chosen.any():
        return None
    ratio = (own / np.maximum(usual, 1.0))[chosen]
    return KernelSlowdown(
        factor=_quantile(ratio, weight[chosen], 0.5),
        low=_quantile(ratio, weight[chosen], 0.1),
        num_kernels=len(ratio),
    )


class ExtraKernels(Struct, frozen=True, kw_only=True):
    """What one rank launches a step beyond what any other does."""

    num: float
    ns: float


def extra_kernels(job: JobCase, index: int) -> ExtraKernels | None:
    """None where it launches no more, or the others spend time on what it does not launch: another
    size of the same work takes other kernels on both sides."""
    by_rank = [_kernels(job, other) for other in range(len(job.cases))]
    own = by_rank.pop(index)
    more = [_surplus(own, kernels) for kernels in by_rank]
    num, time_ns = min(each[0] for each in more), min(each[1] for each in more)
    lacking_ns = max(_surplus(kernels, own)[1] for kernels in by_rank)
    if num == 0 or lacking_ns > MAX_LACKING * time_ns:
        return None
    steps = max(min(part.graph.num_steps for part in job.job_graph.parts), 1)
    return ExtraKernels(num=num / steps, ns=time_ns / steps)


def _surplus(
    first_side: dict[Key, list[float]], other: dict[Key, list[float]]
) -> tuple[int, float]:
    """Launches of one rank beyond another's, and their time."""
    num, time_ns = 0, 0.0
    for key, durations in first_side.items():
        more = len(durations) - len(other.get(key, ()))
        if more > 0:
            num += more
            time_ns += sum(durations) * more / len(durations)
    return num, time_ns


def _kernels(job: JobCase, index: int) -> dict[Key, list[float]]:
    """Durations of a rank's compute kernels by name and launch geometry, over the steps that all
    ranks have."""
    case, graph = job.cases[index], job.job_graph.parts[index].graph
    steps = min(part.graph.num_steps for part in job.job_graph.parts)
    trace, durations = case.context.trace, dict[Key, list[float]]()
    chosen = np.flatnonzero(job.compute_tasks(index) & (graph.task_step < steps))
    events = graph.task_event[chosen]
    order, begins = grouped(
        trace.name[events].astype(np.int64) * (len(trace.details) + 1) + trace.detail[events]
    )
    for alike in np.split(events[order], begins[1:]) if len(events) else ():
        first = int(alike[0])
        launch = trace.details[trace.detail[first]] if trace.detail[first] >= 0 else None
        shape = (launch.grid, launch.block) if isinstance(launch, Launch) else (None, None)
        same = durations.setdefault((trace.names[trace.name[first]], *shape), [])
        same.extend(trace.dur_ns[alike].astype(np.float64).tolist())
    return durations


def _time(kernels: dict[Key, list[float]], keys: Sequence[Key]) -> float:
    return sum(sum(kernels[key]) for key in keys)


def _quantile(values: Float64, weight: Float64, share: float) -> float:
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weight[order]) / max(float(weight.sum()), 1.0)
    return float(values[order][min(int(np.searchsorted(reached, share)), len(values) - 1)])
