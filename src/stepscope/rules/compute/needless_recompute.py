"""Activations are thrown away and computed again in backward.

What it sees: forward operators that run a second time inside backward with the inputs they had
before (activation checkpointing), their kernels and the host's time from the first to the last of
them.

Why it costs: the second run is a whole forward pass of what is checkpointed, about a third more
arithmetic, and buys nothing but memory. Where that memory is free it is bought for nothing.

Evidence it needs: operators with sequence numbers, which the profiler records; shapes
(`record_shapes=True`) to tell how much the kept activations would take; allocator events
(`profile_memory=True`) to tell whether they fit.

What to do: checkpoint fewer blocks, or none: every second block first, then watch the peak
(`torch.cuda.max_memory_allocated`).

Example: a 12-layer GPT checkpointed every block: 41.4 ms; without, on a card it fits on with room
to spare, 31.6 ms.
"""

from __future__ import annotations

import math

import numpy as np
from msgspec import Struct

from stepscope.analyses.grouping import distinct, matching
from stepscope.analyses.host.nesting import ancestor_with
from stepscope.analyses.intervals import Intervals, intersect, union
from stepscope.analyses.memory.recomputed import Recomputed, recomputed
from stepscope.analyses.steps.projection import BACKWARD_RANGE, rerun_forward_ops
from stepscope.core.diagnosis import Abstention, MemoryChange
from stepscope.core.numbers import size_words
from stepscope.core.trace import NONE, Bool, Int64
from stepscope.replay.changes import Change, without_host_ranges, without_tasks
from stepscope.replay.graph import Graph
from stepscope.rules.case import Case
from stepscope.rules.proposal import Proposal
from stepscope.rules.rule import Rule
from stepscope.rules.shared.host_ranges import without_ranges
from stepscope.rules.task_table import TaskTable, per_step_ms
from stepscope.workload.operands import operands, read_bytes

CODE = "needless-recompute"
BOUND = "compute"


class Policy(Struct, frozen=True, kw_only=True):
    least_share: float = 0.005
    """Share of the step spent in recomputation below which nothing is reported."""
    usable: float = 0.92
    """Share of the device's memory that may be used: above it the allocator begins to retry."""


POLICY = Policy()


class Recomputations(Struct, frozen=True, kw_only=True):
    """Each run of recomputed operators under one backward node: the host's time, and which run each
    task is of."""

    start: Int64
    end: Int64
    of_task: Int64


def propose(case: Case) -> Proposal | Abstention | None:
    """Drop the second run of as many runs as fit in memory."""
    if case.graph.on_host:
        return _on_host(case)
    table = case.table
    again_ms = per_step_ms(case.graph, table.recomputed)
    if not table.recomputed.any() or again_ms * 1e6 < POLICY.least_share * case.step_interval_ns:
        return None
    again = _recomputations(case, case.graph)
    held = recomputed(case.context)
    fits, words = _room(case, kept_bytes(table, case.graph)) if held is None else _fit(case, held)
    if fits <= 0:
        return None
    return Proposal(
        summary=f"{again_ms:.1f} ms of kernels a step are forward work done again in backward.",
        action=_action(fits) if held is None else _blocks(fits, held.num_blocks),
        evidence=(
            (
                f"{len(distinct(table.op[table.recomputed])) // max(case.graph.num_steps, 1)} "
                "operators a step run again"
            ),
            words,
        ),
        events=case.graph.task_event[table.recomputed],
        change=_dropping(again, fits),
        cautious=_dropping(again, fits / 2),
        memory=None
        if held is None
        else MemoryChange(before_bytes=held.peak_at(0.0), after_bytes=held.peak_at(fits)),
    )


def _on_host(case: Case) -> Proposal | None:
    """The operators are the work, and what their outputs would take is the process's memory."""
    graph, steps = case.graph, max(case.graph.num_steps, 1)
    again = _recomputations(case, graph)
    window = union(graph.call_start_ns[:1], graph.call_end_ns[-1:])
    runs = intersect(union(again.start, again.end), window)
    if runs.total < POLICY.least_share * window.total:
        return None
    free = None if case.metadata is None else case.metadata.memory_available_bytes
    words = "how much memory is free was not recorded"
    if free is not None:
        words = f"the machine has {size_words(free)} of memory free: watch what the process takes"
    return Proposal(
        summary=f"{runs.total / steps / 1e6:.1f} ms a step, as recorded, are forward work done "
        "again in backward.",
        action=_action(1.0),
        evidence=(f"{len(runs) / steps:.3g} stretches a step run again", words),
        change=lambda before: without_ranges(case, before, runs),
        cautious=lambda before: without_ranges(case, before, _every_second(runs)),
    )


def _every_second(runs: Intervals) -> Intervals:
    return Intervals(runs.start[::2], runs.end[::2])


def _fit(case: Case, held: Recomputed) -> tuple[float, str]:
    """The share of the blocks that need not be checkpointed, by the allocator's events."""
    device = case.context.device
    whole = None if device is None else device.memory_bytes
    share, num = 1.0, held.num_blocks
    if whole:
        room = POLICY.usable * whole
        shares = [number / num for number in range(num + 1)]
        share = max((each for each in shares if held.peak_at(each) <= room), default=0.0)
    of = "" if not whole else f" of {size_words(whole)}"
    words = (
        f"{round(share * num)} of {num} blocks not checkpointed: a peak of "
        f"{size_words(held.peak_at(share))} in place of {size_words(held.peak_at(0.0))}{of}"
    )
    return share, words


def _blocks(fits: float, num: int) -> str:
    """Words for which blocks to checkpoint: the last ones are made again first, and while most else
    is held."""
    if fits >= 1:
        return _action(fits)
    return (
        f"checkpoint the first {num - round(fits * num)} of {num} blocks alone, and watch memory's "
        "peak"
    )


def _action(fits: float) -> str:
    if fits >= 1:
        return (
            "no activation checkpointing (gradient_checkpointing_disable(), no checkpoint() "
            "around blocks); watch the peak"
        )
    return f"checkpoint {math.ceil((1 - fits) * 10)} blocks of 10, and watch memory's peak"


def _recomputations(case: Case, graph: Graph) -> Recomputations:
    """Recomputed operators by the backward node they run in."""
    trace, links = case.context.trace, case.context.links
    ops = np.flatnonzero(rerun_forward_ops(trace, links))
    inside = matching(trace, BACKWARD_RANGE)
    node = ancestor_with(links.parent, ops, inside)
    nodes, which = np.unique(node, return_inverse=True)
    # A node begins with asking for what it saved: all up to the first operator that runs again is
    # checkpointing's own.
    first = np.full(len(nodes), np.iinfo(np.int64).max)
    np.minimum.at(first, which, trace.start_ns[ops])
    start = np.where(nodes == NONE, first, trace.start_ns[nodes])
    end = np.zeros(len(nodes), np.int64)
    np.maximum.at(end, which, trace.end_ns[ops])
    launch = links.launch[graph.task_event]
    task_node = ancestor_with(links.parent, launch, inside)
    position = np.minimum(np.searchsorted(nodes, task_node), len(nodes) - 1)
    began = trace.start_ns[np.maximum(launch, 0)]
    hit = (
        (task_node != NONE)
        & (nodes[position] == task_node)
        & (began >= start[position])
        & (began < end[position])
    )
    return Recomputations(start=start, end=end, of_task=np.where(hit, position, NONE))


def _dropping(recomputed: Recomputations, share: float) -> Change:
    """Drop the recomputation of this share of the runs, spread evenly over the step."""
    numbers = np.arange(len(recomputed.start))
    chosen: Bool = np.floor((numbers + 1) * share) > np.floor(numbers * share)

    def change(graph: Graph) -> Graph:
        gone = (recomputed.of_task != NONE) & chosen[np.maximum(recomputed.of_task, 0)]
        times: Intervals = union(recomputed.start[chosen], recomputed.end[chosen])
        return without_host_ranges(without_tasks(graph, gone), times)

    return change


def kept_bytes(table: TaskTable, graph: Graph) -> float | None:
    """What a step would have to keep instead: the outputs of the recomputed operators; None when
    shapes do not tell."""
    if not table.trace.meta.has_shapes:
        return None
    total = 0.0
    for op in distinct(table.op[table.recomputed]).tolist():
        work, inputs = table.work(op), table.inputs(op)
        if work is None or inputs is None or work.bytes is None:
            continue
        total += max(
            work.bytes - (read_bytes(*operands(inputs, range(len(inputs.dims)))) or 0.0), 0.0
        )
    return total / max(graph.num_steps, 1)


def _room(case: Case, needed: float | None) -> tuple[float, str]:
    """The share of the recomputed activations that fits in memory, and what that was judged by."""
    device, memory = case.context.device, case.context.trace.memory
    whole = None if device is None else device.memory_bytes
    if whole is None or needed is None:
        return (
            1.0,
            f"whether what it saves would fit is not known: {case.recorder.with_memory_and_shapes}",
        )
    peak = 0
    if memory is not None and len(memory.allocated_bytes):
        peak = int(
            memory.allocated_bytes[memory.device == (0 if device is None else device.index)].max(
                initial=0
            )
        )
    free = POLICY.usable * whole - peak
    fits = float(np.clip(free / max(needed, 1.0), 0.0, 1.0))
    peak_text = f"its peak was not recorded ({case.recorder.memory} records it)"
    if peak:
        peak_text = f"the peak is {peak / 1e9:.0f} GB"
    return (
        fits,
        (
            f"keeping it takes about {needed / 1e9:.1f} GB of the device's {whole / 1e9:.0f} GB; "
            f"{peak_text}"
        ),
    )


RULE = Rule(code=CODE, bound=BOUND, text=__doc__, propose=propose)
