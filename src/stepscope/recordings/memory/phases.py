"""Every allocation's category and step: its stack says which part of the step made it, its life
says what for.

    made by          freed                                   is
    module, .to()                                            weights
    forward          after the backward began                activations
                     before                                  temporary
    backward         by the backward itself                  temporary
                     later, or never                         gradients
    optimizer        before the next pass began              temporary
                     later, or never                         optimizer
    other code       like forward; what is there before it and freed in time: inputs
    a library                                                workspace

Where neither stack nor lifetime shows it, it is unknown.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

from stepscope.core.recordings.memory import (
    ACTIVATIONS,
    GRADIENTS,
    INPUTS,
    OPTIMIZER,
    TEMPORARY,
    UNKNOWN,
    WEIGHTS,
    WORKSPACE,
)
from stepscope.recordings.memory.events import ALLOC, FREE, DeviceHistory, Event
from stepscope.recordings.memory.frames import (
    BACKWARD,
    BACKWARD_LABEL,
    CLIP,
    FORWARD,
    INIT,
    LIBRARY,
    STEP,
    Origin,
    origin,
)
from stepscope.recordings.memory.replay import BEFORE, Allocation, Replay


@dataclass(slots=True)
class Passes:
    """Indices of the events that show the parts of a step."""

    origins: list[Origin | None]
    """Origins of allocations and frees; None for other events."""
    forwards: list[int]
    """Allocations of the forward pass, outside the backward."""
    backwards: list[int]
    """Allocations while the backward runs."""
    enders: list[int]
    """Where the backward is over for sure: the forward allocates, or the optimizer does
    something."""
    optimizers: list[int]
    """Whatever the optimizer allocates or frees."""
    has_stacks: bool
    frees_have_stacks: bool
    work: list[int]
    """Forwards and backwards together."""
    others: list[int]
    """Backwards and optimizers together."""


def find_passes(events: list[Event]) -> Passes:
    """The stack of each allocation and free, and what they say together."""
    origin_by_stack: dict[int, Origin] = {}
    origins: list[Origin | None] = []
    for event in events:
        if event.action in (ALLOC, FREE):
            key = id(event.frames)
            stack_origin = origin_by_stack.get(key)
            if stack_origin is None:
                stack_origin = origin_by_stack[key] = origin(event.frames)
            origins.append(stack_origin)
        else:
            origins.append(None)
    pairs = [
        (event.action, made_by)
        for event, made_by in zip(events, origins, strict=True)
        if made_by is not None
    ]
    has_stacks = any(action == ALLOC and not made_by.is_empty for action, made_by in pairs)
    frees_have_stacks = any(action == FREE and not made_by.is_empty for action, made_by in pairs)
    has_native = any(made_by.is_native for _, made_by in pairs)
    passes = Passes(origins, [], [], [], [], has_stacks, frees_have_stacks, [], [])
    for index, event in enumerate(events):
        made_by = origins[index]
        if made_by is None:
            continue
        if (
            made_by.is_empty
            and has_stacks
            and not has_native
            and (event.action == ALLOC or frees_have_stacks)
        ):
            made_by = origins[index] = Origin(BACKWARD, True, BACKWARD_LABEL, True)
        _sort_in(passes, index, event, made_by)
    passes.work = sorted((*passes.forwards, *passes.backwards))
    passes.others = sorted((*passes.backwards, *passes.optimizers))
    return passes


def _sort_in(passes: Passes, index: int, event: Event, made_by: Origin) -> None:
    is_alloc = event.action == ALLOC
    if made_by.in_backward:
        if is_alloc:
            passes.backwards.append(index)
    elif made_by.part == STEP:
        passes.optimizers.append(index)
        passes.enders.append(index)
    elif made_by.part == FORWARD and is_alloc:
        passes.forwards.append(index)
        passes.enders.append(index)


def boundaries(history: DeviceHistory, events: list[Event], passes: Passes) -> list[int]:
    """The last event before training begins, then the last event of every step, as its optimizer
    shows it."""
    first = min(
        (indices[0] for indices in (passes.forwards, passes.backwards) if indices),
        default=None,
    )
    if first is None:
        return []
    ends = max(_optimizer_runs(passes), _annotated_ends(history, events), key=len)
    return [first - 1, *(end for end in ends if end > first)]


def _annotated_ends(history: DeviceHistory, events: list[Event]) -> list[int]:
    """Ends by the profiler's own annotation of the optimizer, with the clock of the events."""
    times = [event.time_us for event in events]
    if not times or not history.optimizer_ends or any(time is None for time in times):
        return []
    clock = [time for time in times if time is not None]
    if clock != sorted(clock):
        return []
    return sorted(
        {bisect_right(clock, end) - 1 for end in history.optimizer_ends if clock[0] <= end}
    )


def _optimizer_runs(passes: Passes) -> list[int]:
    """The last of the optimizer's events before the next pass."""
    ends: list[int] = []
    work = passes.work
    for number, index in enumerate(passes.optimizers):
        following = passes.optimizers[number + 1] if number + 1 < len(passes.optimizers) else None
        if following is None or bisect_left(work, index) != bisect_left(work, following):
            ends.append(index)
    return ends


def classify(replay: Replay, passes: Passes, bounds: list[int]) -> None:
    """Sets category, label and step of every allocation."""
    origin_by_stack: dict[int, Origin] = {}
    for allocation in replay.allocations:
        made_by = (
            origin_by_stack.get(id(allocation.frames))
            if allocation.start == BEFORE
            else passes.origins[allocation.start]
        )
        if made_by is None and allocation.start == BEFORE:
            made_by = origin_by_stack[id(allocation.frames)] = origin(allocation.frames)
        assert made_by is not None, allocation.addr
        allocation.label = made_by.label
        allocation.category = _category(allocation, made_by, passes, replay)
        step = bisect_left(bounds, allocation.start) - 1
        allocation.step = step if bounds and 0 <= step < len(bounds) - 1 else None


def _category(allocation: Allocation, made_by: Origin, passes: Passes, replay: Replay) -> str:
    if made_by.part == LIBRARY:
        return WORKSPACE
    if made_by.part == INIT:
        return WEIGHTS
    if allocation.start == BEFORE:
        return {STEP: OPTIMIZER, FORWARD: ACTIVATIONS, BACKWARD: GRADIENTS}.get(
            made_by.part or "", UNKNOWN
        )
    if not passes.has_stacks:
        return UNKNOWN
    if made_by.part == STEP:
        if allocation.end is not None and not _any_between(passes.work, allocation):
            return TEMPORARY
        return OPTIMIZER
    if made_by.part == BACKWARD:
        return _of_backward(allocation, passes)
    if made_by.part == CLIP:
        return TEMPORARY if allocation.end is not None else UNKNOWN
    return _of_forward(allocation, made_by, passes, replay)


def _of_backward(allocation: Allocation, passes: Passes) -> str:
    """Freed by the backward that made it, or for later."""
    if allocation.end is None or _any_between(passes.enders, allocation):
        return GRADIENTS
    by = passes.origins[allocation.end]
    if passes.frees_have_stacks:
        return TEMPORARY if by is not None and by.in_backward else GRADIENTS
    after = bisect_right(passes.backwards, allocation.end)
    ender = bisect_right(passes.enders, allocation.end)
    goes_on = after < len(passes.backwards) and (
        ender == len(passes.enders) or passes.backwards[after] < passes.enders[ender]
    )
    return TEMPORARY if goes_on else GRADIENTS


def _of_forward(allocation: Allocation, made_by: Origin, passes: Passes, replay: Replay) -> str:
    """Kept for the backward, or not; and what other code makes before the forward pass is what it
    works on."""
    meets_backward = _any_between(passes.backwards, allocation)
    is_last = allocation.end is None and bool(passes.backwards or replay.num_ooms)
    if not meets_backward and not is_last:
        return TEMPORARY if allocation.end is not None else UNKNOWN
    if made_by.part == FORWARD:
        return ACTIVATIONS
    if made_by.in_backward:
        return GRADIENTS
    before = bisect_left(passes.forwards, allocation.start)
    ended = bisect_left(passes.others, allocation.start)
    last_forward = passes.forwards[before - 1] if before else BEFORE
    last_other = passes.others[ended - 1] if ended else BEFORE
    in_forward = last_forward > last_other
    if in_forward:
        return ACTIVATIONS
    if allocation.end is None and _any_between(passes.optimizers, allocation):
        # Made once and kept: batches that are used again, or the state of an optimizer that nobody
        # knows.
        return UNKNOWN
    if before < len(passes.forwards) and (
        allocation.end is None or passes.forwards[before] < allocation.end
    ):
        return INPUTS
    return UNKNOWN


def _any_between(indices: list[int], allocation: Allocation) -> bool:
    first = bisect_right(indices, allocation.start)
    return first < len(indices) and (allocation.end is None or indices[first] < allocation.end)
