"""The peak of a snapshot: the phase of the step it was in, who asked for its last bytes, and what
each phase made of it."""

from __future__ import annotations

from bisect import bisect_right

from msgspec import Struct

from stepscope.recordings.memory.events import OOM, Event
from stepscope.recordings.memory.frames import origin
from stepscope.recordings.memory.phases import Passes
from stepscope.recordings.memory.replay import BEFORE, Allocation, Replay

FORWARD, BACKWARD, OPTIMIZER, EARLIER = "forward", "backward", "optimizer", "before"


class AtPeak(Struct, frozen=True, kw_only=True):
    """None is "not known": no stacks, or no step."""

    phase: str | None = None
    step: int | None = None
    ms: float | None = None
    frame: str | None = None
    phases: tuple[tuple[str, int | None, int], ...] = ()


class Failed(Struct, frozen=True, kw_only=True):
    """The last time memory ran out."""

    frame: str | None = None
    phase: str | None = None
    held: dict[str, int] | None = None


def failed(replay: Replay, passes: Passes, events: list[Event]) -> Failed:
    """Failure: who asked in vain, in which phase, and what tensors were held for."""
    index = next(
        (number for number in reversed(range(len(events))) if events[number].action == OOM), None
    )
    if index is None:
        return Failed()
    made_by = origin(events[index].frames)
    held: dict[str, int] = {}
    for allocation in replay.allocations:
        if allocation.start < index and (allocation.end is None or allocation.end > index):
            held[allocation.category] = held.get(allocation.category, 0) + allocation.size
    phase = _Phases(passes).at(index)
    return Failed(frame=made_by.label, phase=BACKWARD if made_by.in_backward else phase, held=held)


def at_peak(
    replay: Replay, passes: Passes, events: list[Event], bounds: list[int], alive: list[Allocation]
) -> AtPeak:
    """State at the event after which most was held."""
    if replay.peak == BEFORE or not events:
        return AtPeak()
    first, at = events[0].time_us, events[replay.peak].time_us
    made_by = passes.origins[replay.peak]
    step = bisect_right(bounds, replay.peak - 1) - 1
    phases = _Phases(passes)
    return AtPeak(
        phase=phases.at(replay.peak),
        step=step if step >= 0 else None,
        ms=None if first is None or at is None else (at - first) / 1e3,
        frame=None if made_by is None else made_by.label,
        phases=_table(replay, phases, alive) if passes.work else (),
    )


class _Phases:
    """Phases by the last event that shows one."""

    def __init__(self, passes: Passes) -> None:
        marks = [
            *((index, FORWARD) for index in passes.forwards),
            *((index, BACKWARD) for index in passes.backwards),
            *((index, OPTIMIZER) for index in passes.optimizers),
        ]
        marks.sort()
        self._indices = [index for index, _ in marks]
        self._names = [name for _, name in marks]

    def at(self, index: int) -> str:
        mark = bisect_right(self._indices, index) - 1
        return self._names[mark] if mark >= 0 else EARLIER


def _table(
    replay: Replay, phases: _Phases, alive: list[Allocation]
) -> tuple[tuple[str, int | None, int], ...]:
    most: dict[str, int] = {}
    for index, held in enumerate(replay.held[1:]):
        phase = phases.at(index)
        most[phase] = max(most.get(phase, 0), held)
    made: dict[str, int] = {}
    for allocation in alive:
        phase = EARLIER if allocation.start == BEFORE else phases.at(allocation.start)
        made[phase] = made.get(phase, 0) + allocation.size
    return tuple(
        (phase, None if phase == EARLIER else most.get(phase), made.get(phase, 0))
        for phase in (FORWARD, BACKWARD, OPTIMIZER, EARLIER)
        if phase in most or phase in made
    )
