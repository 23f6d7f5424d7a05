"""A larger batch: how long each kernel takes on it, and what a sample costs then.

Kernels grow with the batch as far as they fill the device; the host launches them once however
large it is; the optimizer, collectives of gradients and copies of weights do not grow at all. A
change here gives the step per sample: all that a step takes with k times the samples, by k.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
from msgspec import Struct

from stepscope.analyses.grouping import distinct, matching
from stepscope.analyses.weights import CASTS, trained_weights
from stepscope.core.memory import MemoryUse
from stepscope.core.trace import NONE, Bool, Float64, Kind, Launch
from stepscope.replay.changes import Change
from stepscope.replay.graph import Graph
from stepscope.rules.case import Case
from stepscope.rules.shared.host_ranges import call_of_task, calls_inside, tasks_of
from stepscope.rules.shared.larger_calls import larger_call
from stepscope.rules.shared.measured import first_tasks, ratio_of, timed
from stepscope.rules.shared.pcie_copies import TO_DEVICE, copy_tasks, per_step
from stepscope.rules.shared.products import is_misaligned
from stepscope.workload.operands import operand

THREADS_PER_SM = 2048
"""Resident threads of one multiprocessor: NVIDIA's data-centre GPUs since Volta (CUDA C++
Programming Guide, table of compute capabilities)."""
DATA_SIZED = re.compile(r"^aten::(nonzero|masked_select|_unique2|unique_dim|repeat_interleave)$")
"""Operators whose output is as large as the data say: how such a step grows is not known."""
WITH_SAMPLES = ("input", "transfer", "compile")
"""Parts of the host's time that are taken to grow with the samples: loading and copying do; what
compiles in each step may compile another batch again. Saving and collecting take as long whatever
the batch."""


class Sizes(Struct, frozen=True, kw_only=True):
    """How well kernels do once they are large."""

    roof_share: float = 0.6
    """Share of its roof that a kernel reaches: between what matrix kernels (0.6 to 0.7) and copies
    (0.8) do."""
    cautious_roof_share: float = 0.4
    vector_times: float = 4 / 3
    """Times that share, for products outside the tensor cores: 0.79 of the roof in fp32 (H200,
    lab/memory at 64 times the batch)."""
    factors: tuple[int, ...] = (2, 4, 8, 16)
    """Times the batch that are tried."""
    unknown_most: int = 4
    """The most that is proposed where memory is not known."""
    worth: float = 1.1
    """Times the samples a second that twice the batch must give, to be worth the doubling."""
    unknown_host: float = 0.3
    """Share of the step that the host must be worth where memory is not known: how kernels grow
    alone is no reason to try without knowing that it fits."""
    unknown_worth: float = 1.6
    """The same of the first doubling where memory is not known: only a step that hardly grows with
    the batch. Each further one is as for known memory: its gain alone is in doubt, not the
    finding."""
    tensors: int = 16
    """Copies to the device a step, from which they are not of a batch's tensors but of its
    samples: as many more of them as there are samples."""
    held_share: float = 0.5
    """Share of the device's memory that what a step with the larger batch moves may take: the rest
    is for what no step uses (averages of weights, other models, the allocator's cache)."""


SIZES = Sizes()


class Batch(Struct, frozen=True, kw_only=True):
    """A batch so many times as large."""

    times: int
    gain: float
    """Samples a second, over today's."""
    memory_bytes: int | None


def larger_batch(case: Case, graph: Graph, times: float, roof_share: float) -> Graph:
    """The step, per sample, with a batch so many times as large."""
    grows = _growing(case, graph)
    sized = at_size(case, graph, times, roof_share)
    copied = np.where(_copied(case, graph), times * graph.task_ns, graph.task_ns)
    longer = np.where(grows, sized, copied)
    parts = {
        part: ns if part in WITH_SAMPLES else ns / times for part, ns in graph.call_parts.items()
    }
    parts["work"] = np.where(_sent_one_by_one(case, graph), graph.call_parts["work"], parts["work"])
    return replace(
        graph,
        call_parts=parts,
        call_tail_ns=graph.call_tail_ns / times,
        task_ns=longer / times,
        task_latency_ns=graph.task_latency_ns / times,
        task_gap_ns=graph.task_gap_ns / times,
        task_lag_ns=graph.task_lag_ns / times,
    )


def _sent_one_by_one(case: Case, graph: Graph) -> Bool:
    """Calls that send a sample, or a part of one, to the device."""
    copies = copy_tasks(case, TO_DEVICE)
    sends = np.zeros(len(graph.call_event), np.bool_)
    if per_step(graph, float(copies.sum())) >= SIZES.tensors:
        sends[call_of_task(graph)[copies]] = True
    return sends


def is_data_sized(case: Case) -> bool:
    """Whether operators of the step give as much as the data say."""
    trace = case.context.trace
    return bool((matching(trace, DATA_SIZED) & trace.is_kind(Kind.OP)).any())


def batches(case: Case, memory: MemoryUse | None) -> list[Batch]:
    """Each size that is tried, as far as it fits and pays; none where none does. Where memory is
    not known, none that may not fit after one that surely does."""
    tried, before, is_sure = list[Batch](), 1.0, False
    for times in SIZES.factors:
        size = None if memory is None else memory.peak_at(times)
        fits = has_room(memory, times)
        if fits is False or (fits is None and times > SIZES.unknown_most):
            break
        was_sure, is_sure = is_sure, fits is None and surely_fits(case, times)
        if was_sure and not is_sure:
            break
        worth = SIZES.unknown_worth if fits is None and not tried else SIZES.worth
        gain = case.speedup(larger_batch(case, case.graph, times, SIZES.roof_share))
        if gain < worth * before:
            break
        tried.append(Batch(times=times, gain=gain, memory_bytes=size))
        before = gain
    return tried


def has_room(memory: MemoryUse | None, times: float) -> bool | None:
    """Whether a batch so many times as large fits; None where that is not known."""
    if memory is None:
        return None
    sizes = {batch.times: batch.reserved_bytes for batch in memory.batches}
    return None if times not in sizes else sizes[times] is not None


def held_bytes(case: Case, times: float) -> float | None:
    """The most that a step with a batch so many times as large can hold of what it makes or uses:
    all that its kernels move now, those that grow as many times. Of these it holds half at most: a
    tensor of samples is made in the step, written and read there once at least. None where the
    device's rate is not known."""
    graph, roofs, trace = case.graph, case.context.roofs, case.context.trace
    if roofs is None:
        return None
    size = trace.size_bytes[graph.task_event]
    at_rate = graph.task_ns * 1e-9 * roofs.spec.bandwidth_bytes_per_s.value
    moved = np.where(np.isnan(case.table.bytes), at_rate, case.table.bytes)
    moved = np.where(trace.is_kind(Kind.MEMCPY)[graph.task_event] & (size != NONE), size, moved)
    copied = np.where(_copied(case, graph), times, 1.0)
    held = moved * np.where(_growing(case, graph), times / 2, copied)
    return float(held.sum()) / max(graph.num_steps, 1)


def surely_fits(case: Case, times: float) -> bool:
    """Whether all that a step with the larger batch can hold fits with room to spare."""
    device, held = case.context.device, held_bytes(case, times)
    if held is None or device is None or not device.memory_bytes:
        return False
    return held <= SIZES.held_share * device.memory_bytes


def change_to(case: Case, times: float, roof_share: float) -> Change:
    return lambda graph: larger_batch(case, graph, times, roof_share)


def _growing(case: Case, graph: Graph) -> Bool:
    """Tasks that have more to do with more samples: neither the optimizer's, nor collectives, nor
    copies of weights."""
    trace, table = case.context.trace, case.table
    kernel = trace.is_kind(Kind.KERNEL)[graph.task_event]
    collective = case.context.collective[graph.task_event]
    return kernel & ~collective & ~table.optimizer & ~_of_weights(case)


def _copied(case: Case, graph: Graph) -> Bool:
    """Copies of samples: all but those of what is saved."""
    saved = tasks_of(graph, calls_inside(graph, case.context.host.io))
    return case.context.trace.is_kind(Kind.MEMCPY)[graph.task_event] & ~saved


def _of_weights(case: Case) -> Bool:
    trained = trained_weights(case.context)
    table = case.table
    if trained is None:
        return np.zeros(len(table.op), np.bool_)
    casts = matching(table.trace, CASTS)

    def copies_weight(op: int) -> bool:
        inputs = table.inputs(op) if op != NONE and casts[op] else None
        tensors = [] if inputs is None else [operand(inputs, 0), operand(inputs, 1)]
        return any(each is not None and tuple(each.dims) in trained.shapes for each in tensors)

    return table.where(copies_weight)


def at_size(case: Case, graph: Graph, times: float, roof_share: float) -> Float64:
    """How long each task takes on `times` times the data: no less than its roof allows, where that
    is known, and as much longer as it fills the device already: a kernel that does, and is far from
    its roof all the same, gains nothing by being larger. Products do: theirs is another kernel
    then, with larger tiles, unless their rows are odd, and only kernels that load number by number
    take them."""
    floor = np.full(len(case.context.trace), np.nan)
    floor[case.context.kernels.kernels] = case.context.kernels.floor_ns
    is_vector = case.table.of_category("gemm") & (case.table.tensor_core == 0)
    share = np.where(is_vector, min(SIZES.vector_times * roof_share, 1.0), roof_share)
    by_roof = times * floor[graph.task_event] / share
    by_fill = times * graph.task_ns * np.minimum(filled_share(case, graph), 1.0)
    retiled = case.table.of_category("gemm") & ~np.isnan(by_roof) & ~is_misaligned(case)
    needed = np.where(retiled, by_roof, np.fmax(by_roof, by_fill))
    ratio = measured_growth(case, graph, int(times))
    needed = np.where(np.isnan(ratio), needed, ratio * graph.task_ns)
    result: Float64 = np.clip(needed, graph.task_ns, times * graph.task_ns)
    return result


def measured_growth(case: Case, graph: Graph, times: int) -> Float64:
    """Ratio of each task's operator time with so many times the batch to its time now; NaN where
    that was not measured."""
    trained, table, roofs = trained_weights(case.context), case.table, case.context.roofs
    weights = frozenset() if trained is None else trained.shapes
    leads = first_tasks(table, _growing(case, graph))
    ns = timed(graph, table, roofs, leads, _as_now, lambda call: larger_call(call, weights, times))
    return ratio_of(graph, table, ns)


def timed_share(case: Case, times: int) -> float:
    """Share of the time of kernels that grow with the batch that was timed at that size."""
    grows, ns = _growing(case, case.graph), case.graph.task_ns
    known = ~np.isnan(measured_growth(case, case.graph, times))
    return float(ns[known & grows].sum() / max(ns[grows].sum(), 1.0))


def _as_now(_: int, now: str) -> str:
    return now


def filled_share(case: Case, graph: Graph) -> Float64:
    """The share of the device that each task's grid fills: one block of a matrix kernel takes a
    multiprocessor's shared memory, other kernels fill its threads. 1 where that is not known."""
    trace, device = case.context.trace, case.context.device
    filled = np.ones(len(graph.task_event))
    if device is None or not device.num_sms:
        return filled
    room = device.num_sms * THREADS_PER_SM
    codes = trace.detail[graph.task_event]
    for code in distinct(codes[codes != NONE]).tolist():
        detail = trace.details[code]
        if isinstance(detail, Launch) and detail.grid and detail.block:
            blocks, launched = float(np.prod(detail.grid)), codes == code
            by_threads = blocks * float(np.prod(detail.block)) / room
            filled[launched] = np.where(
                case.table.is_matrix[launched], blocks / device.num_sms, by_threads
            )
    return filled
