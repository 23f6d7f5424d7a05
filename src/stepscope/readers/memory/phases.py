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

Where neither stack nor life tells, it is unknown.
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
from stepscope.readers.memory.events import ALLOC, FREE, DeviceHistory, Event
from stepscope.readers.memory.frames import (
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
from stepscope.readers.memory.replay import BEFORE, Allocation, Replay


@dataclass(slots=True)
class Passes:
    """Places of the events that tell the parts of a step."""

    origins: list[Origin | None]
    """Of allocations and frees; None for other events."""
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


def passes(events: list[Event]) -> Passes:
    """The stack of each allocation and free, and what they say together."""
    known: dict[int, Origin] = {}
    origins: list[Origin | None] = []
    for event in events:
        if event.action in (ALLOC, FREE):
            key = id(event.frames)
            found = known.get(key)
            if found is None:
                found = known[key] = origin(event.frames)
            origins.append(found)
        else:
            origins.append(None)
    told = [
        (event.action, one) for event, one in zip(events, origins, strict=True) if one is not None
    ]
    has_stacks = any(action == ALLOC and not one.is_empty for action, one in told)
    frees_have_stacks = any(action == FREE and not one.is_empty for action, one in told)
    has_native = any(one.is_native for _, one in told)
    found_passes = Passes(origins, [], [], [], [], has_stacks, frees_have_stacks, [], [])
    for place, event in enumerate(events):
        one = origins[place]
        if one is None:
            continue
        if (
            one.is_empty
            and has_stacks
            and not has_native
            and (event.action == ALLOC or frees_have_stacks)
        ):
            one = origins[place] = Origin(BACKWARD, True, BACKWARD_LABEL, True)
        _sort_in(found_passes, place, event, one)
    found_passes.work = sorted((*found_passes.forwards, *found_passes.backwards))
    found_passes.others = sorted((*found_passes.backwards, *found_passes.optimizers))
    return found_passes


def _sort_in(found: Passes, place: int, event: Event, one: Origin) -> None:
    is_alloc = event.action == ALLOC
    if one.in_backward:
        if is_alloc:
            found.backwards.append(place)
    elif one.part == STEP:
        found.optimizers.append(place)
        found.enders.append(place)
    elif one.part == FORWARD and is_alloc:
        found.forwards.append(place)
        found.enders.append(place)


def boundaries(history: DeviceHistory, events: list[Event], found: Passes) -> list[int]:
    """The last event before training begins, then the last event of every step, as its optimizer
    tells it."""
    first = min((places[0] for places in (found.forwards, found.backwards) if places), default=None)
    if first is None:
        return []
    ends = max(_optimizer_runs(found), _annotated_ends(history, events), key=len)
    return [first - 1, *(end for end in ends if end > first)]


def _annotated_ends(history: DeviceHistory, events: list[Event]) -> list[int]:
    """By the profiler's own annotation of the optimizer, with the clock of the events."""
    times = [event.time_us for event in events]
    if not times or not history.optimizer_ends or any(time is None for time in times):
        return []
    clock = [time for time in times if time is not None]
    if clock != sorted(clock):
        return []
    return sorted(
        {bisect_right(clock, end) - 1 for end in history.optimizer_ends if clock[0] <= end}
    )


def _optimizer_runs(found: Passes) -> list[int]:
    """The last of the optimizer's events before the next pass."""
    ends: list[int] = []
    work = found.work
    for at, place in enumerate(found.optimizers):
        following = found.optimizers[at + 1] if at + 1 < len(found.optimizers) else None
        if following is None or bisect_left(work, place) != bisect_left(work, following):
            ends.append(place)
    return ends


def classify(replay: Replay, found: Passes, bounds: list[int]) -> None:
    """Sets category, label and step of every allocation."""
    known: dict[int, Origin] = {}
    for one in replay.allocations:
        made = known.get(id(one.frames)) if one.start == BEFORE else found.origins[one.start]
        if made is None and one.start == BEFORE:
            made = known[id(one.frames)] = origin(one.frames)
        assert made is not None, one.addr
        one.label = made.label
        one.category = _category(one, made, found, replay)
        place = bisect_left(bounds, one.start) - 1
        one.step = place if bounds and 0 <= place < len(bounds) - 1 else None


def _category(one: Allocation, made: Origin, found: Passes, replay: Replay) -> str:
    if made.part == LIBRARY:
        return WORKSPACE
    if made.part == INIT:
        return WEIGHTS
    if one.start == BEFORE:
        return {STEP: OPTIMIZER, FORWARD: ACTIVATIONS, BACKWARD: GRADIENTS}.get(
            made.part or "", UNKNOWN
        )
    if not found.has_stacks:
        return UNKNOWN
    if made.part == STEP:
        return TEMPORARY if one.end is not None and not _any_between(found.work, one) else OPTIMIZER
    if made.part == BACKWARD:
        return _of_backward(one, found)
    if made.part == CLIP:
        return TEMPORARY if one.end is not None else UNKNOWN
    return _of_forward(one, made, found, replay)


def _of_backward(one: Allocation, found: Passes) -> str:
    """Freed by the backward that made it, or for later."""
    if one.end is None or _any_between(found.enders, one):
        return GRADIENTS
    by = found.origins[one.end]
    if found.frees_have_stacks:
        return TEMPORARY if by is not None and by.in_backward else GRADIENTS
    after = bisect_right(found.backwards, one.end)
    ender = bisect_right(found.enders, one.end)
    goes_on = after < len(found.backwards) and (
        ender == len(found.enders) or found.backwards[after] < found.enders[ender]
    )
    return TEMPORARY if goes_on else GRADIENTS


def _of_forward(one: Allocation, made: Origin, found: Passes, replay: Replay) -> str:
    """Kept for the backward, or not; and what other code makes before the forward pass is what it
    works on."""
    meets_backward = _any_between(found.backwards, one)
    is_last = one.end is None and bool(found.backwards or replay.num_ooms)
    if not meets_backward and not is_last:
        return TEMPORARY if one.end is not None else UNKNOWN
    if made.part == FORWARD:
        return ACTIVATIONS
    if made.in_backward:
        return GRADIENTS
    before, ended = bisect_left(found.forwards, one.start), bisect_left(found.others, one.start)
    last_forward = found.forwards[before - 1] if before else BEFORE
    last_other = found.others[ended - 1] if ended else BEFORE
    in_forward = last_forward > last_other
    if in_forward:
        return ACTIVATIONS
    if one.end is None and _any_between(found.optimizers, one):
        # Made once and kept: batches that are used again, or the state of an optimizer that nobody
        # knows.
        return UNKNOWN
    return (
        INPUTS
        if before < len(found.forwards) and (one.end is None or found.forwards[before] < one.end)
        else UNKNOWN
    )


def _any_between(places: list[int], one: Allocation) -> bool:
    at = bisect_right(places, one.start)
    return at < len(places) and (one.end is None or places[at] < one.end)
