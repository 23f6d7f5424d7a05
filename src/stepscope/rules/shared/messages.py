"""The collectives of a job as messages: tasks, sizes, times, and the cost of a size on its link."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec import Struct

from stepscope.analyses.collectives.link_fit import Cost, cost_of
from stepscope.analyses.host.nesting import ancestor_with
from stepscope.core.comms import Collective
from stepscope.core.trace import NONE, Bool, Float64, Int64
from stepscope.replay.simulate_job import JobGraph
from stepscope.rules.job_case import JobCase
from stepscope.rules.shared.host_ranges import call_of_task

__all__ = ["Cost", "Messages", "cost_of", "launched_inside", "messages", "times_ns"]


class Messages(Struct, frozen=True, kw_only=True):
    """A rank's collectives of some kind that are tasks of its graph, in launch order."""

    task: Int64
    number: Int64
    """Of the collective; NONE where no other rank takes part in the replay."""
    bytes: Float64
    """NaN where not recorded."""
    kind: tuple[Collective, ...]
    step: Int64

    def __len__(self) -> int:
        return len(self.task)


def messages(job: JobCase, index: int, wanted: Callable[[Collective], bool]) -> Messages:
    """A rank's messages of a wanted kind."""
    collective_records, part = job.rank_records[index], job.job_graph.parts[index]
    kind_of = dict(
        zip(collective_records.event.tolist(), collective_records.kind.tolist(), strict=True)
    )
    task = np.flatnonzero(job.tasks(index, job.entries(index, wanted)))
    kinds = tuple(
        collective_records.kinds[kind_of[event]] for event in part.graph.task_event[task].tolist()
    )
    return Messages(
        task=task,
        number=part.shared[task],
        bytes=np.array(
            [np.nan if kind.bytes is None else kind.bytes for kind in kinds], np.float64
        ),
        kind=kinds,
        step=part.graph.task_step[task],
    )


def times_ns(job_graph: JobGraph, index: int, sent: Messages) -> Float64:
    """How long each message's bytes move, from the moment all have arrived."""
    own = job_graph.parts[index].graph.task_ns[sent.task]
    if len(job_graph.moving_ns) == 0:
        return own
    return np.where(sent.number == NONE, own, job_graph.moving_ns[np.maximum(sent.number, 0)])


def launched_inside(job: JobCase, index: int, names: Callable[[str], bool]) -> Bool:
    """Mask over a rank's tasks: launched inside a host range whose name is wanted."""
    context, graph = job.cases[index].context, job.job_graph.parts[index].graph
    wanted = (
        np.array([names(name) for name in context.trace.names], np.bool_)[context.trace.name]
        & ~context.trace.device_work
    )
    inside: Bool = ancestor_with(context.links.parent, graph.call_event, wanted) != NONE
    return inside[call_of_task(graph)]
