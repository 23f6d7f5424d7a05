"""What limits the step: the resource whose absence shortens the replayed step most."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from msgspec import Struct

from stepscope.core.trace import NONE, Bool
from stepscope.replay.changes import without_host_parts, without_tasks, without_waits
from stepscope.replay.graph import Graph
from stepscope.replay.simulate import play


class TaskKinds(Struct, frozen=True, kw_only=True):
    """Per task of a graph, what it uses; no task is two of these."""

    transfer: Bool
    comms: Bool
    arithmetic: Bool
    """Kernels bound by arithmetic."""
    memory: Bool
    """Kernels bound by device memory."""


def without_host(graph: Graph) -> Graph:
    """A host that takes no time and never waits: what is left is input, copies and the device.
    Operators of its own it awaits."""
    if graph.on_host:
        return without_host_parts(graph, "work", "allocator", "compile", "io")
    free = without_waits(
        without_host_parts(graph, "work", "allocator", "compile", "io"), graph.call_wait != NONE
    )
    return replace(free, task_latency_ns=np.zeros_like(graph.task_latency_ns))


def free_of(graph: Graph, kinds: TaskKinds) -> dict[str, Graph]:
    """For each resource, the graph without it."""
    return {
        "data": without_host_parts(graph, "input"),
        "host": without_host(graph),
        "transfer": without_host_parts(without_tasks(graph, kinds.transfer), "transfer"),
        "comms": without_host_parts(without_tasks(graph, kinds.comms), "comms"),
        "compute": without_tasks(graph, kinds.arithmetic),
        "memory": without_tasks(graph, kinds.memory),
    }


def shares(graph: Graph, kinds: TaskKinds, *, paced_by_loader: bool = False) -> dict[str, float]:
    """For each resource, how much shorter the step is without it.
    With `paced_by_loader` only input can make it shorter."""
    whole = play(graph).step_interval_ns
    free = free_of(graph, kinds)
    if not whole > 0:
        return dict.fromkeys(free, 0.0)
    if paced_by_loader:
        free = {name: changed if name == "data" else graph for name, changed in free.items()}
    return {
        name: max(0.0, 1.0 - play(changed).step_interval_ns / whole)
        for name, changed in free.items()
    }
