"""Batches so small that the device is never filled.

What it sees: kernels that take far longer than their arithmetic or their bytes need, or that fill
only part of the device, or a host that launches them more slowly than they run. Either the same
forward and backward k times before one optimizer step (gradient accumulation), or one batch a step
that could be larger.

Why it costs: a small batch costs the host as many launches as a large one, and the optimizer and
the exchange of gradients the same. A batch k times as large divides all of that by k for each
sample, and a kernel that did not fill the device does not take k times as long. Kernels that do
fill it take k times as long, and then nothing is won: the replay says which. Nor do products whose
rows are no multiple of 16 bytes (`misaligned-shapes`) get a faster kernel. The loader is reckoned
to take k times as long for k times the samples, and at best no longer than for few; so is the host
where it sends samples to the device one by one. What saves or collects in each step takes as long
for many: its own fix is listed first.

Evidence it needs: kernels distinguished as forward, backward and optimizer; shapes
(`record_shapes=True`) for the roofs; the allocator's events (`profile_memory=True`, `stepscope run
--memory`) for what each batch takes of memory: no more is proposed than fits. Without them no more
than 4 times as large, and after what else helps, unless it surely gives more than the first of
that. A tensor that a step makes is written and read in it, so half of what its kernels move is the
most that it can hold: where four times that fits, with as much again to spare for what no step
uses, the batch does; where only twice that does, twice the batch is proposed. Else a larger batch
is said beside what helps the host, with the doubt. Steps with operators as large as the data say
(nonzero, masked_select) are not judged: a detector's boxes grow with the images, one by one.

What to do: where gradients are accumulated, a larger micro-batch with fewer accumulation steps, as
far as memory goes. Layers that look at the batch (BatchNorm) see more of it then. Where they are
not, a larger batch is another training: its learning rate and its number of steps go with it. Gains
are of samples a second.

Example: micro-batch 1 x 8 accumulation steps took 167 ms; one batch of 8 took 22 ms. DistilBERT
with a batch of 32 in place of 8: 3.85 times the samples a second.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
from msgspec import structs

from stepscope.analyses.grouping import matching, median
from stepscope.analyses.weights import ACCUMULATE
from stepscope.core.diagnosis import Abstention, MemoryChange
from stepscope.core.memory import MemoryUse
from stepscope.core.numbers import size_words
from stepscope.core.recorders import Recorder
from stepscope.core.trace import NONE, Bool, Int64, Kind
from stepscope.replay.changes import without_tasks, without_waits
from stepscope.replay.graph import Graph
from stepscope.rules.case import Case
from stepscope.rules.job_case import JobCase, JobProposal
from stepscope.rules.proposal import Proposal
from stepscope.rules.rule import Rule
from stepscope.rules.shared.batch_size import (
    SIZES,
    Batch,
    at_size,
    batches,
    change_to,
    has_room,
    held_bytes,
    is_data_sized,
    surely_fits,
    timed_share,
)
from stepscope.rules.shared.host_ranges import call_of_task, tasks_of
from stepscope.rules.shared.loading import with_input
from stepscope.rules.shared.measured import timed_line
from stepscope.rules.shared.micro_batches import numbered_micro_batches

CODE = "small-batch"
BOUND = "host"
INSTEAD_OF = ("launch-overhead", "python-overhead", "looped-optimizer", "device-sync")
"""Findings about the host: where nothing says that memory has room, a larger batch is said with
them."""
MIN_SAME_SHARE = 0.9
"""Share of a micro-step's kernels that must recur in the others, by name, for them to be the same
work on other data."""


def propose(case: Case) -> Proposal | Abstention | None:
    """Fold the micro-steps of each step into one."""
    graph = case.graph
    if not case.context.charges.backward.any():
        return None
    micro = _micro_steps(case, graph)
    folds = _num_alike(case, graph, micro)
    if folds < 2:
        return _larger(case, micro)
    return Proposal(
        summary=f"Each step runs {folds} micro-batches one after another, none of which fills the "
        "device.",
        action=f"Micro-batches {folds} times as large and no accumulation; where memory does not "
        "allow it, 2 times as large and half as many accumulation steps",
        evidence=(
            f"{folds} rounds of forward and backward for each optimizer step",
            f"{float((micro >= 0).sum()) / graph.num_steps / folds:.0f} launches in each",
        ),
        change=lambda before: _folded(case, before, micro, folds, SIZES.roof_share),
        cautious=lambda before: _folded(case, before, micro, 2, SIZES.cautious_roof_share),
        hopeful=lambda before: with_input(_folded(case, before, micro, folds, 1.0), 1.0 / folds),
        changes_numerics=True,
    )


def of_job(job: JobCase, proposal: JobProposal) -> JobProposal:
    """A larger batch on all ranks: a rank's own figures leave out what it shares with the
    others."""
    times = proposal.samples_times
    if times == 1:
        return proposal
    longer = times / job.speedup(proposal.change(job.job_graph))
    return structs.replace(
        proposal,
        summary=f"A batch {times:g} times as large takes {longer:.1f} times as long.",
        evidence=proposal.evidence[-1:],
    )


def _larger(case: Case, micro: Int64) -> Proposal | None:
    """A larger batch in place of this one, where steps do not accumulate gradients."""
    if is_data_sized(case) or int(micro.max(initial=NONE)) > 0:
        return None
    memory, replayed = case.facts.memory, case.facts.replayed
    host_share = 0.0 if replayed is None else replayed.shares.get(BOUND, 0.0)
    if has_room(memory, SIZES.factors[0]) is None and host_share < SIZES.unknown_host:
        return None
    tried = batches(case, memory)
    if not tried:
        return None
    best = tried[-1]
    before = None if memory is None else memory.peak_bytes
    knows_room = has_room(memory, best.times) is not None
    fits = knows_room or surely_fits(case, best.times)
    return Proposal(
        summary=f"A batch {best.times} times as large takes {best.times / best.gain:.1f} times as "
        f"long. Samples a second: {', '.join(f'x{each.times} {each.gain:.2f}' for each in tried)} "
        "times today's.",
        action=f"A batch {best.times} times as large, and the learning rate that goes with it"
        + ("" if fits else "; whether memory has room for it is not known"),
        evidence=(
            *(_price(case, each) for each in tried),
            *(() if knows_room or not fits else (_held_words(case, best.times),)),
            *timed_line(timed_share(case, best.times), "at that size"),
            _room_words(memory, case.recorder),
        ),
        change=change_to(case, best.times, SIZES.roof_share),
        cautious=change_to(case, best.times, SIZES.cautious_roof_share),
        hopeful=change_to(case, best.times, 1.0),
        changes_numerics=True,
        alternative_to=() if fits else INSTEAD_OF,
        changes_training=True,
        samples_times=float(best.times),
        memory=None
        if before is None or best.memory_bytes is None
        else MemoryChange(before_bytes=before, after_bytes=best.memory_bytes),
    )


def _price(case: Case, batch: Batch) -> str:
    """`batch x 4: 3.1 times the samples a second (2,480), a peak of 12.1 GB`."""
    words = f"batch x {batch.times}: {batch.gain:.2f} times the samples a second"
    samples = _samples_per_s(case)
    if samples is not None:
        words += f" ({samples * batch.gain:,.0f})"
    if batch.memory_bytes is not None:
        words += f", a peak of {size_words(batch.memory_bytes)}"
    return words


def _samples_per_s(case: Case) -> float | None:
    """Samples a second of this rank today; None where the batch is not known."""
    loader = None if case.metadata is None else case.metadata.loader
    if loader is None or not loader.batch_size or not case.step_interval_ns:
        return None
    return loader.batch_size / case.step_interval_ns * 1e9


def _held_words(case: Case, times: float) -> str:
    device, held = case.context.device, held_bytes(case, times)
    assert device is not None and device.memory_bytes and held is not None
    return (
        f"by what its kernels move, a step with it holds no more than {size_words(round(held))} of "
        f"{size_words(device.memory_bytes)}, but for what no step uses"
    )


def _room_words(memory: MemoryUse | None, recorder: Recorder) -> str:
    if memory is None:
        return f"what it takes of memory is not known: {recorder.with_memory}"
    whole = memory.capacity_bytes
    of = "" if not whole else f" of {size_words(whole)}"
    return f"today's peak is {size_words(memory.peak_bytes)}{of}"


def _folded(case: Case, graph: Graph, micro: Int64, folds: int, roof_share: float) -> Graph:
    """Leave the first of every `folds` micro-steps, as long as its kernels then take."""
    gone = (micro >= 0) & (micro % folds != 0)
    kept = tasks_of(graph, (micro >= 0) & ~gone)
    work = np.where(gone, 0.0, graph.call_parts["work"])
    longer = np.where(kept, at_size(case, graph, folds, roof_share), graph.task_ns)
    folded = replace(graph, call_parts=graph.call_parts | {"work": work}, task_ns=longer)
    return without_waits(without_tasks(folded, tasks_of(graph, gone)), gone)


def _micro_steps(case: Case, graph: Graph) -> Int64:
    """Micro-step of its step for each call: a new one begins where forward work follows backward
    work. NONE: in none, as the optimizer and what follows the last backward are."""
    owner = call_of_task(graph)
    micro = np.full(len(graph.call_event), NONE, np.int64)
    for step in range(graph.num_steps):
        tasks = np.flatnonzero((graph.task_step == step) & ~case.table.optimizer)
        number = numbered_micro_batches(case.table.backward[tasks])
        later = graph.call_start_ns[graph.call_step > step]
        until = int(later[0]) if len(later) else int(graph.call_end_ns[-1])
        number = _accumulating(case, graph.call_start_ns[owner[tasks]], number, until)
        inside = number != NONE
        micro[owner[tasks[inside]]] = number[inside]
    return _with_bare_calls(graph, micro)


def _accumulating(case: Case, launched: Int64, number: Int64, until: int) -> Int64:
    """Rounds that end with no gradient of a weight belong to the one after them: a derivative is
    taken in the forward pass, as penalties and differential equations do. Where no gradient of a
    weight was recorded, all rounds stay."""
    trace = case.context.trace
    nodes = np.flatnonzero(trace.is_kind(Kind.OP) & matching(trace, ACCUMULATE))
    times = np.sort(trace.start_ns[nodes])
    inside = np.flatnonzero(number != NONE)
    if not len(inside):
        return number
    first = launched[inside[np.unique(number[inside], return_index=True)[1]]]
    num = np.diff(np.searchsorted(times, np.append(first, until)))
    if not num.any():
        return number
    before = np.concatenate([[0], np.cumsum(num > 0)[:-1]])
    kept = np.minimum(before, max(int((num > 0).sum()) - 1, 0))
    return np.where(number == NONE, NONE, kept[np.maximum(number, 0)])


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
        if part and (first & names).total() < MIN_SAME_SHARE * min(first.total(), names.total()):
            return 0
    return int(median(list(Counter(step for step, _ in counts).values())))


def _updates_between(case: Case, graph: Graph) -> bool:
    """Whether the optimizer runs several times a step with other work between: then each round has
    its own update."""
    trained = case.table.optimizer | case.table.backward
    for step in range(graph.num_steps):
        optimizer = case.table.optimizer[(graph.task_step == step) & trained]
        if int((optimizer[1:] & ~optimizer[:-1]).sum()) > 1:
            return True
    return False


RULE = Rule(
    code=CODE,
    bound=BOUND,
    text=__doc__,
    propose=propose,
    of_job=of_job,
    # Fixes that need many micro-batches, where this one leaves few.
    excludes=("pipeline-bubble", "sync-every-microbatch"),
    # Fewer micro-batches exchange less often, too.
    includes=("sync-every-microbatch",),
)
