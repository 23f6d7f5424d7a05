"""A snapshot's events played again: every allocation with its beginning and end, and what was held
and reserved after each.

Recording may have begun when much was allocated already, and the list of events is a ring that
loses its oldest. So the state before the first event is found backward, from the state that the
snapshot ends with: what is freed without having been allocated was there, and so was what is in use
at the end without having been allocated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stepscope.recordings.memory.arena import Arena, Rules
from stepscope.recordings.memory.events import (
    ALLOC,
    FREE,
    FREED,
    MAP,
    NO_FRAMES,
    OOM,
    SEGMENT,
    SEGMENT_FREE,
    UNMAP,
    DeviceHistory,
    Event,
)

BEFORE = -1
"""The index of what happened before the first event."""
MAX_SEGMENTS = 200_000
MAX_LIVE = 1_000_000


@dataclass(slots=True)
class Allocation:
    addr: int
    size: int
    """Bytes of the block, not of the tensor in it."""
    start: int
    """Index of its event, or BEFORE."""
    end: int | None
    """Index of the event that asked to free it; None for what is there at the end."""
    frames: list[Any]
    step: int | None = None
    category: str = ""
    label: str | None = None


@dataclass(slots=True)
class Replay:
    """State after each event; the first entry is the state before all."""

    allocations: list[Allocation]
    held: list[int]
    reserved: list[int]
    peak: int
    """Index of the event after which tensors held most; BEFORE where nothing ever exceeds what was
    there."""
    free_at_peak: list[int]
    """Bytes of every free stretch."""
    split_bytes: int
    num_retries: int | None
    num_ooms: int
    oom_bytes: int | None
    oom_free_bytes: int | None
    capacity_bytes: int | None
    num_before: int
    """Allocations that were there before the first event."""
    num_odd: int
    """Events that contradict the ones before."""

    @property
    def peak_bytes(self) -> int:
        return self.held[self.peak + 1]

    def alive_at_peak(self) -> list[Allocation]:
        return [
            allocation
            for allocation in self.allocations
            if allocation.start <= self.peak
            and (allocation.end is None or allocation.end > self.peak)
        ]


def replayed(history: DeviceHistory) -> Replay:
    """The whole, and then once more up to the peak, for the free blocks there."""
    events = history.events
    run = _Run(history, events)
    run.go(len(events))
    peak = max(range(len(run.held)), key=run.held.__getitem__) - 1
    again = _Run(history, events)
    again.go(peak + 1)
    return Replay(
        allocations=run.allocations,
        held=run.held,
        reserved=run.reserved,
        peak=peak,
        free_at_peak=again.arena.free_blocks(),
        split_bytes=max(0, run.split_bytes),
        num_retries=_retries(history, events),
        num_ooms=run.num_ooms,
        oom_bytes=run.oom_bytes,
        oom_free_bytes=run.oom_free_bytes,
        capacity_bytes=run.capacity_bytes,
        num_before=run.num_before,
        num_odd=run.num_odd,
    )


class _Run:
    def __init__(self, history: DeviceHistory, events: list[Event]) -> None:
        self.events = events
        self.arena = _arena(history, events)
        self.allocations: list[Allocation] = []
        self.open: dict[int, Allocation] = {}
        self.knows_segments = bool(history.segments)
        self.num_odd = 0
        self.num_ooms = 0
        self.oom_bytes: int | None = None
        self.oom_free_bytes: int | None = None
        self.capacity_bytes: int | None = None
        self._segments_before(history)
        held_bytes = self._blocks_before(history)
        self.num_before = len(self.allocations)
        self.held_bytes = held_bytes
        self.held, self.reserved = [held_bytes], [self.arena.reserved]
        self.split_bytes = self.arena.split

    def _segments_before(self, history: DeviceHistory) -> None:
        """The segments at the end, with every event about them undone, the last first."""
        arena = self.arena
        for segment in history.segments[:MAX_SEGMENTS]:
            arena.add(segment.addr, segment.size, expandable=segment.expandable)
        for event in reversed(self.events):
            if event.action in (SEGMENT, MAP):
                arena.take(event.addr, event.size)
            elif event.action in (SEGMENT_FREE, UNMAP) and arena.num_pieces < MAX_SEGMENTS:
                arena.add(event.addr, event.size, expandable=event.action == UNMAP)
        if arena.reserved < 0:  # Segments were given of which the end knows nothing.
            arena.reserved = 0
            self.num_odd += 1

    def _blocks_before(self, history: DeviceHistory) -> int:
        """What was in use before the first event, by address; gives its bytes."""
        opened: set[int] = set()
        there: dict[int, tuple[int, int | None, list[Any]]] = {}
        for event in self.events:
            if event.action == ALLOC:
                opened.add(event.addr)
            elif event.action == FREE:
                if event.addr not in opened:
                    there.setdefault(event.addr, (event.size, None, NO_FRAMES))
                opened.discard(event.addr)
        for segment in history.segments:
            for block in segment.blocks:
                if block.addr not in opened:
                    there.setdefault(block.addr, (block.requested, block.size, block.frames))
        total = 0
        for addr in sorted(there)[:MAX_LIVE]:
            requested, size, frames = there[addr]
            allocation = Allocation(
                addr, self.arena.hold(addr, requested, size), BEFORE, None, frames
            )
            total += allocation.size
            self.allocations.append(allocation)
            self.open[addr] = allocation
        return total

    def go(self, count: int) -> None:
        """Play the first events."""
        arena = self.arena
        for index in range(count):
            event = self.events[index]
            action = event.action
            if action == ALLOC:
                self._alloc(index, event)
            elif action == FREE:
                allocation = self.open.pop(event.addr, None)
                if allocation is None:
                    self.num_odd += 1
                else:
                    allocation.end = index
                    self.held_bytes -= allocation.size
            elif action == FREED:
                arena.release(event.addr)
            elif action in (SEGMENT, MAP):
                if arena.num_pieces < MAX_SEGMENTS:
                    arena.add(event.addr, event.size, expandable=action == MAP)
            elif action in (SEGMENT_FREE, UNMAP):
                arena.take(event.addr, event.size)
            elif action == OOM:
                self.num_ooms += 1
                self.oom_bytes = event.size
                self.oom_free_bytes = max(0, self.arena.reserved - self.held_bytes)
                if event.free_bytes is not None:
                    self.capacity_bytes = self.arena.reserved + event.free_bytes
            self.held.append(self.held_bytes)
            self.reserved.append(arena.reserved)
            self.split_bytes = max(self.split_bytes, arena.split)

    def _alloc(self, index: int, event: Event) -> None:
        before = self.open.get(event.addr)
        if before is not None:  # Its end was lost.
            self.num_odd += 1
            before.end = index
            self.held_bytes -= before.size
            self.arena.release(event.addr)
        if len(self.open) >= MAX_LIVE:
            self.num_odd += 1
            return
        self.num_odd += self.knows_segments and not self.arena.has(event.addr)
        size = self.arena.hold(event.addr, event.size)
        allocation = Allocation(event.addr, size, index, None, event.frames)
        self.allocations.append(allocation)
        self.open[event.addr] = allocation
        self.held_bytes += size


def _arena(history: DeviceHistory, events: list[Event]) -> Arena:
    """An empty one for such events."""
    starts = [segment.addr for segment in history.segments]
    blocks = [block.addr for segment in history.segments for block in segment.blocks]
    for event in events:
        if event.action in (ALLOC, FREE):
            blocks.append(event.addr)
        elif event.action in (SEGMENT, SEGMENT_FREE, MAP, UNMAP):
            # What is cut out of the middle leaves a piece that begins where it ends.
            starts += (event.addr, event.addr + event.size)
    return Arena(Rules.of(history.settings), starts, blocks)


def _retries(history: DeviceHistory, events: list[Event]) -> int | None:
    """Times that segments were given back just before one was asked for, or before memory ran out,
    and nobody asked for it.

    None where the allocator's own collection may have done it, and where no stack says who did.
    """
    if history.settings.get("garbage_collection_threshold") not in (None, 0, 0.0):
        return None
    count, given_back, by_nobody, is_known = 0, False, False, True
    asked_by_stack: dict[int, bool | None] = {}
    for event in events:
        if event.action in (SEGMENT_FREE, UNMAP):
            if id(event.frames) not in asked_by_stack:
                asked_by_stack[id(event.frames)] = _is_asked(event.frames)
            asked = asked_by_stack[id(event.frames)]
            given_back, by_nobody = given_back or asked is False, by_nobody or asked is None
        else:
            follows = event.action in (SEGMENT, MAP, OOM)
            count += given_back and follows
            is_known = is_known and not (by_nobody and not given_back and follows)
            given_back = by_nobody = False
    return count if count or is_known else None


def _is_asked(frames: list[Any]) -> bool | None:
    """Whether a program's own `empty_cache()` did it; None where nothing shows it."""
    names = [frame.get("name") for frame in frames if isinstance(frame, dict)]
    if not names:
        return None
    return any(
        isinstance(name, str) and ("empty_cache" in name or "emptyCache" in name) for name in names
    )
