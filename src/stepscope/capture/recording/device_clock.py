"""Each step's length on the device's own clock, without ever waiting for the device."""

from __future__ import annotations

from collections import deque
from typing import Any

MOST_PENDING = 64
"""Steps that the device may be behind before a mark is left out."""


class DeviceClock:
    """An event recorded at each step's end, and read once the device has passed it.

    Recording and asking are all: nothing here synchronizes. While a CUDA graph is being captured
    nothing is recorded, for the event would become a part of the graph.
    """

    def __init__(self, cuda: Any) -> None:
        self._cuda = cuda
        self._pending: deque[tuple[int, Any]] = deque()
        self._spare: list[Any] = []
        self._last: Any = None
        self._last_step = -2
        self._device: int | None = None
        self.last = -1
        """The last step that is marked, or is just about to be."""
        self.settled = -1
        """The last step of which nothing more will be reported."""

    def mark(self, step: int) -> list[tuple[int, int]]:
        """Marks the end of a step.

        Returns (step, nanoseconds) of earlier ones that are over by now.
        """
        if self.is_capturing():
            return []
        if (device := self._cuda.current_device()) != self._device:
            # Events of two devices cannot be compared.
            self._device, self._last, self._last_step = device, None, -2
            self._pending.clear()
            self._spare.clear()
        if len(self._pending) < MOST_PENDING:
            event = self._spare.pop() if self._spare else self._cuda.Event(enable_timing=True)
            event.record()
            self._pending.append((step, event))
        return self.read()

    @property
    def is_behind(self) -> bool:
        """Whether the device has yet to pass a mark."""
        return bool(self._pending)

    def is_capturing(self) -> bool:
        """Whether what runs now becomes part of a CUDA graph."""
        return bool(self._cuda.is_current_stream_capturing())

    def read(self) -> list[tuple[int, int]]:
        """The marks that the device has passed since."""
        over = []
        while self._pending and self._pending[0][1].query():
            step, event = self._pending.popleft()
            if step == self._last_step + 1:
                over.append((step, round(self._last.elapsed_time(event) * 1e6)))
            if self._last is not None:
                self._spare.append(self._last)
            self._last, self._last_step = event, step
            self.settled = step
        return over


def device_clock(torch: Any) -> DeviceClock | None:
    """A clock where the job uses a GPU by now, else None."""
    cuda = getattr(torch, "cuda", None)
    return DeviceClock(cuda) if cuda is not None and cuda.is_initialized() else None
