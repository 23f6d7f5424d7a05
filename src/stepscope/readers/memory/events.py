"""A snapshot's plain containers as events and blocks of one device, each field looked at once.

    {"segments": [{"device", "address", "total_size", "blocks": [{"address", "size", "requested_size", "state", "frames"}]}],
     "device_traces": [[{"action", "addr", "size", "time_us", "frames": [{"name", "filename", "line"}]}]],
     "allocator_settings": {...}, "external_annotations": [{"name", "stage", "device", "time_us"}]}

Before torch 2.1 a snapshot was the list of segments alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from stepscope.errors import FormatError

MAX_SIZE = 1 << 62
MAX_DEVICES = 64
MAX_EVENTS = 4_000_000
"""Of a device, the newest."""
MAX_BLOCKS = 2_000_000
"""Of all segments. A pickle may name one list a million times: two bytes there, and a million
blocks to look at here."""
ALLOC, FREE, FREED = "alloc", "free_requested", "free_completed"
SEGMENT, SEGMENT_FREE, MAP, UNMAP, OOM = (
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "oom",
)
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
    """Those in use."""
    has_own_pool: bool = False
    """Of a CUDA graph, or of a torch.cuda.MemPool: nothing else is served from it."""


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
    """Events and blocks that make no sense."""
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
    settings = _dict(snapshot.get("allocator_settings"))
    if sum(1 + len(_list(_dict(each).get("blocks"))) for each in snapshot["segments"]) > MAX_BLOCKS:
        raise FormatError(
            f"{label}: its segments name more than {MAX_BLOCKS:,} blocks: no device has as many"
        )
    num_lost = 0
    for each in snapshot["segments"]:
        device = _int(each.get("device", 0)) if isinstance(each, dict) else None
        if device is None or device >= MAX_DEVICES:
            num_lost += 1
            continue
        mine = by_device.setdefault(device, DeviceHistory(device, [], [], [], settings))
        _take_segment(mine, each)
    for device, trace in enumerate(_list(snapshot.get("device_traces"))[:MAX_DEVICES]):
        if isinstance(trace, list) and trace:
            mine = by_device.setdefault(device, DeviceHistory(device, [], [], [], settings))
            mine.left_out = max(0, len(trace) - MAX_EVENTS)
            mine.events = list(_events(mine, trace[mine.left_out :]))
    for device, mine in by_device.items():
        mine.num_bad += num_lost
        mine.optimizer_ends = _optimizer_ends(snapshot.get("external_annotations"), device)
    found = [
        by_device[device]
        for device in sorted(by_device)
        if by_device[device].segments or by_device[device].events
    ]
    if not found:
        raise FormatError(
            f"{label}: the snapshot is empty: no segment and no event on any device. Was the GPU "
            "used before it was taken?"
        )
    return found


def _take_segment(mine: DeviceHistory, told: dict[Any, Any]) -> None:
    addr, size = _int(told.get("address", 0)), _int(told.get("total_size"))
    if addr is None or size is None:
        mine.num_bad += 1
        return
    pool = told.get("segment_pool_id")
    has_own_pool = isinstance(pool, tuple | list) and any(
        type(part) is int and part != 0 for part in pool[:2]
    )
    segment = Segment(addr, size, told.get("is_expandable") is True, has_own_pool=has_own_pool)
    at = addr
    for each in _list(told.get("blocks")):
        block = _dict(each)
        length, here = _int(block.get("size")), _int(block.get("address", at))
        if length is None or here is None:
            mine.num_bad += 1
            continue
        at = here + length
        if block.get("state") == "active_allocated":
            requested = _int(block.get("requested_size"))
            frames = _list(block.get("frames")) or _history_frames(block)
            segment.blocks.append(
                Block(here, length, length if requested is None else requested, frames)
            )
    mine.segments.append(segment)


def _history_frames(block: dict[Any, Any]) -> list[Any]:
    """Of torch 2.0: the allocations a block served, the latest first."""
    history = _list(block.get("history"))
    return _list(_dict(history[0]).get("frames")) if history else NO_FRAMES


def _events(mine: DeviceHistory, trace: list[Any]) -> Iterator[Event]:
    for told in trace:
        if not isinstance(told, dict):
            mine.num_bad += 1
            continue
        action, size, addr = told.get("action"), told.get("size"), told.get("addr")
        frames, time_us = told.get("frames"), told.get("time_us")
        frames = frames if isinstance(frames, list) else NO_FRAMES
        time_us = time_us if type(time_us) is int and 0 <= time_us < MAX_SIZE else None
        if action == OOM:
            yield Event(
                OOM, 0, _int(size) or 0, time_us, frames, _int(told.get("device_free", addr))
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
                mine.num_bad += 1


def _optimizer_ends(annotations: Any, device: int) -> list[int]:
    ends = []
    for each in _list(annotations):
        told = _dict(each)
        name, time_us = told.get("name"), _int(told.get("time_us"))
        is_end = told.get("stage") == "END" and told.get("device", device) == device
        if (
            is_end
            and time_us is not None
            and isinstance(name, str)
            and name.startswith("Optimizer.step")
        ):
            ends.append(time_us)
    return sorted(ends)


def _int(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < MAX_SIZE else None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else NO_FRAMES


def _dict(value: Any) -> dict[Any, Any]:
    return value if isinstance(value, dict) else {}
