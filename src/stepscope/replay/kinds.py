"""What each task uses: the bus, the wire, the arithmetic units or the device's memory."""

from __future__ import annotations

import numpy as np

from stepscope.analyses.kernel_names import MATRIX_CATEGORIES
from stepscope.analyses.survey import Survey
from stepscope.core.trace import Kind
from stepscope.replay.graph import Graph
from stepscope.replay.resources import TaskKinds


def task_kinds(found: Survey, graph: Graph) -> TaskKinds:
    """By its roofline where its work is known: the roof it is under; else matrix kernels are arithmetic, the rest memory."""
    trace, work, tasks = found.trace, found.kernels, graph.task_event
    arithmetic = work.of_category(*MATRIX_CATEGORIES)
    if found.roofs is not None:
        traffic = work.bytes / found.roofs.spec.bandwidth_bytes_per_s.value * 1e9
        known = ~np.isnan(work.floor_ns) & ~np.isnan(traffic)
        arithmetic = np.where(known, traffic < work.floor_ns * (1 - 1e-9), arithmetic)
    on_units = np.zeros(len(trace), np.bool_)
    on_units[work.kernels[arithmetic]] = True
    kernel, comms = trace.kind[tasks] == Kind.KERNEL, found.collective[tasks]
    transfer = trace.kind[tasks] == Kind.MEMCPY
    compute = kernel & ~comms & on_units[tasks]
    return TaskKinds(transfer=transfer, comms=comms, arithmetic=compute, memory=~transfer & ~comms & ~compute)
