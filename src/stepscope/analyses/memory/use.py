"""The peak of a rank's device memory, from the allocator's events of its trace
(`profile_memory=True`): when it was, and what holds it by kind, phase, module and operator."""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from stepscope.analyses.checkpoints import TO_DEVICE
from stepscope.analyses.grouping import matching
from stepscope.analyses.host.nesting import ancestor_with, is_within
from stepscope.analyses.host.source_locations import Stacks, module_paths, origins
from stepscope.analyses.memory.batch_fit import BatchFit, Beginning
from stepscope.analyses.memory.growth import (
    PARTIAL_SUMS_BYTES,
    batch_lines,
    growing_mask,
    partial_sums,
)
from stepscope.analyses.memory.kinds import CODE, Kinds, Standing, kinds_of, names_of, standing
from stepscope.analyses.memory.lifetimes import (
    NEVER,
    DeviceEvents,
    Lifetimes,
    device_events,
    lifetimes,
    open_ranges,
)
from stepscope.analyses.memory.phases import BACKWARD, UPDATE, PhaseRuns, phase_runs
from stepscope.analyses.memory.requests import requested_bytes
from stepscope.analyses.rank_context import RankContext
from stepscope.analyses.steps.projection import rerun_forward_ops
from stepscope.analyses.weights import Trained, optimizer_of, trained_weights
from stepscope.core.memory import (
    BEFORE,
    PHASES,
    BatchLine,
    BatchSize,
    MemoryHolder,
    MemoryUse,
    PeakMoment,
    PhaseMemory,
)
from stepscope.core.recordings.memory import CATEGORIES, GRADIENTS, OPTIMIZER, UNKNOWN
from stepscope.core.trace import NONE, Bool, Int64, Kind, Trace

ALLOCATES = re.compile(r"^aten::(new_)?(empty|zeros|ones|full|resize_|clone$|contiguous$)")
"""Operators that are asked for memory by those that need it."""
GATHER = re.compile(r"^FSDP::all_gather|^FSDP::pre_(forward|backward)|_all_gather_base")
MAX_ROWS = 40
TIMES = (2, 4, 8, 16)
CONTEXT_BYTES = 1 << 30
"""Bytes of the device for its context and the libraries' own: 0.6 GiB to 0.8 GiB beside torch's
(H200, torch 2.11)."""
NUM_STEPS = 2
"""Steps that are played again for a larger batch."""
MAX_CHANGES = 100_000
"""Allocations and frees of these, beyond which they are not."""
ANY_SIZE = 1 << 60
MUCH_MORE = 1.5
"""Times the peak, that allocations alive at it may sum to: more contradicts it."""


class _Made(Struct, frozen=True, kw_only=True):
    """Ranges that each allocation that was seen to begin was made in; NONE where none."""

    range: Int64
    operator: Int64


def memory_use(context: RankContext) -> MemoryUse | None:
    """None where the allocator's events were not recorded, or are not of a device."""
    return memory_of(context)[0]


def memory_of(context: RankContext) -> tuple[MemoryUse | None, BatchFit | None]:
    """The same, and what says which batch fits under any limit, where that is known."""
    events = device_events(context)
    if events is None:
        return None, None
    trace = context.trace
    peak = int(events.allocated.argmax())
    use = MemoryUse(
        source="trace",
        label=trace.meta.path,
        peak_bytes=int(events.allocated[peak]),
        reserved_bytes=int(events.reserved.max()),
        cache_bytes=max(int(events.reserved[peak] - events.allocated[peak]), 0),
        capacity_bytes=None if context.device is None else context.device.memory_bytes,
        moment=PeakMoment(ms=float(events.time_ns[peak] - events.time_ns[0]) / 1e6),
    )
    runs = phase_runs(context)
    return (use, None) if runs is None else _broken_down(context, events, runs, use, peak)


def _broken_down(
    context: RankContext, events: DeviceEvents, runs: PhaseRuns, use: MemoryUse, peak: int
) -> tuple[MemoryUse, BatchFit | None]:
    trace, spans = context.trace, lifetimes(events)
    made = _makers(context, np.where(spans.is_made, spans.start_ns, NONE))
    is_rerun = is_within(
        trace, context.links.parent, made.range, rerun_forward_ops(trace, context.links)
    )
    kinds = kinds_of(runs, spans, is_rerun, _from_host(context, made), _gathered(context, made))
    moment = int(events.time_ns[peak])
    trained = trained_weights(context)
    seen = _most_at_once(spans, kinds.kind == CODE[GRADIENTS])
    before_freed = int(spans.size[~spans.is_made].sum())
    base = standing(
        max(events.base_bytes - before_freed, 0),
        None if trained is None else trained.size_bytes,
        seen,
        optimizer_of(trace),
    )
    alive = spans.alive_at(moment)
    if spans.size[alive].astype(np.float64).sum() > MUCH_MORE * use.peak_bytes:
        return use, None
    held = _held(kinds, spans, alive, base, use.peak_bytes)
    stacks = context.stacks
    module = _modules(stacks, made)
    at = _at(context, made, module, spans, moment, runs)
    growing, fits = list[tuple[int, int]](), None
    if trained is not None:
        grows = growing_mask(context, spans, kinds, made.operator, trained)
        sums = partial_sums(context, kinds, made.operator)
        growing = batch_lines(events, spans, grows & ~sums)
        fits = BatchFit(
            events,
            spans,
            requested_bytes(trace, made.operator, spans),
            _most_asked(context, grows, sums),
            _beginning(runs, trained, base),
            _end_of_steps(context),
        )
    use = replace(
        use,
        moment=replace(at, ms=use.moment.ms),
        kinds=held,
        most=_most(spans, kinds, base),
        phases=_phases(events, runs, spans, kinds, alive, use.peak_bytes),
        modules=_holders(module, spans, kinds, alive),
        operators=_holders(_operator_names(trace, made), spans, kinds, alive),
        batch=tuple(BatchLine(fixed_bytes=fixed, growing_bytes=grows) for fixed, grows in growing),
    )
    return (use if fits is None else _with_batches(use, fits)), fits


def _most_asked(context: RankContext, grows: Bool, sums: Bool) -> Int64:
    """What each allocation may ask for with a larger batch; 0 where it stays."""
    device = context.device
    most_sums = ANY_SIZE
    if device is not None and device.num_sms:
        most_sums = device.num_sms * PARTIAL_SUMS_BYTES
    most: Int64 = np.where(grows, np.where(sums, most_sums, ANY_SIZE), 0)
    return most


def _beginning(runs: PhaseRuns, trained: Trained, base: Standing) -> Beginning:
    """Beginning as far as it is known what stays."""
    if base.weights_bytes is None:
        return Beginning()
    first_backward = int(runs.start_ns[runs.phase == BACKWARD][0])
    updates = runs.start_ns[(runs.phase == UPDATE) & (runs.start_ns > first_backward)]
    return Beginning(
        weights=trained.sizes,
        num_states=round(base.sizes.get(OPTIMIZER, 0) / max(trained.size_bytes, 1)),
        backward_ns=first_backward,
        update_ns=int(updates[0]) if len(updates) else NEVER,
    )


def _with_batches(use: MemoryUse, fits: BatchFit) -> MemoryUse:
    if not use.capacity_bytes or fits.num_changes > MAX_CHANGES:
        return use
    room = max(use.capacity_bytes - CONTEXT_BYTES, 0)
    batches = [
        BatchSize(
            times=times,
            peak_bytes=use.peak_at(times) or 0,
            reserved_bytes=fits.reserved_bytes(times, room),
        )
        for times in TIMES
    ]
    most = use.largest_batch(room)
    largest = None if most is None else fits.largest(room, most)
    return replace(use, batches=tuple(batches), largest_times=largest)


def _end_of_steps(context: RankContext) -> int:
    """When the host had done so many steps; the end where there are fewer."""
    starts = context.cut.host_start
    return int(starts[NUM_STEPS]) if len(starts) > NUM_STEPS else NEVER


def _makers(context: RankContext, moments: Int64) -> _Made:
    trace, links = context.trace, context.links
    known = moments >= 0
    ranges = np.full(len(moments), NONE, np.int64)
    ranges[known] = open_ranges(trace, links, moments[known])
    asks = trace.is_kind(Kind.OP) & ~matching(trace, ALLOCATES)
    operator = ancestor_with(links.parent, ranges, asks)
    is_op = ancestor_with(links.parent, ranges, trace.is_kind(Kind.OP))
    return _Made(range=ranges, operator=np.where(operator == NONE, is_op, operator))


def _from_host(context: RankContext, made: _Made) -> Bool:
    """Made by an operator that copies from the host."""
    trace, links = context.trace, context.links
    copies = np.flatnonzero(trace.is_kind(Kind.MEMCPY) & matching(trace, TO_DEVICE))
    copying = np.zeros(len(trace), np.bool_)
    asking = ancestor_with(
        links.parent, links.launch[copies], matching(trace, re.compile(r"^aten::(to|_to_copy)$"))
    )
    copying[asking[asking != NONE]] = True
    return is_within(trace, links.parent, made.range, copying)


def _gathered(context: RankContext, made: _Made) -> Bool:
    trace = context.trace
    return is_within(trace, context.links.parent, made.range, matching(trace, GATHER))


def _most_at_once(spans: Lifetimes, mask: Bool) -> int:
    """The most bytes that the masked allocations held at once."""
    start, end, size = spans.start_ns[mask], spans.end_ns[mask], spans.size[mask]
    times, change = np.concatenate([start, end]), np.concatenate([size, -size])
    order = np.lexsort((change, times))
    return int(np.cumsum(change[order]).max(initial=0))


def _most(spans: Lifetimes, kinds: Kinds, base: Standing) -> dict[str, int]:
    most = {
        name: _most_at_once(spans, kinds.kind == CODE[name]) + base.sizes.get(name, 0)
        for name in CATEGORIES
    }
    return {name: size for name, size in most.items() if size}


def _held(
    kinds: Kinds, spans: Lifetimes, alive: Bool, base: Standing, peak_bytes: int
) -> dict[str, int]:
    """Bytes by kind at the peak. What events were lost for is unknown."""
    held = names_of(kinds.kind[alive], spans.size[alive])
    for name, size in base.sizes.items():
        held[name] = held.get(name, 0) + size
    missing = peak_bytes - sum(held.values())
    held[UNKNOWN] = held.get(UNKNOWN, 0) + missing
    for name in sorted(held, key=lambda name: held[name], reverse=True):
        if held[UNKNOWN] >= 0:
            break
        given = min(held[name], -held[UNKNOWN])
        held[name] -= given
        held[UNKNOWN] += given
    return {name: size for name, size in held.items() if size}


def _phases(
    events: DeviceEvents,
    runs: PhaseRuns,
    spans: Lifetimes,
    kinds: Kinds,
    alive: Bool,
    peak_bytes: int,
) -> tuple[PhaseMemory, ...]:
    at = runs.phase[runs.run_at(events.time_ns)]
    # What is held when a phase begins is held in it.
    earlier = np.concatenate([events.allocated[:1], events.allocated[:-1]])
    earlier[0] = events.base_bytes
    most_held = np.maximum(events.allocated, earlier)
    rows, left = [], peak_bytes
    for code, phase in enumerate(PHASES):
        inside = most_held[at == code]
        size = min(int(spans.size[alive & (kinds.phase == code)].sum()), left)
        left -= size
        most = int(inside.max()) if len(inside) else None
        rows.append(PhaseMemory(phase=phase, peak_bytes=most, at_peak_bytes=size))
    return (*rows, PhaseMemory(phase=BEFORE, peak_bytes=None, at_peak_bytes=left))


def _modules(stacks: Stacks | None, made: _Made) -> list[str | None]:
    """Path of the module that each allocation was made in."""
    if stacks is None:
        return [None] * len(made.range)
    return module_paths(stacks, origins(stacks, made.range).module)


def _operator_names(trace: Trace, made: _Made) -> list[str | None]:
    return [None if op == NONE else trace.names[trace.name[op]] for op in made.operator.tolist()]


def _holders(
    names: list[str | None], spans: Lifetimes, kinds: Kinds, alive: Bool
) -> tuple[MemoryHolder, ...]:
    """Holders by name, the most bytes first; what has no name is left out."""
    sizes: dict[str, dict[int, int]] = {}
    nums: dict[str, int] = {}
    for index in np.flatnonzero(alive).tolist():
        name = names[index]
        if name is not None:
            of_kind = sizes.setdefault(name, {})
            code = int(kinds.kind[index])
            of_kind[code] = of_kind.get(code, 0) + int(spans.size[index])
            nums[name] = nums.get(name, 0) + 1
    rows = [
        MemoryHolder(
            name=name,
            size_bytes=sum(of_kind.values()),
            num_tensors=nums[name],
            kind=CATEGORIES[max(of_kind, key=lambda code: of_kind[code])],
        )
        for name, of_kind in sizes.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.size_bytes, row.name))[:MAX_ROWS])


def _at(
    context: RankContext,
    made: _Made,
    module: list[str | None],
    spans: Lifetimes,
    moment: int,
    runs: PhaseRuns,
) -> PeakMoment:
    """Moment of the peak: who asked for the last bytes, and when that was."""
    last = np.flatnonzero((spans.start_ns == moment) & (spans.end_ns != NEVER))
    last = last if len(last) else np.flatnonzero(spans.start_ns == moment)
    names = _operator_names(context.trace, made)
    starts = context.cut.host_start
    step = int(np.searchsorted(starts, moment, side="right")) - 1
    return PeakMoment(
        phase=PHASES[int(runs.phase[runs.run_at(np.array([moment]))[0]])],
        step=step if step >= 0 else None,
        operator=names[int(last[0])] if len(last) else None,
        module=module[int(last[0])] if len(last) else None,
    )
