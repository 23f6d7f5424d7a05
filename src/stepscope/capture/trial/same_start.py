"""What two trials must have in common to be compared: the seed, and the first batches."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import Any

from stepscope.capture.describe.peek import attempt
from stepscope.capture.guard import Guard
from stepscope.capture.modes import without_modes
from stepscope.capture.trial.patches import replace
from stepscope.protocol.run_folder import EQUAL_FILE, write_json

NUM_BATCHES = 4
MAX_ITEMS = 4096
"""Items of each tensor that are looked at."""
MAX_THINGS = 1000
"""Tensors and values of a batch that are looked at."""
MAX_DEPTH = 8


class SameStart:
    """Notes the seed at the first step, and a digest of the first batches that a loader gave."""

    def __init__(self, guard: Guard, torch: Any) -> None:
        self._torch = torch
        self._first_seed = torch.initial_seed()
        self._hash = hashlib.sha256()
        self._num = 0
        self._folder: Path | None = None
        self._facts: dict[str, Any] = {"seed": None, "data": None, "num_batches": 0}
        loader_iter = torch.utils.data.dataloader._BaseDataLoaderIter  # noqa: SLF001
        replace(guard, loader_iter, "__next__", self._around_next)

    def began(self, folder: Path) -> None:
        self._folder = folder
        seed = self._torch.initial_seed()
        # A generator that nobody seeds starts from chance: a seed that is still the same was never
        # set.
        self._facts["seed"] = seed if seed != self._first_seed else None
        self._write()

    def stepped(self, step: int) -> None:
        pass

    def ended(self) -> None:
        self._write()

    def _around_next(self, original: Any) -> Any:
        holder = self._torch.utils.data.dataloader._BaseDataLoaderIter  # noqa: SLF001

        @functools.wraps(original)
        def wrapper(loader_iter: Any) -> Any:
            batch = original(loader_iter)
            if self._num < NUM_BATCHES:
                attempt(self._add, batch)
            elif holder.__dict__.get("__next__") is wrapper:
                # Its work is done: later batches pay nothing.
                holder.__next__ = original
            return batch

        return wrapper

    @without_modes()
    def _add(self, batch: Any) -> None:
        self._num += 1
        add_digest(self._torch, self._hash, batch)
        self._facts |= {"data": self._hash.hexdigest()[:16], "num_batches": self._num}
        if self._num == NUM_BATCHES:
            self._write()

    def _write(self) -> None:
        if self._folder is not None:
            write_json(self._folder / EQUAL_FILE, self._facts)


def add_digest(torch: Any, into: Any, batch: Any) -> None:
    """Adds what a batch holds.

    Tensors by kind, shape and their first bytes, in whatever holds them.
    """
    waiting: list[tuple[Any, int]] = [(batch, 0)]
    for _ in range(MAX_THINGS):
        if not waiting:
            return
        item, depth = waiting.pop()
        if isinstance(item, torch.Tensor):
            into.update(f"{item.dtype}{tuple(item.shape)}".encode())
            into.update(bytes_of(torch, item))
        elif isinstance(item, dict) and depth < MAX_DEPTH:
            waiting.extend(
                (value, depth + 1)
                for pair in reversed(list(item.items()))
                for value in reversed(pair)
            )
        elif isinstance(item, list | tuple) and depth < MAX_DEPTH:
            waiting.extend((member, depth + 1) for member in reversed(item))
        elif isinstance(item, str | bytes | int | float | None):
            into.update(repr(item).encode("utf-8", "replace"))
        elif callable(getattr(item, "tobytes", None)):
            into.update(item.tobytes())
        else:
            into.update(type(item).__name__.encode())


def bytes_of(torch: Any, tensor: Any) -> bytes:
    """The first of a tensor's bytes, without numpy, which may not be there."""
    first = tensor.detach().reshape(-1)[:MAX_ITEMS].cpu().contiguous()
    if first.is_complex():
        first = torch.view_as_real(first).contiguous()
    return bytes(first.view(torch.uint8).reshape(-1).tolist())
