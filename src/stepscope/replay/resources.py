"""What limits the step: the resource whose absence shortens the replayed step most,
and which tasks are of which."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from msgspec import Struct

from stepscope.analyses.grouping import is_among, matching
from stepscope.analyses.host.activity import ON_DEVICE_COPY
from stepscope.analyses.kernels.roofline import compute_bound
from stepscope.analyses.links import host_collectives
from stepscope.analyses.rank_context import RankContext
from stepscope.core.trace import NONE, Bool, Kind
from stepscope.replay.changes import without_host_parts, without_tasks, without_waits
from stepscope.replay.graph import Graph
from stepscope.replay.simulate import play


def task_kinds(context: RankContext, graph: Graph) -> TaskKinds:
    """Kind of each task by its roofline where its work is known; else matrix kernels are
    arithmetic, the rest memory."""
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


class TaskKinds(Struct, frozen=True, kw_only=True):
    """Uses of each task of a graph; no task is two of these."""

    transfer: Bool
    comms: Bool
    arithmetic: Bool
    """Kernels bound by arithmetic."""
    memory: Bool
    """Kernels bound by device memory."""


def without_host(graph: Graph) -> Graph:
    """A host that takes no time and never waits: what is left is input, copies and the device.
    What it does itself, operators or collectives, it awaits."""
    quick = without_host_parts(graph, "work", "allocator", "compile", "io", "gc")
    if graph.on_host:
        return quick
    free = without_waits(quick, graph.call_wait != NONE)
    return replace(free, task_latency_ns=np.zeros_like(graph.task_latency_ns))


FREE: Mapping[str, Callable[[Graph, TaskKinds], Graph]] = {
    "data": lambda graph, _: without_host_parts(graph, "input"),
    "host": lambda graph, _: without_host(graph),
    "transfer": lambda graph, kinds: without_host_parts(
        without_tasks(graph, kinds.transfer), "transfer"
    ),
    "comms": lambda graph, kinds: without_host_parts(without_tasks(graph, kinds.comms), "comms"),
    "compute": lambda graph, kinds: without_host_parts(
        without_tasks(graph, kinds.arithmetic), "operators"
    ),
    "memory": lambda graph, kinds: without_tasks(graph, kinds.memory),
}
"""Graph without a resource, for each."""


def shares(graph: Graph, kinds: TaskKinds, *, paced_by_loader: bool = False) -> dict[str, float]:
    """Share by which the step is shorter without each resource. With `paced_by_loader` only input
    can make it shorter."""
    whole = play(graph).step_interval_ns
    if not whole > 0:
        return dict.fromkeys(FREE, 0.0)

    def less(names: Sequence[str]) -> float:
        changed = graph
        for name in names:
            if name == "data" or not paced_by_loader:
                changed = FREE[name](changed, kinds)
        return max(0.0, 1.0 - play(changed).step_interval_ns / whole)

    own = {name: less([name]) for name in FREE}
    return counted_once(own, sorted(own, key=lambda name: -own[name]), less)


def counted_once(
    own: Mapping[str, float], order: Sequence[str], less: Callable[[Sequence[str]], float]
) -> dict[str, float]:
    """Shares that sum to one at most: what two resources both account for is counted with the
    earlier in `order`. `less` says how much shorter the step is without several at once."""
    if sum(own.values()) <= 1.0:
        return dict(own)
    counted, before = dict.fromkeys(own, 0.0), 0.0
    for place, name in enumerate(order, 1):
        after = max(before, less(order[:place]))
        counted[name] = min(own[name], after - before)
        before = after
    return counted
