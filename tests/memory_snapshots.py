"""Memory snapshots for tests: a writer of plain pickles, and stories of training told as the
allocator's events."""

from __future__ import annotations

from pathlib import Path
from struct import pack
from typing import Any

from stepscope.readers.format import Source

MB = 1 << 20
MODULE = {
    "name": "_call_impl",
    "filename": "/venv/lib/python3.12/site-packages/torch/nn/modules/module.py",
    "line": 1790,
}
MOVED = {
    "name": "_apply",
    "filename": "/venv/lib/python3.12/site-packages/torch/nn/modules/module.py",
    "line": 965,
}
OPTIMIZER = {
    "name": "_init_group",
    "filename": "/venv/lib/python3.12/site-packages/torch/optim/adam.py",
    "line": 178,
}
ENGINE = {
    "name": "torch::autograd::Engine::evaluate_function(std::shared_ptr<x>)",
    "filename": "??",
    "line": 0,
}
NODE = {
    "name": "torch::autograd::generated::MmBackward0::apply(std::vector<at::Tensor>&&)",
    "filename": "??",
    "line": 0,
}


def frame(name: str, line: int, file: str = "/home/me/job/train.py") -> dict[str, Any]:
    return {"name": name, "filename": file, "line": line}


WEIGHTS = [MOVED, frame("build", 10)]
FORWARD = [MODULE, frame("forward", 20), frame("main", 90)]
BACKWARD = [NODE, ENGINE]
STEP = [OPTIMIZER, frame("main", 92)]
LOOP = [frame("main", 91)]


def pickled(value: Any) -> bytes:
    """As protocol 4 has it, without a memo."""
    return b"\x80\x04" + _code(value) + b"."


def _code(value: Any) -> bytes:
    if value is None or isinstance(value, bool):
        return {None: b"N", True: b"\x88", False: b"\x89"}[value]
    if isinstance(value, int):
        data = value.to_bytes((value.bit_length() + 8) // 8, "little", signed=True)
        return b"\x8a" + bytes([len(data)]) + data
    if isinstance(value, float):
        return b"G" + pack(">d", value)
    if isinstance(value, str):
        return b"X" + pack("<I", len(value.encode())) + value.encode()
    if isinstance(value, tuple):
        return b"(" + b"".join(map(_code, value)) + b"t"
    if isinstance(value, list):
        return b"](" + b"".join(map(_code, value)) + b"e"
    assert isinstance(value, dict), value
    return b"}(" + b"".join(_code(part) for item in value.items() for part in item) + b"u"


class Story:
    """What the allocator did, one call after the other. Every block has a segment of its own unless
    one is opened first."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.live: dict[int, tuple[int, list[Any]]] = {}
        self.segments: dict[int, int] = {}
        self.next_addr = 1 << 40

    def _event(self, action: str, addr: int, size: int, frames: list[Any]) -> None:
        time_us = 1_000_000 + 10 * len(self.events)
        self.events.append(
            {
                "action": action,
                "addr": addr,
                "size": size,
                "stream": 0,
                "time_us": time_us,
                "frames": frames,
            }
        )

    def segment(self, size: int) -> int:
        addr = self.next_addr
        self.next_addr += size + (1 << 30)
        self.segments[addr] = size
        self._event("segment_alloc", addr, size, [])
        return addr

    def alloc(self, size: int, frames: list[Any], addr: int | None = None) -> int:
        addr = self.segment(size) if addr is None else addr
        self._event("alloc", addr, size, frames)
        self.live[addr] = (size, frames)
        return addr

    def free(self, addr: int, frames: list[Any]) -> None:
        size, _ = self.live.pop(addr)
        self._event("free_requested", addr, size, frames)
        self._event("free_completed", addr, size, frames)

    def give_back(self, addr: int, frames: list[Any]) -> None:
        self._event("segment_free", addr, self.segments.pop(addr), frames)

    def oom(self, size: int, device_free: int) -> None:
        self.events.append(
            {
                "action": "oom",
                "size": size,
                "device_free": device_free,
                "stream": 0,
                "frames": FORWARD,
            }
        )

    def snapshot(self) -> dict[str, Any]:
        segments = []
        for start, size in self.segments.items():
            blocks = [
                {
                    "address": addr,
                    "size": used,
                    "requested_size": used,
                    "state": "active_allocated",
                    "frames": frames,
                }
                for addr, (used, frames) in sorted(self.live.items())
                if start <= addr < start + size
            ]
            segments.append(
                {
                    "device": 0,
                    "address": start,
                    "total_size": size,
                    "segment_type": "large",
                    "blocks": blocks,
                }
            )
        return {
            "segments": segments,
            "device_traces": [self.events],
            "allocator_settings": {"expandable_segments": False},
        }


def training(num_steps: int, *, kept_mb: int = 0, has_native: bool = True) -> Story:
    """Weights of 100 MB, Adam's 200, activations of 300, gradients of 100; each step may keep some
    of its forward pass.

    Without native frames the backward pass, in its own thread, has empty stacks.
    """
    story = Story()
    backward: list[Any] = BACKWARD if has_native else []
    story.alloc(100 * MB, WEIGHTS)
    for step in range(num_steps):
        batch = story.alloc(4 * MB, LOOP)
        scratch = story.alloc(50 * MB, FORWARD)
        story.free(scratch, FORWARD)
        activations = story.alloc(300 * MB, FORWARD)
        if kept_mb:
            story.alloc(kept_mb * MB, [MODULE, frame("loss_of", 33)])
        passing = story.alloc(60 * MB, backward)
        gradients = story.alloc(100 * MB, backward)
        story.free(activations, backward)
        story.free(passing, backward)
        if step == 0:
            story.alloc(200 * MB, STEP)
        half = story.alloc(20 * MB, STEP)
        story.free(half, STEP)
        story.free(gradients, [{**OPTIMIZER, "name": "zero_grad"}, frame("main", 93)])
        story.free(batch, LOOP)
    return story


def source_of(path: Path, data: bytes) -> Source:
    path.write_bytes(data)
    return Source(path=path, label=path.name)
