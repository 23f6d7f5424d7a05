"""Micro-batches so small that the device is never filled, run one after another in one step.

What it sees: the same forward and backward k times before one optimizer step (gradient
accumulation), with kernels that take far longer than their arithmetic or their bytes need, or that
fill only part of the device.

Why it costs: a small micro-batch costs the host as many launches as a large one. Folding k of them
into one divides the host's work by k, and a kernel that did not fill the device does not take k
times as long. Kernels that do fill it take k times as long, and then nothing is won: the replay
says which. The loader is reckoned to take k times as long for k times the samples, and at best no
longer than for few.

Evidence it needs: kernels distinguished as forward, backward and optimizer; shapes
(`record_shapes=True`) for the roofs.

What to do: a larger micro-batch with fewer accumulation steps, as far as memory goes
(`torch.cuda.max_memory_allocated()`). Layers that look at the batch (BatchNorm) see more of it
then.

Example: micro-batch 1 x 8 accumulation steps took 167 ms; one batch of 8 took 22 ms.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
from msgspec import Struct

from stepscope.core.diagnosis import Abstention
from stepscope.core.trace import NONE, Bool, Float64, Int64, Kind, Launch
from stepscope.replay.changes import without_tasks, without_waits
from stepscope.replay.graph import Graph
from stepscope.rules.case import Case
from stepscope.rules.proposal import Proposal
from stepscope.rules.shared.host_ranges import call_of_task, tasks_of
from stepscope.rules.shared.loading import with_input
from stepscope.rules.shared.micro_batches import numbered_micro_batches

CODE = "small-batch"
BOUND = "host"
EXCLUDES = ("pipeline-bubble", "sync-every-microbatch")
"""Fixes that need many micro-batches, where this one leaves few."""

THREADS_PER_SM = 2048
"""Resident threads of one multiprocessor: NVIDIA's data-centre GPUs since Volta (CUDA C++
Programming Guide, table of compute capabilities)."""


class Policy(Struct, frozen=True, kw_only=True):
    same_share: float = 0.9
    """Of a micro-step's kernels that must recur in the others, by name, for them to be the same
    work on other data."""
    roof_share: float = 0.6
    """Of its roof that a kernel reaches once it is large: between what matrix kernels (0.6 to 0.7)
    and copies (0.8) do."""
    cautious_roof_share: float = 0.4


POLICY = Policy()


def propose(case: Case) -> Proposal | Abstention | None:
    """Fold the micro-steps of each step into one."""
    graph = case.graph
    if graph is None or not case.context.charges.backward.any():
        return None
    micro = _micro_steps(case, graph)
    folds = _num_alike(case, graph, micro)
    if folds < 2:
        return None
    return Proposal(
        code=CODE,
        bound=BOUND,
        summary=f"Each step runs {folds} micro-batches one after another, none of which fills the "
        "device.",
        action=f"Micro-batches {folds} times as large and no accumulation; where memory does not "
        "allow it, 2 times as large and"
        " half as many accumulation steps",
        evidence=(
            f"{folds} rounds of forward and backward for each optimizer step",
            f"{float((micro >= 0).sum()) / graph.num_steps / folds:.0f} launches in each",
        ),
        change=lambda before: _folded(case, before, micro, folds, POLICY.roof_share),
        cautious=lambda before: _folded(case, before, micro, 2, POLICY.cautious_roof_share),
        hopeful=lambda before: with_input(_folded(case, before, micro, folds, 1.0), 1.0 / folds),
        changes_numerics=True,
    )


def _folded(case: Case, graph: Graph, micro: Int64, folds: int, roof_share: float) -> Graph:
    """Of every `folds` micro-steps the first is left, as long as its kernels then take."""
    gone = (micro >= 0) & (micro % folds != 0)
    kept = tasks_of(graph, (micro >= 0) & ~gone)
    work = np.where(gone, 0.0, graph.call_parts["work"])
    longer = np.where(kept, _at_size(case, graph, folds, roof_share), graph.task_ns)
    folded = replace(graph, call_parts=graph.call_parts | {"work": work}, task_ns=longer)
    return without_waits(without_tasks(folded, tasks_of(graph, gone)), gone)


def _at_size(case: Case, graph: Graph, folds: int, roof_share: float) -> Float64:
    """How long each task takes on `folds` times the data: no less than its roof allows, where that
    is known, and as much longer as it fills the device already: a kernel that does, and is far from
    its roof all the same, gains nothing by being larger. Products do: theirs is another kernel
    then, with larger tiles."""
    floor = np.full(len(case.context.trace), np.nan)
    floor[case.context.kernels.kernels] = case.context.kernels.floor_ns
    by_roof = folds * floor[graph.task_event] / roof_share
    by_fill = folds * graph.task_ns * np.minimum(_filled(case, graph), 1.0)
    needed = np.where(
        case.table.of_category("gemm") & ~np.isnan(by_roof), by_roof, np.fmax(by_roof, by_fill)
    )
    result: Float64 = np.clip(needed, graph.task_ns, folds * graph.task_ns)
    return result


def _filled(case: Case, graph: Graph) -> Float64:
    """The share of the device that each task's grid fills: one block of a matrix kernel takes a
    multiprocessor's shared memory, other kernels fill its threads. 1 where that is not known."""
    trace, device = case.context.trace, case.context.device
    filled = np.ones(len(graph.task_event))
    if device is None or not device.num_sms:
        return filled
    room = device.num_sms * THREADS_PER_SM
    codes = trace.detail[graph.task_event]
    for code in np.unique(codes[codes != NONE]).tolist():
        detail = trace.details[code]
        if isinstance(detail, Launch) and detail.grid and detail.block:
            blocks, launched = float(np.prod(detail.grid)), codes == code
            by_threads = blocks * float(np.prod(detail.block)) / room
            filled[launched] = np.where(
                case.table.is_matrix[launched], blocks / device.num_sms, by_threads
            )
    return filled


def _micro_steps(case: Case, graph: Graph) -> Int64:
    """Per call, the micro-step of its step: a new one begins where forward work follows backward
    work. NONE: in none, as the optimizer and what follows the last backward are."""
    owner = call_of_task(graph)
    micro = np.full(len(graph.call_event), NONE, np.int64)
    for step in range(graph.num_steps):
        tasks = np.flatnonzero((graph.task_step == step) & ~case.table.optimizer)
        number = numbered_micro_batches(case.table.backward[tasks])
        inside = number != NONE
        micro[owner[tasks[inside]]] = number[inside]
    return _with_bare_calls(graph, micro)


def _with_bare_calls(graph: Graph, micro: Int64) -> Int64:
    """Calls that put nothing on the device, such as the wait after a copy, belong to the micro-step
    of what was launched before them; behind the last launch of all micro-steps they belong to
    none."""
    launching = np.diff(graph.call_first) > 0
    positions = np.arange(len(micro))
    before = np.maximum.accumulate(np.where(launching, positions, 0))
    after = np.minimum.accumulate(np.where(launching, positions, len(micro) - 1)[::-1])[::-1]
    is_between = (
        (graph.call_step[before] == graph.call_step[after])
        & (micro[before] >= 0)
        & (micro[after] >= 0)
    )
    return np.where(~launching & is_between, micro[before], micro)


def _num_alike(case: Case, graph: Graph, micro: Int64) -> int:
    """How many micro-steps the usual step has, if they launch the same kernels; 0 if they do
    not."""
    trace = case.context.trace
    owner = call_of_task(graph)
    kernel: Bool = (trace.kind[graph.task_event] == Kind.KERNEL) & (micro[owner] >= 0)
    if not kernel.any() or _updates_between(case, graph):
        return 0
    parts, num_names = micro[owner][kernel], len(trace.names)
    num_parts = int(parts.max()) + 1
    keys, nums = np.unique(
        (graph.task_step[kernel] * num_parts + parts) * num_names
        + trace.name[graph.task_event[kernel]],
        return_counts=True,
    )
    counts: dict[tuple[int, int], Counter[int]] = {}
    for key, num in zip(keys.tolist(), nums.tolist(), strict=True):
        names = counts.setdefault(divmod(key // num_names, num_parts), Counter())
        names[key % num_names] = num
    for (step, part), names in counts.items():
        first = counts.get((step, 0), names)
        if part and (first & names).total() < POLICY.same_share * min(first.total(), names.total()):
            return 0
    return int(np.median(list(Counter(step for step, _ in counts).values())))


def _updates_between(case: Case, graph: Graph) -> bool:
    """Whether the optimizer runs several times a step with other work between: then each round has
    its own update."""
    trained = case.table.optimizer | case.table.backward
    for step in range(graph.num_steps):
        optimizer = case.table.optimizer[(graph.task_step == step) & trained]
        if int((optimizer[1:] & ~optimizer[:-1]).sum()) > 1:
            return True
    return False
