"""The collectives of a job as messages: tasks, sizes, times, and the cost of a size on its link."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from msgspec import Struct

from stepscope.analyses.collectives.link_fit import Cost, cost_of, least_cost_of
from stepscope.analyses.host.nesting import ancestor_with
from stepscope.analyses.intervals import contains, union
from stepscope.core.comms import Collective
from stepscope.core.trace import NONE, Bool, Float64, Int64
from stepscope.replay.job import with_graphs
from stepscope.replay.simulate_job import JobGraph
from stepscope.rules.job_case import JobCase
from stepscope.rules.shared.host_ranges import call_of_task

__all__ = [
    "Cost",
    "Messages",
    "cost_of",
    "gradient_messages",
    "launched_inside",
    "least_cost_of",
    "messages",
    "parameter_messages",
    "times_ns",
    "with_times_ns",
]
REDUCING = ("all_reduce", "reduce_scatter")
ACCUMULATE = re.compile("AccumulateGrad")
REDUCE = re.compile(
    r"AccumulateGrad|^FSDP::post_backward|^FullyShardedDataParallel\._post_backward"
)
"""Ranges in which DDP, FSDP2 and FSDP1 send gradients."""
UNSHARD = re.compile(r"^FSDP::(pre_|root_pre_|all_gather)|^FullyShardedDataParallel\.")
"""Ranges in which FSDP2 and FSDP1 ask for parameters."""


class Messages(Struct, frozen=True, kw_only=True):
    """A rank's collectives of some kind that are tasks of its graph, in launch order."""

    task: Int64
    number: Int64
    """Number of the collective; NONE where no other rank takes part in the replay."""
    bytes: Float64
    """NaN where not recorded."""
    kind: tuple[Collective, ...]
    step: Int64

    def __len__(self) -> int:
        return len(self.task)

    def at(self, chosen: Int64) -> Messages:
        """Messages at these positions."""
        return Messages(
            task=self.task[chosen],
            number=self.number[chosen],
            bytes=self.bytes[chosen],
            kind=tuple(self.kind[position] for position in chosen.tolist()),
            step=self.step[chosen],
        )


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
    if graph.on_host:
        # A call of such a graph is the collective itself, which another thread carries out.
        ranges = np.flatnonzero(wanted & context.host.driving)
        asked = union(context.trace.start_ns[ranges], context.trace.end_ns[ranges])
        return contains(asked, graph.call_start_ns)[call_of_task(graph)]
    inside: Bool = ancestor_with(context.links.parent, graph.call_event, wanted) != NONE
    return inside[call_of_task(graph)]


def gradient_messages(job: JobCase, index: int, inside: re.Pattern[str] = REDUCE) -> Messages:
    """A rank's exchanges of gradients of known size, sent as backward makes them: nothing of
    backward waits for them."""
    sent = messages(job, index, lambda kind: kind.op in REDUCING)
    return _sent_inside(job, index, sent, inside)


def parameter_messages(job: JobCase, index: int) -> Messages:
    """A rank's gathers of sharded parameters of known size."""
    sent = messages(job, index, lambda kind: kind.op == "all_gather" and kind.on_device)
    return _sent_inside(job, index, sent, UNSHARD)


def _sent_inside(job: JobCase, index: int, sent: Messages, inside: re.Pattern[str]) -> Messages:
    if len(sent) == 0:
        return sent
    asked = launched_inside(job, index, lambda name: inside.search(name) is not None)
    known = ~np.isnan(sent.bytes) & (sent.step != NONE)
    return sent.at(np.flatnonzero(asked[sent.task] & known))


def with_times_ns(
    job_graph: JobGraph,
    sent: Sequence[Messages],
    new_ns: Callable[[Messages, Float64], Float64],
) -> JobGraph:
    """The job's graph in which each rank's messages take what `new_ns` makes of their times: alike
    on all ranks."""
    moving, graphs = job_graph.moving_ns.copy(), []
    for index, (part, own) in enumerate(zip(job_graph.parts, sent, strict=True)):
        after = new_ns(own, times_ns(job_graph, index, own))
        shared = own.number != NONE
        moving[own.number[shared]] = after[shared]
        task_ns = part.graph.task_ns.copy()
        task_ns[own.task[~shared]] = after[~shared]
        graphs.append(replace(part.graph, task_ns=task_ns))
    return replace(with_graphs(job_graph, graphs), moving_ns=moving)
