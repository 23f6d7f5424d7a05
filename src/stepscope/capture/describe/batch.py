"""Who brings the batches, and what one is made of: its tensors and their bytes, which a worker
process would have to hand over."""

from __future__ import annotations

import sys
import weakref
from typing import Any

from stepscope.capture.describe.peek import attributes, tensor_methods

MAX_PARTS = 10_000
"""Looked at, of one batch: 10 ms."""


class Feeder:
    """The iterator that gave the last batch, and what its first batch was."""

    def __init__(self) -> None:
        self.batch: dict[str, int] = {}
        self._iterator: Any = None

    def took(self, iterator: Any, batch: Any) -> None:
        """A batch was taken. The iterator must not live on for our sake: its workers would."""
        if self.iterator() is not iterator:
            self.batch = batch_notes(batch)
        self._iterator = weakref.ref(iterator)

    def iterator(self) -> Any:
        """None where there was none, or it is gone."""
        return None if self._iterator is None else self._iterator()


def batch_notes(batch: Any) -> dict[str, int]:
    """How many tensors it has, in containers and in objects of the job, and their bytes; nothing of
    no batch, or of one with more parts than are looked at."""
    torch = sys.modules["torch"]
    methods = tensor_methods(torch)
    parts, seen, num_tensors, size_bytes = [batch], set[int](), 0, 0
    with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001
        while parts and len(seen) < MAX_PARTS:
            part = parts.pop()
            if id(part) in seen:
                continue
            seen.add(id(part))
            kind = type(part)  # what a class says of itself, and how it iterates, is the job's code
            if issubclass(kind, torch.Tensor):
                num_tensors += 1
                size_bytes += methods.numel(part) * methods.element_size(part)
            elif issubclass(kind, dict):
                parts += dict.values(part)
            elif issubclass(kind, list):
                parts += list.__iter__(part)
            elif issubclass(kind, tuple):
                parts += tuple.__iter__(part)
            else:
                parts += attributes(part).values()
    if batch is None or parts:
        return {}
    return {"num_tensors": num_tensors, "size_bytes": size_bytes}
