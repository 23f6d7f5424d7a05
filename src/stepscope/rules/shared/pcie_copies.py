"""Copies over PCIe: which tasks, how large, how fast from pinned memory, what waits for them."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from stepscope.analyses.grouping import distinct, matching, median
from stepscope.core.hardware import OperatorCall
from stepscope.core.trace import NONE, Bool, Float64, Kind
from stepscope.replay.changes import with_part_ns, without_waits
from stepscope.replay.graph import Graph
from stepscope.rules.case import Case
from stepscope.rules.shared.host_ranges import call_of_task
from stepscope.rules.shared.measured import probed_time

PAGEABLE_TO_DEVICE = re.compile(r"^Memcpy HtoD \(Pageable")
PINNED_TO_DEVICE = re.compile(r"^Memcpy HtoD \(Pinned")
TO_DEVICE = re.compile(r"HtoD|HostToDevice")
TO_HOST = re.compile(r"DtoH|DeviceToHost")

LARGE_BYTES = 1 << 20
"""Size from which a copy's time is its bytes: at 10 to 60 GB/s a mebibyte takes 20 us and more, the
start of a copy about 2."""
LARGEST_LOG2 = 28
"""Base-2 logarithm of the bytes of the largest copy that is timed: larger ones run at the same
rate."""
PINNED_SHARE = 0.8
"""Share of a PCIe link's raw rate that one pinned copy reaches: packets cost a tenth and more of
it; 55 of 64 GB/s on an H200 (lab)."""


def copy_tasks(case: Case, pattern: re.Pattern[str]) -> Bool:
    """Mask of the graph's tasks that are copies of this kind, each launched by a call of its own:
    not inside a CUDA graph."""
    trace, tasks = case.replayed, case.graph.task_event
    mask: Bool = (
        (trace.kind[tasks] == Kind.MEMCPY)
        & matching(trace, pattern)[tasks]
        & ~case.context.links.shared[tasks]
    )
    return mask


def sizes(case: Case) -> Float64:
    """Bytes of each task of the graph; NaN where they were not recorded."""
    trace, tasks = case.context.trace, case.graph.task_event
    own, launch = trace.size_bytes[tasks], case.context.links.launch[tasks]
    size = np.where(own == NONE, trace.size_bytes[np.maximum(launch, 0)], own).astype(np.float64)
    return np.where(size >= 0, size, np.nan)


def pinned_bytes_per_s(case: Case, share: float = PINNED_SHARE) -> float | None:
    """What the trace's own large pinned copies reach, else what was timed on the machine or it was
    calibrated to, else this share of the link's rate; None when none is known. A measured rate is
    cut as much as the share is below the usual."""
    size, pinned = sizes(case), copy_tasks(case, PINNED_TO_DEVICE)
    large = pinned & (size >= LARGE_BYTES) & (case.graph.task_ns > 0)
    if large.any():
        return median(size[large] / case.graph.task_ns[large]) * 1e9
    roofs = case.context.roofs
    reached = _timed_bytes_per_s(case)
    if reached is None and roofs is not None and roofs.measured is not None:
        reached = roofs.measured.copy_bytes_per_s("to_device_pinned")
    if reached is not None:
        return reached * share / PINNED_SHARE
    link = None if roofs is None else roofs.spec.link_bytes_per_s.get("pcie")
    return None if link is None else link.value * share


def _timed_bytes_per_s(case: Case) -> float | None:
    """Rate of a pinned copy of about the size of the run's largest pageable one."""
    size, pageable = sizes(case), copy_tasks(case, PAGEABLE_TO_DEVICE)
    large = pageable & (size >= LARGE_BYTES)
    if not large.any():
        return None
    asked = 1 << min(int(size[large].max()).bit_length() - 1, LARGEST_LOG2)
    weight = per_step(case.graph, float(case.graph.task_ns[pageable].sum()))
    found = probed_time(case.context.roofs, copy_call(asked), "pinned", weight)
    return None if found is None else asked / found.ns * 1e9


def copy_call(num_bytes: int) -> OperatorCall:
    """Copy of so many bytes from the host to the device."""
    return OperatorCall(
        op="copy_to_device", dims=((num_bytes,),), types=("uint8",), strides=(), concrete=("",)
    )


def launching(graph: Graph, tasks: Bool) -> Bool:
    """Mask of the calls that launch any of the masked tasks."""
    mask = np.zeros(len(graph.call_event), np.bool_)
    mask[call_of_task(graph)[tasks]] = True
    return mask


def waits_for(case: Case, graph: Graph, calls: Bool) -> Bool:
    """The masked calls, and those that wait in the same operator: `aten::copy_` waits for its
    stream unless told not to."""
    parent = case.context.links.parent[graph.call_event]
    operators = distinct(parent[calls & (parent != NONE)])
    waiting: Bool = calls | ((graph.call_wait != NONE) & np.isin(parent, operators))
    return waiting


def without_blocking(case: Case, graph: Graph, tasks: Bool) -> Graph:
    """The host goes on at once from the calls of the masked copies: it neither moves the bytes nor
    waits for the device."""
    calls = launching(graph, tasks)
    free = without_waits(graph, waits_for(case, graph, calls))
    usual = median(graph.task_latency_ns) if len(graph) else 0.0
    latency = np.where(tasks, np.minimum(free.task_latency_ns, usual), free.task_latency_ns)
    feeding = np.where(calls, 0.0, graph.call_parts["transfer"])
    return with_part_ns(replace(free, task_latency_ns=latency), "transfer", feeding)


def at_rate(case: Case, graph: Graph, tasks: Bool, bytes_per_s: float | None) -> Graph:
    """The masked copies at this rate, where that is faster and their bytes are known."""
    if bytes_per_s is None:
        return graph
    faster = np.fmin(graph.task_ns, sizes(case) / bytes_per_s * 1e9)
    return replace(graph, task_ns=np.where(tasks, faster, graph.task_ns))


def per_step(graph: Graph, total: float) -> float:
    return total / max(graph.num_steps, 1)
