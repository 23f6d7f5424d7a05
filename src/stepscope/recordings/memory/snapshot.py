"""CUDA memory snapshots (`torch.cuda.memory._dump_snapshot`), one or many: pickles, read without
running anything in them.

The allocator's events are played again, so that the peak, what was alive at it and how free memory
lay are known exactly; stacks and lives say what each tensor was for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from stepscope.api import FormatError, MemoryRecord, Reader, Source
from stepscope.core.numbers import size_words
from stepscope.core.recordings.memory import (
    OPTIMIZER,
    UNKNOWN,
    WEIGHTS,
    WORKSPACE,
    Holder,
    LiveTensor,
    MemoryRecording,
    MemoryReport,
    Step,
    memory_recording,
)
from stepscope.readers.whole_file import whole_text
from stepscope.recordings.memory.at_peak import at_peak, failed
from stepscope.recordings.memory.events import DeviceHistory, histories
from stepscope.recordings.memory.phases import Passes, boundaries, classify, find_passes
from stepscope.recordings.memory.replay import Allocation, Replay, replayed
from stepscope.recordings.memory.stats import NO_SIZE
from stepscope.recordings.safe_unpickle import PROTOCOLS, load_plain

FORMAT = "memory-snapshot"
MAX_BYTES = 1 << 30
"""Bytes of the pickle at most; ten million frames or so."""
MAX_HOLDERS = 40
MAX_LARGEST = 20
FIRST_CODES = frozenset(b"\x95}](c\x8cX")
"""What may follow a pickle's two first bytes: a frame, a container, or what a hostile one begins
with."""
NOWHERE = "no frame recorded"


def is_mine(head: bytes, name: str) -> bool:
    """Any pickle, so that one that is no snapshot is refused in words; of protocol 0 only by its
    name."""
    if len(head) > 2 and head[0] == 0x80 and head[1] in PROTOCOLS:
        return head[2] in FIRST_CODES
    stem = name.lower().removesuffix(".gz").removesuffix(".zst")
    return stem.endswith((".pickle", ".pkl")) and not head.lstrip().startswith((b"{", b"[", b"<"))


def read(sources: Sequence[Source]) -> MemoryReport:
    recordings: list[MemoryRecording] = []
    for source in sources:
        data, problem = whole_text(
            source, MAX_BYTES, "record fewer events: _record_memory_history(max_entries=100000)"
        )
        if problem is not None:
            raise FormatError(f"{source.label}: {problem}; a snapshot is read whole or not at all")
        snapshot = load_plain(data, source.label)
        del data
        for history in histories(snapshot, source.label):
            record, notes = _record(source.label, history)
            record.self_check()
            recordings.append(memory_recording(record, notes))
    return MemoryReport(recordings=tuple(recordings))


def _record(label: str, history: DeviceHistory) -> tuple[MemoryRecord, list[str]]:
    try:
        replay = replayed(history)
    except FormatError as problem:
        raise FormatError(f"{label}: {problem}") from None
    events = history.events
    passes = find_passes(events)
    bounds = boundaries(history, events, passes)
    classify(replay, passes, bounds)
    alive = replay.alive_at_peak()
    peak = at_peak(replay, passes, events, bounds, alive)
    failure = failed(replay, passes, events)
    held: dict[str, int] = {}
    for allocation in alive:
        held[allocation.category] = held.get(allocation.category, 0) + allocation.size
    reserved = replay.reserved[replay.peak + 1]
    knows_reserved = bool(history.segments)
    has_events = bool(events)
    own_pools = [segment for segment in history.segments if segment.has_own_pool]
    in_own_pools = sum(segment.size for segment in own_pools)
    used_there = sum(block.size for segment in own_pools for block in segment.blocks)
    record = MemoryRecord(
        format=FORMAT,
        label=label,
        device=history.device,
        peak_bytes=replay.peak_bytes,
        held_bytes=replay.held[-1],
        reserved_bytes=max(replay.reserved) if knows_reserved else None,
        reserved_at_peak_bytes=reserved if knows_reserved else None,
        reserved_now_bytes=replay.reserved[-1] if knows_reserved else None,
        capacity_bytes=replay.capacity_bytes,
        held=held,
        most=_most(replay),
        peak_phase=peak.phase,
        peak_step=peak.step,
        peak_ms=peak.ms,
        peak_frame=peak.frame,
        phases=peak.phases,
        holders=_holders(alive, MAX_HOLDERS),
        largest=_largest(alive),
        free_at_peak_bytes=sum(replay.free_at_peak) if knows_reserved else None,
        largest_free_bytes=max(replay.free_at_peak, default=0) if knows_reserved else None,
        split_bytes=replay.split_bytes if knows_reserved else None,
        pool_bytes=in_own_pools if knows_reserved else None,
        pool_free_bytes=max(0, in_own_pools - used_there) if knows_reserved else None,
        steps=tuple(_steps(replay, bounds)),
        kept_frames=_kept(replay, bounds),
        num_retries=replay.num_retries if has_events else None,
        num_ooms=replay.num_ooms if has_events else None,
        oom_bytes=replay.oom_bytes,
        oom_free_bytes=replay.oom_free_bytes if knows_reserved else None,
        oom_frame=failure.frame,
        oom_phase=failure.phase,
        oom_held=failure.held,
        expandable=_expandable(history),
    )
    return record, list(_notes(history, replay, passes, held))


def _most(replay: Replay) -> dict[str, int]:
    """The most that each category ever held."""
    changes: list[tuple[int, int, str]] = []
    for allocation in replay.allocations:
        changes.append((allocation.start, allocation.size, allocation.category))
        if allocation.end is not None:
            changes.append((allocation.end, -allocation.size, allocation.category))
    changes.sort(key=lambda change: change[0])
    current: dict[str, int] = {}
    most: dict[str, int] = {}
    for _, size, category in changes:
        current[category] = current.get(category, 0) + size
        most[category] = max(most.get(category, 0), current[category])
    return most


def _holders(alive: Iterable[Allocation], most: int) -> tuple[Holder, ...]:
    """Holders by frame, the most bytes first."""
    by_frame: dict[str, list[Allocation]] = {}
    for allocation in alive:
        by_frame.setdefault(allocation.label or NOWHERE, []).append(allocation)
    holders = []
    for frame, allocations in by_frame.items():
        sizes: dict[str, int] = {}
        for allocation in allocations:
            sizes[allocation.category] = sizes.get(allocation.category, 0) + allocation.size
        category = max(sizes, key=sizes.__getitem__)
        holders.append(
            Holder(
                frame=frame,
                size_bytes=sum(sizes.values()),
                num_tensors=len(allocations),
                category=category,
            )
        )
    return tuple(
        sorted(holders, key=lambda allocation: (-allocation.size_bytes, allocation.frame))[:most]
    )


def _largest(alive: Iterable[Allocation]) -> tuple[LiveTensor, ...]:
    first = sorted(alive, key=lambda allocation: (-allocation.size, allocation.start))[:MAX_LARGEST]
    return tuple(
        LiveTensor(
            size_bytes=allocation.size,
            category=allocation.category,
            frame=allocation.label,
            step=allocation.step,
        )
        for allocation in first
    )


def _steps(replay: Replay, bounds: list[int]) -> Iterator[Step]:
    for step in range(len(bounds) - 1):
        held = replay.held[bounds[step] + 2 : bounds[step + 1] + 2]
        if held:
            yield Step(floor_bytes=min(held))


def _left(replay: Replay) -> Iterator[Allocation]:
    """What is there at the end and was not made to last."""
    return (
        allocation
        for allocation in replay.allocations
        if allocation.end is None and allocation.category not in (OPTIMIZER, WEIGHTS, WORKSPACE)
    )


def _kept(replay: Replay, bounds: list[int]) -> tuple[Holder, ...]:
    """Made in a step before the last whole one, and still there."""
    last = len(bounds) - 2
    return _holders(
        (
            allocation
            for allocation in _left(replay)
            if allocation.step is not None and allocation.step < last
        ),
        MAX_HOLDERS,
    )


def _expandable(history: DeviceHistory) -> bool | None:
    setting = history.settings.get("expandable_segments")
    if isinstance(setting, bool):
        return setting
    return any(segment.expandable for segment in history.segments) or None


def _notes(
    history: DeviceHistory, replay: Replay, passes: Passes, held: dict[str, int]
) -> Iterator[str]:
    if not history.events:
        yield (
            "no events were recorded, so the peak is what was held when the snapshot was taken; "
            "call torch.cuda.memory._record_memory_history() before training"
        )
    elif not passes.has_stacks:
        yield (
            "no stacks were recorded, so nothing says what tensors are for; record with "
            "context='all', stacks='all'"
        )
    if replay.num_before and history.events:
        size = sum(allocation.size for allocation in replay.allocations[: replay.num_before])
        yield (
            f"{replay.num_before} tensors ({size_words(size)}) were there before the first event: "
            "recording began late, or its oldest events were lost (max_entries)"
        )
    if passes.has_stacks and held.get(UNKNOWN, 0) > 0.1 * max(sum(held.values()), 1):
        yield (
            "for a part of the peak neither stack nor lifetime shows what it is for; stacks='all' "
            "shows the backward pass too"
        )
    if replay.capacity_bytes is None:
        yield NO_SIZE
    if history.num_bad:
        yield f"{history.num_bad} entries make no sense and were left out"
    if replay.num_odd:
        yield f"{replay.num_odd} events contradict the ones before; sizes may be off by theirs"
    if history.left_out:
        yield f"the oldest {history.left_out} events were left out: more than is played again"


READER = Reader(is_mine=is_mine, read_together=read)
