"""Each step's length on the device's own clock, without ever waiting for the device."""

from __future__ import annotations

from collections import deque
from typing import Any

from stepscope.capture.recording.forked import never_let_go

MAX_PENDING = 64
"""Steps that the device may be behind before a mark is left out."""


class DeviceClock:
    """An event recorded at each step's end, and read once the device has passed it.

    Recording and asking are all: nothing here synchronizes. While a CUDA graph is being captured
    nothing is recorded, for the event would become a part of the graph.
    """

    def __init__(self, cuda: Any) -> None:
        self._cuda = cuda
        self._pending: deque[tuple[int, Any, Any]] = deque()
        self._spare: list[Any] = []
        self._backward: Any = None
        """Recorded where the last backward pass of the running step begins."""
        self._last: Any = None
        self._last_step = -2
        self._device: int | None = None
        self.last = -1
        """The last step that is marked, or is just about to be."""
        self.settled = -1
        """The last step of which nothing more will be reported."""

    def begin_backward(self) -> None:
        """A backward pass begins; of a step that has several, the last one counts."""
        if not self.is_capturing() and self._cuda.current_device() == self._device:
            self._backward = self._backward or self._event()
            self._backward.record()

    def mark(self, step: int) -> list[tuple[int, int, int | None]]:
        """Marks the end of a step.

        Returns (step, nanoseconds, those of them since its backward pass began) of earlier ones
        that are over by now.
        """
        if self.is_capturing():
            return []
        if (device := self._cuda.current_device()) != self._device:
            # Events of two devices cannot be compared.
            self._device, self._last, self._last_step = device, None, -2
            self._pending.clear()
            self._spare.clear()
            self._backward = None
        if len(self._pending) < MAX_PENDING:
            event = self._event()
            event.record()
            self._pending.append((step, event, self._backward))
            self._backward = None
        return self.read()

    def _event(self) -> Any:
        return self._spare.pop() if self._spare else self._cuda.Event(enable_timing=True)

    @property
    def is_behind(self) -> bool:
        """Whether the device has yet to pass a mark."""
        return bool(self._pending)

    def is_capturing(self) -> bool:
        """Whether what runs now becomes part of a CUDA graph."""
        return bool(self._cuda.is_current_stream_capturing())

    def read(self) -> list[tuple[int, int, int | None]]:
        """The marks that the device has passed since."""
        over = []
        while self._pending and self._pending[0][1].query():
            step, event, backward = self._pending.popleft()
            if step == self._last_step + 1:
                # On another stream than the step's end it may not be passed yet.
                is_there = backward is not None and backward.query()
                since = round(backward.elapsed_time(event) * 1e6) if is_there else None
                over.append((step, round(self._last.elapsed_time(event) * 1e6), since))
            self._spare += [spare for spare in (self._last, backward) if spare is not None]
            self._last, self._last_step = event, step
            self.settled = step
        return over


def device_clock(torch: Any) -> DeviceClock | None:
    """A clock where the job uses a GPU by now, else None."""
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return None
    clock = DeviceClock(cuda)
    never_let_go(clock)
    return clock
