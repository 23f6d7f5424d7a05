"""What each task uses: the bus, the wire, the arithmetic units or the device's memory."""

from __future__ import annotations

import numpy as np

from stepscope.analyses.collectives.events import host_collectives
from stepscope.analyses.grouping import is_among
from stepscope.analyses.host.activity import ON_DEVICE_COPY
from stepscope.analyses.kernels.roofline import compute_bound
from stepscope.analyses.naming import matching
from stepscope.analyses.rank_context import RankContext
from stepscope.core.trace import Kind
from stepscope.replay.graph import Graph
from stepscope.replay.resources import TaskKinds


def task_kinds(context: RankContext, graph: Graph) -> TaskKinds:
    """By its roofline where its work is known;
    else matrix kernels are arithmetic, the rest memory."""
    trace, work, tasks = context.trace, context.kernels, graph.task_event
    if graph.on_host:
        shared, none = host_collectives(trace)[tasks], np.zeros(len(tasks), np.bool_)
        return TaskKinds(transfer=none, comms=shared, arithmetic=~shared, memory=none)
    trace, comms = graph.of_trace(context.trace), context.collective[tasks]
    on_units = is_among(tasks, work.kernels[compute_bound(work, context.roofs)])
    transfer = (trace.kind[tasks] == Kind.MEMCPY) & ~matching(trace, ON_DEVICE_COPY)[tasks]
    compute = (trace.kind[tasks] == Kind.KERNEL) & ~comms & on_units
    return TaskKinds(
        transfer=transfer, comms=comms, arithmetic=compute, memory=~transfer & ~comms & ~compute
    )
