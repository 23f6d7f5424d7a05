"""The collectives of a job as messages: their tasks, sizes and times, and what a size costs on this job's own link."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from stepscope.analyses.collectives.link_fit import Cost, cost_of
from stepscope.analyses.host.nesting import ancestor_with
from stepscope.core.comms import Collective
from stepscope.core.trace import NONE, Bool, Float64, Int64
from stepscope.replay.simulate_job import JobGraph
from stepscope.rules.job_case import JobCase

__all__ = ["Cost", "Messages", "call_of_task", "cost_of", "launched_inside", "messages", "times_ns"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Messages:
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


def messages(job: JobCase, place: int, wanted: Callable[[Collective], bool]) -> Messages:
    """A rank's messages of a wanted kind."""
    collective_records, part = job.rank_records[place], job.job_graph.parts[place]
    kind_of = dict(zip(collective_records.event.tolist(), collective_records.kind.tolist(), strict=True))
    task = np.flatnonzero(job.tasks(place, job.entries(place, wanted)))
    kinds = tuple(collective_records.kinds[kind_of[event]] for event in part.graph.task_event[task].tolist())
    return Messages(
        task=task,
        number=part.shared[task],
        bytes=np.array([np.nan if kind.bytes is None else kind.bytes for kind in kinds], np.float64),
        kind=kinds,
        step=part.graph.task_step[task],
    )


def times_ns(job_graph: JobGraph, place: int, found: Messages) -> Float64:
    """How long each message's bytes move, from the moment all have arrived."""
    own = job_graph.parts[place].graph.task_ns[found.task]
    return np.where(
        found.number == NONE, own, job_graph.moving_ns[np.maximum(found.number, 0)] if len(job_graph.moving_ns) else own
    )


def call_of_task(job: JobCase, place: int) -> Int64:
    """Per task, the call that launched it."""
    graph = job.job_graph.parts[place].graph
    return np.repeat(np.arange(len(graph.call_event)), np.diff(graph.call_first))


def launched_inside(job: JobCase, place: int, names: Callable[[str], bool]) -> Bool:
    """Mask over a rank's tasks: launched inside a host range whose name is wanted."""
    found, graph = job.cases[place].context, job.job_graph.parts[place].graph
    wanted = np.array([names(name) for name in found.trace.names], np.bool_)[found.trace.name] & ~found.trace.device_work
    inside: Bool = ancestor_with(found.links.parent, graph.call_event, wanted) != NONE
    return inside[call_of_task(job, place)]
