"""Which batch fits: the recorded allocations with the sizes of another batch, played again.

A job that begins with that batch is played, for what comes first decides which blocks there are:
weights have segments of their own; the optimizer cuts its states out of what the first step's
activations have left, and so keeps those segments from ever being given back.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from stepscope.analyses.memory.allocator import reserved_bytes
from stepscope.analyses.memory.lifetimes import NEVER, DeviceEvents, Lifetimes
from stepscope.core.trace import Int64

MAX_TIMES, MIN_TIMES = 512.0, 1 / 16
FIRST = -2
"""Mark of what comes before what was there when the recording began."""
WORKSPACE, THREADS = 32 << 20, 2
"""Bytes of cuBLAS's workspace on Hopper, and the threads that have one: that of the forward pass,
and that of the backward pass, which makes another in the first step
(aten/src/ATen/cuda/CublasHandlePool.cpp)."""
NARROW = 1.01
"""Times, within which the largest batch is told."""


class Beginning(Struct, frozen=True, kw_only=True):
    """Memory that was there before the recording and stays, and when a job makes it."""

    weights: tuple[int, ...] = ()
    """Bytes of each."""
    num_states: int = 0
    """States that the optimizer keeps for each weight."""
    backward_ns: int = 0
    update_ns: int = 0
    """When the first backward pass and the first update were."""

    def allocations(self, stays_bytes: int) -> tuple[Int64, Int64]:
        """The size of each, and when it is made: what is no weight and no state is taken to be
        workspaces, and what is left of it to be there from the start."""
        states = [size for size in self.weights for _ in range(self.num_states)]
        rest = max(stays_bytes - sum(self.weights) - sum(states), 0)
        has_late = rest >= THREADS * WORKSPACE
        late = [WORKSPACE] if has_late else []
        early = [size for size in (*self.weights, rest - sum(late)) if size]
        sizes = np.array([*early, *late, *states], np.int64)
        times = np.repeat(
            np.array([FIRST, self.backward_ns, self.update_ns]),
            [len(early), len(late), len(states)],
        )
        return sizes, times


class BatchFit:
    """`most` is what each may become with a larger batch. Events from `until_ns` on are left out:
    two steps show what the allocator does."""

    def __init__(
        self,
        events: DeviceEvents,
        spans: Lifetimes,
        requested: Int64,
        most: Int64,
        beginning: Beginning,
        until_ns: int = NEVER,
    ) -> None:
        stays = max(events.base_bytes - int(spans.size[~spans.is_made].sum()), 0)
        sizes, made_ns = beginning.allocations(stays)
        self._sizes = np.concatenate([sizes, requested])
        self._most = np.concatenate([sizes, np.maximum(most, requested)])
        numbers = np.arange(len(self._sizes))
        ends = np.concatenate([np.full(len(sizes), NEVER), spans.end_ns])
        times = np.concatenate([made_ns, spans.start_ns, ends])
        number = np.concatenate([numbers, numbers])
        sign = np.repeat([1, -1], len(numbers))
        seen = times < until_ns
        order = np.lexsort((sign[seen], times[seen]))
        self._changes = list(
            zip(number[seen][order].tolist(), sign[seen][order].tolist(), strict=True)
        )

    @property
    def num_changes(self) -> int:
        return len(self._changes)

    def reserved_bytes(self, times: float, room_bytes: float) -> int | None:
        """The most that the allocator has from the driver; None where it is not enough."""
        larger = np.minimum(np.ceil(self._sizes * times), self._most)
        sizes = np.where(self._most > self._sizes, larger, self._sizes)
        return reserved_bytes(self._changes, sizes.astype(np.int64).tolist(), room_bytes)

    def largest(self, room_bytes: float, most: float = MAX_TIMES) -> float | None:
        """Times the batch; None where nothing grows, or nothing fits. `most` is what tensors alone
        would have room for."""
        if not (self._most > self._sizes).any():
            return None
        high = min(most, MAX_TIMES)
        if self.reserved_bytes(high, room_bytes) is not None:
            return high
        low = high / 2
        while self.reserved_bytes(low, room_bytes) is None:
            low, high = low / 2, low
            if low < MIN_TIMES:
                return None
        while high > NARROW * low:
            middle = (low + high) / 2
            if self.reserved_bytes(middle, room_bytes) is None:
                high = middle
            else:
                low = middle
        return low
