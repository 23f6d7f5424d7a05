"""Parameters are gathered a second time for the backward pass.

What it sees: all-gathers launched in backward of the same sizes as those of the forward pass of
that step: fully sharded training that frees a layer's weights after its forward and fetches them
again.

Why it costs: each gather moves all weights over the link: with the gradients' reduce-scatter three
passes where two would do.

Evidence it needs: the collectives' sizes, which c10d records by itself, and backward's ranges
(`ProfilerActivity.CPU`). With `profile_memory=True` it proposes no more than the device's memory
has room for; without, it says that this is not known.

What to do: FSDP2: fully_shard(..., reshard_after_forward=False), or an integer to reshard within a
node only; FSDP1: ShardingStrategy.SHARD_GRAD_OP. It is ZeRO-2 in place of ZeRO-3: the whole weights
stay in memory from forward to backward, so look at the memory that is free first. Where they do not
fit, keep it for the last layers alone: they are needed again at once.

Example: four layers gathered twice took 57 ms a step, 41 ms when they were kept.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from stepscope.analyses.grouping import matching
from stepscope.analyses.intervals import union
from stepscope.core.diagnosis import MemoryChange
from stepscope.core.trace import NONE, Bool
from stepscope.replay.changes import without_host_ranges
from stepscope.replay.job import with_graphs
from stepscope.replay.simulate_job import JobGraph
from stepscope.rules.job_case import JobCase, JobProposal, without_collectives
from stepscope.rules.rule import Rule
from stepscope.rules.shared.messages import launched_inside, messages

CODE = "resharded-forward"
BOUND = "comms"
UNSHARD = re.compile(r"^FSDP::pre_backward|^FullyShardedDataParallel\._pre_backward_hook")
"""Ranges in which FSDP2 and FSDP1 ask for a layer's parameters in backward, and copy them to where
they are used."""

HOST_MEMORY = 0
"""c10::DeviceType of the host, as the allocator's events have it."""


class Policy(Struct, frozen=True, kw_only=True):
    least_share: float = 0.5
    """Share of the bytes gathered in forward that backward gathers again: less is a few layers kept
    sharded on purpose."""
    usable: float = 0.95
    """Share of the device's memory that an allocator may reserve: the context, NCCL's buffers and
    the libraries' need some."""


POLICY = Policy()


def propose_job(job: JobCase) -> JobProposal | None:
    """The gathers of the backward pass are gone, as far as memory has room for what they bring."""
    regathered = [_again(job, index) for index in range(len(job.cases))]
    room = _room_bytes(job)
    masks = [
        mask if room is None else _fitting(job, index, mask, room)
        for index, (mask, _) in enumerate(regathered)
    ]
    if not all(mask.any() for mask in masks):
        return None
    steps = max(job.job_graph.parts[0].graph.num_steps, 1)
    num, size = int(masks[0].sum()), regathered[0][1] / steps / 1e6
    memory = f"whether the memory is there is not known: {job.cases[0].recorder.with_memory}"
    if room is not None:
        memory = f"{room / 1e6:.0f} MB of device memory are not reserved on the rank with least"
    part = " of the last layers, which is what memory has room for"
    if num == int(regathered[0][0].sum()):
        part = ""
    return JobProposal(
        summary=f"{size:.0f} MB of parameters are gathered again for backward in each step.",
        action="fully_shard(..., reshard_after_forward=False) (FSDP1: "
        f"ShardingStrategy.SHARD_GRAD_OP){part}: the whole"
        f" parameters, {size:.0f} MB for all layers, then stay until backward",
        evidence=(
            f"{num / steps:.0f} all-gathers a step in backward, of the sizes that forward gathers",
            memory,
        ),
        change=lambda job_graph: _kept(job, job_graph, masks),
        memory=_memory(job, masks, steps),
    )


def _memory(job: JobCase, masks: Sequence[Bool], steps: int) -> MemoryChange | None:
    """The fullest rank's peak, with what it keeps of a step's gathers on top; None where no peak
    was recorded."""
    peaks = [
        (case.facts.memory.peak_bytes, index)
        for index, case in enumerate(job.cases)
        if case.facts.memory is not None
    ]
    if not peaks:
        return None
    before, index = max(peaks)
    sent = messages(job, index, lambda kind: kind.op == "all_gather" and kind.on_device)
    kept = float(np.nansum(sent.bytes[masks[index][sent.task]])) / steps
    return MemoryChange(before_bytes=before, after_bytes=before + round(kept))


def _room_bytes(job: JobCase) -> float | None:
    """Device memory that the allocator never reserved, on the rank with least; None where any rank
    does not tell."""
    rooms = []
    for case in job.cases:
        device, memory = case.context.device, case.context.trace.memory
        if device is None or device.memory_bytes is None or memory is None:
            return None
        reserved = memory.reserved_bytes[
            (memory.device == device.index) & (memory.device_type != HOST_MEMORY)
        ]
        if not reserved.max(initial=0) > 0:
            return None
        rooms.append(max(POLICY.usable * device.memory_bytes - float(reserved.max()), 0.0))
    return min(rooms) if rooms else None


def _fitting(job: JobCase, index: int, mask: Bool, room: float) -> Bool:
    """The gathers whose parameters fit in `room`, those that backward asks for first: the last
    layers."""
    sent = messages(job, index, lambda kind: kind.op == "all_gather" and kind.on_device)
    kept, taken = np.zeros_like(mask), Counter[int]()
    for task, size, step in zip(
        sent.task.tolist(), sent.bytes.tolist(), sent.step.tolist(), strict=True
    ):
        if mask[task] and taken[step] + size <= room:
            kept[task] = True
            taken[step] += size
    return kept


def _again(job: JobCase, index: int) -> tuple[Bool, float]:
    """Mask of the gathers in backward that forward made too, and their bytes in all steps."""
    table = job.cases[index].table
    sent = messages(job, index, lambda kind: kind.op == "all_gather" and kind.on_device)
    mask, size = np.zeros(len(job.job_graph.parts[index].graph), np.bool_), 0.0
    forward_bytes, unmatched = 0.0, Counter[tuple[int, str, float]]()
    for position, kind in enumerate(sent.kind):
        if sent.step[position] == NONE or np.isnan(sent.bytes[position]):
            continue
        key = (int(sent.step[position]), kind.group, float(sent.bytes[position]))
        if not table.backward[sent.task[position]]:
            unmatched[key] += 1
            forward_bytes += sent.bytes[position]
        elif unmatched[key] > 0:
            unmatched[key] -= 1
            mask[sent.task[position]] = True
            size += sent.bytes[position]
    if size < POLICY.least_share * forward_bytes:
        return np.zeros_like(mask), 0.0
    return mask, size


def _kept(job: JobCase, job_graph: JobGraph, masks: Sequence[Bool]) -> JobGraph:
    """Neither the gathers, nor what the host does for them, nor the copies of what came."""
    graphs, gone = [], []
    for index, (part, mask) in enumerate(zip(job_graph.parts, masks, strict=True)):
        trace = job.cases[index].context.trace
        asking = np.flatnonzero(matching(trace, UNSHARD) & ~trace.device_work)
        graphs.append(
            without_host_ranges(part.graph, union(trace.start_ns[asking], trace.end_ns[asking]))
        )
        inside = launched_inside(job, index, lambda name: UNSHARD.search(name) is not None)
        gone.append(mask | (inside & (part.shared == NONE)))
    return without_collectives(with_graphs(job_graph, graphs), gone)


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, propose_job=propose_job)
