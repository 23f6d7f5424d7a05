"""A snapshot's plain containers as events and blocks of one device, each field looked at once.

    {"segments": [{"device", "address", "total_size",
                   "blocks": [{"address", "size", "requested_size", "state", "frames"}]}],
     "device_traces": [[{"action", "addr", "size", "time_us",
                         "frames": [{"name", "filename", "line"}]}]],
     "allocator_settings": {...}, "external_annotations": [{"name", "stage", "device", "time_us"}]}

Before torch 2.1 a snapshot was the list of segments alone.

A pickle may name one object a million times, for two bytes each. In a snapshot stacks are shared;
every segment, block, event and annotation is an object of its own, and one that is named again
makes no sense: the work is bounded by the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from stepscope.api import FormatError
from stepscope.protocol.untrusted import as_object

MAX_SIZE = 1 << 62
MAX_DEVICES = 64
MAX_EVENTS = 4_000_000
"""Events of a device that are kept, the newest."""
ALLOC, FREE, FREED = "alloc", "free_requested", "free_completed"
SEGMENT = "segment_alloc"
SEGMENT_FREE = "segment_free"
MAP = "segment_map"
UNMAP = "segment_unmap"
OOM = "oom"
PLACED = (ALLOC, FREE, FREED, SEGMENT, SEGMENT_FREE, MAP, UNMAP)
"""Actions with an address. The others (a snapshot taken, a pool's end) change nothing."""
NO_FRAMES: list[Any] = []


@dataclass(slots=True)
class Event:
    action: str
    addr: int
    size: int
    time_us: int | None
    frames: list[Any]
    free_bytes: int | None = None
    """What the driver had left; of an OOM alone."""


@dataclass(slots=True)
class Block:
    addr: int
    size: int
    requested: int
    frames: list[Any]


@dataclass(slots=True)
class Segment:
    addr: int
    size: int
    expandable: bool
    blocks: list[Block] = field(default_factory=list)
    """Blocks in use."""
    has_own_pool: bool = False
    """Whether it is of a CUDA graph, or of a torch.cuda.MemPool: nothing else is served from it."""


@dataclass(slots=True)
class DeviceHistory:
    device: int
    segments: list[Segment]
    events: list[Event]
    optimizer_ends: list[int]
    """Microseconds at which optimizer steps ended, where the profiler's annotations were
    recorded."""
    settings: dict[str, Any]
    num_bad: int = 0
    """Segments, events and blocks that make no sense."""
    left_out: int = 0
    """Events before the newest MAX_EVENTS."""


def histories(snapshot: Any, label: str) -> list[DeviceHistory]:
    """One for each device that has segments or events."""
    if isinstance(snapshot, list):
        snapshot = {"segments": snapshot}
    if not isinstance(snapshot, dict) or not isinstance(snapshot.get("segments"), list):
        raise FormatError(
            f"{label}: the pickle holds no memory snapshot (no list of segments); "
            "torch.cuda.memory._dump_snapshot writes one"
        )
    by_device: dict[int, DeviceHistory] = {}
    settings = as_object(snapshot.get("allocator_settings"))
    once = _Once()
    num_lost = 0
    for segment in snapshot["segments"]:
        device = _int(segment.get("device", 0)) if isinstance(segment, dict) else None
        if device is None or device >= MAX_DEVICES or not once.is_first(segment):
            num_lost += 1
            continue
        history = by_device.setdefault(device, DeviceHistory(device, [], [], [], settings))
        _take_segment(history, segment, once)
    for device, trace in enumerate(_list(snapshot.get("device_traces"))[:MAX_DEVICES]):
        if isinstance(trace, list) and trace and once.is_first(trace):
            history = by_device.setdefault(device, DeviceHistory(device, [], [], [], settings))
            history.left_out = max(0, len(trace) - MAX_EVENTS)
            history.events = list(_events(history, trace[history.left_out :], once))
    ends = _optimizer_ends(snapshot.get("external_annotations"), once)
    for device, history in by_device.items():
        history.num_bad += num_lost
        history.optimizer_ends = sorted(ends.get(None, []) + ends.get(device, []))
    used = [
        by_device[device]
        for device in sorted(by_device)
        if by_device[device].segments or by_device[device].events
    ]
    if not used:
        raise FormatError(
            f"{label}: the snapshot is empty: no segment and no event on any device. Was the GPU "
            "used before it was taken?"
        )
    return used


class _Once:
    """Objects of a snapshot that were met. It outlives this, and with it every identity."""

    def __init__(self) -> None:
        self._met: set[int] = set()

    def is_first(self, value: Any) -> bool:
        num_met = len(self._met)
        self._met.add(id(value))
        return len(self._met) > num_met


def _take_segment(history: DeviceHistory, entry: dict[Any, Any], once: _Once) -> None:
    addr, size = _int(entry.get("address", 0)), _int(entry.get("total_size"))
    if addr is None or size is None:
        history.num_bad += 1
        return
    pool = entry.get("segment_pool_id")
    has_own_pool = isinstance(pool, tuple | list) and any(
        type(part) is int and part != 0 for part in pool[:2]
    )
    segment = Segment(addr, size, entry.get("is_expandable") is True, has_own_pool=has_own_pool)
    end = addr
    blocks = _list(entry.get("blocks"))
    if blocks and not once.is_first(blocks):
        history.num_bad += 1
        return
    for each in blocks:
        block = as_object(each)
        length, start = _int(block.get("size")), _int(block.get("address", end))
        if length is None or start is None or not once.is_first(block):
            history.num_bad += 1
            continue
        end = start + length
        if block.get("state") == "active_allocated":
            requested = _int(block.get("requested_size"))
            frames = _list(block.get("frames")) or _history_frames(block)
            segment.blocks.append(
                Block(start, length, length if requested is None else requested, frames)
            )
    history.segments.append(segment)


def _history_frames(block: dict[Any, Any]) -> list[Any]:
    """Frames of a block of torch 2.0, by the allocations it served, the latest first."""
    history = _list(block.get("history"))
    return _list(as_object(history[0]).get("frames")) if history else NO_FRAMES


def _events(history: DeviceHistory, trace: list[Any], once: _Once) -> Iterator[Event]:
    for entry in trace:
        if not isinstance(entry, dict) or not once.is_first(entry):
            history.num_bad += 1
            continue
        action, size, addr = entry.get("action"), entry.get("size"), entry.get("addr")
        frames, time_us = entry.get("frames"), entry.get("time_us")
        frames = frames if isinstance(frames, list) else NO_FRAMES
        time_us = time_us if type(time_us) is int and 0 <= time_us < MAX_SIZE else None
        if action == OOM:
            yield Event(
                OOM, 0, _int(size) or 0, time_us, frames, _int(entry.get("device_free", addr))
            )
        elif action in PLACED:
            if (
                type(size) is int
                and type(addr) is int
                and 0 <= size < MAX_SIZE
                and 0 <= addr < MAX_SIZE
            ):
                yield Event(str(action), addr, size, time_us, frames)
            else:
                history.num_bad += 1


def _optimizer_ends(annotations: Any, once: _Once) -> dict[int | None, list[int]]:
    """Ends by device; None where an annotation tells none."""
    ends: dict[int | None, list[int]] = {}
    for each in _list(annotations):
        annotation = as_object(each)
        name, time_us = annotation.get("name"), _int(annotation.get("time_us"))
        if (
            annotation.get("stage") == "END"
            and time_us is not None
            and isinstance(name, str)
            and name.startswith("Optimizer.step")
            and once.is_first(annotation)
        ):
            device = _int(annotation["device"]) if "device" in annotation else None
            ends.setdefault(device, []).append(time_us)
    return ends


def _int(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < MAX_SIZE else None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else NO_FRAMES
