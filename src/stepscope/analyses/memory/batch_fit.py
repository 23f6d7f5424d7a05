"""Which batch fits: the recorded allocations with the sizes of another batch, played again."""

from __future__ import annotations

import numpy as np

from stepscope.analyses.memory.allocator import LARGE_STEP, reserved_bytes
from stepscope.analyses.memory.lifetimes import NEVER, DeviceEvents, Lifetimes
from stepscope.core.trace import Bool

MOST_TIMES, LEAST_TIMES = 512.0, 1 / 16
NARROW = 1.01
"""Times, within which the largest batch is told."""


class BatchFit:
    """What was there before stays as it is, in one piece. Events from `until_ns` on are left out:
    two steps show what the allocator does."""

    def __init__(
        self, events: DeviceEvents, spans: Lifetimes, grows: Bool, until_ns: int = NEVER
    ) -> None:
        numbers = np.arange(len(spans.size))
        times = np.concatenate([spans.start_ns, spans.end_ns])
        number = np.concatenate([numbers, numbers])
        sign = np.repeat([1, -1], len(numbers))
        seen = times < until_ns
        order = np.lexsort((sign[seen], times[seen]))
        self._changes = list(
            zip(number[seen][order].tolist(), sign[seen][order].tolist(), strict=True)
        )
        self._sizes, self._grows = spans.size, grows
        stays = max(events.base_bytes - int(spans.size[~spans.is_made].sum()), 0)
        self._base = -(-stays // LARGE_STEP) * LARGE_STEP

    @property
    def num_changes(self) -> int:
        return len(self._changes)

    def reserved_bytes(self, times: float, room_bytes: float) -> int | None:
        """The most that the allocator has from the driver; None where it is not enough."""
        sizes = np.where(self._grows, np.ceil(self._sizes * times), self._sizes)
        return reserved_bytes(
            self._changes, sizes.astype(np.int64).tolist(), self._base, room_bytes
        )

    def largest(self, room_bytes: float, most: float = MOST_TIMES) -> float | None:
        """Times the batch; None where nothing grows, or nothing fits. `most` is what tensors alone
        would have room for."""
        if not self._grows.any():
            return None
        high = min(most, MOST_TIMES)
        if self.reserved_bytes(high, room_bytes) is not None:
            return high
        low = high / 2
        while self.reserved_bytes(low, room_bytes) is None:
            low, high = low / 2, low
            if low < LEAST_TIMES:
                return None
        while high > NARROW * low:
            middle = (low + high) / 2
            if self.reserved_bytes(middle, room_bytes) is None:
                high = middle
            else:
                low = middle
        return low
