"""Collectives that a host without a device hands over itself and waits for before it goes on: not
those of DDP or FSDP, which are sent beside other work or begin a module's forward."""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct

from stepscope.analyses.grouping import matching
from stepscope.analyses.intervals import Intervals, union
from stepscope.analyses.links import host_collectives
from stepscope.analyses.steps.projection import BACKWARD_RANGE, OPTIMIZER_RANGE
from stepscope.core.trace import NONE, Bool, Int64, Kind
from stepscope.rules.job_case import JobCase
from stepscope.rules.shared.host_ranges import call_of_task
from stepscope.rules.shared.messages import Messages, launched_inside, messages

OF_WRAPPER = re.compile(
    r"AccumulateGrad|^DistributedDataParallel\.forward|^torch\.distributed\.ddp\.reducer|^FSDP::"
    r"|^FullyShardedDataParallel\."
)
NEAR_NS = 100_000
"""A worker's range is closed a little after it has said that it is done."""


class Waited(Struct, frozen=True, kw_only=True):
    """A rank's, in launch order."""

    sent: Messages
    start: Int64
    """When the host hands it over."""
    end: Int64
    """When its next operator begins."""
    before_update: Bool
    """Mask of the messages between a backward pass and the optimizer's step: what is exchanged
    there is gradients."""

    def __len__(self) -> int:
        return len(self.sent)

    def at(self, chosen: Bool) -> Waited:
        return Waited(
            sent=self.sent.at(np.flatnonzero(chosen)),
            start=self.start[chosen],
            end=self.end[chosen],
            before_update=self.before_update[chosen],
        )

    @property
    def ranges(self) -> Intervals:
        return union(self.start, self.end)


def waited_collectives(job: JobCase, index: int) -> Waited:
    """Waited collectives of one rank."""
    context, graph = job.cases[index].context, job.job_graph.parts[index].graph
    trace, host = context.trace, context.host
    sent = messages(job, index, lambda _: True)
    own = ~launched_inside(job, index, lambda name: OF_WRAPPER.search(name) is not None)
    sent = sent.at(np.flatnonzero(own[sent.task] & (sent.step != NONE)))
    start = graph.call_start_ns[call_of_task(graph)[sent.task]]
    ops = np.flatnonzero(trace.is_kind(Kind.OP) & host.driving & ~host_collectives(trace))
    ops = ops[np.argsort(trace.start_ns[ops], kind="stable")]
    if not len(sent) or not len(ops):
        none = np.zeros(0, np.int64)
        nobody = sent.at(none)
        return Waited(sent=nobody, start=none, end=none, before_update=none.astype(np.bool_))
    handing = np.maximum(np.searchsorted(trace.start_ns[ops], start, side="right") - 1, 0)
    after = np.searchsorted(trace.start_ns[ops], trace.end_ns[ops[handing]])
    end = np.append(trace.start_ns[ops], np.iinfo(np.int64).max)[after]
    is_waited = end >= trace.end_ns[graph.task_event[sent.task]] - NEAR_NS
    end = np.minimum(end, graph.call_end_ns[-1])
    every = Waited(sent=sent, start=start, end=end, before_update=_before_update(job, index, start))
    return every.at(is_waited & (end > start))


def _before_update(job: JobCase, index: int, when: Int64) -> Bool:
    """Whether the last of backward and optimizer before is backward, and the next the optimizer."""
    trace = job.cases[index].context.trace
    events = ~trace.device_work & ~host_collectives(trace)
    backward = np.flatnonzero(events & matching(trace, BACKWARD_RANGE))
    optimizer = np.flatnonzero(events & matching(trace, OPTIMIZER_RANGE))
    both = np.concatenate((backward, optimizer))
    order = np.argsort(trace.start_ns[both], kind="stable")
    is_optimizer = (np.arange(len(both)) >= len(backward))[order]
    at = np.searchsorted(trace.start_ns[both][order], when)
    inside = (at > 0) & (at < len(both))
    at = np.clip(at, 1, max(len(both) - 1, 1))
    if len(both) < 2:
        return np.zeros(len(when), np.bool_)
    found: Bool = inside & ~is_optimizer[at - 1] & is_optimizer[at]
    return found
