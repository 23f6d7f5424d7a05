"""The loss of every step of a trial: the number that each backward pass starts from.

Nothing waits for the device: a number that lies there is copied there, and all of them are read
when the job has ended. When the pass began says which step it belongs to, so that no step needs a
look for it.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from stepscope.capture import clocks
from stepscope.capture.describe.peek import attempt
from stepscope.capture.guard import Guard
from stepscope.capture.losses import json_number, loss_of
from stepscope.capture.modes import without_modes
from stepscope.capture.recording.window import backward_asker
from stepscope.capture.trial.patches import compiling_asker, replace
from stepscope.protocol.run_folder import LOSSES_FILE, write_json

FOLD = 256
"""Numbers on the device that are put together into one tensor:
each by itself takes the allocator's smallest block."""
MAX_KEPT = 1 << 15
"""Numbers kept. Where there are more, every second one goes,
and from then on every second pass is let by."""


class Losses:
    """Listens to backward passes, and writes down what they started from when the job ends."""

    def __init__(self, guard: Guard, torch: Any) -> None:
        self._torch = torch
        self._folder: Path | None = None
        self._is_in_backward = backward_asker(torch)
        self._at_ns: list[int] = []
        self._values: list[Any] = []
        """A number for each time; None where it is still on the device,
        and stands in one of the next two lists."""
        self._on_device: list[Any] = []
        self._folded: list[Any] = []
        self._static: Any = None
        """The loss of a pass inside a CUDA graph, which every replay writes anew."""
        self._every, self._num = 1, 0
        replace(guard, torch.autograd, "backward", self._around_backward)

    def began(self, folder: Path) -> None:
        self._folder = folder

    def stepped(self, step: int) -> None:
        pass

    def ended(self) -> None:
        if self._folder is None:
            return
        self._read()
        last = None if self._static is None else attempt(float, self._static)
        record = {
            "ns": self._at_ns,
            "loss": [json_number(value) for value in self._values],
            "last": json_number(last),
        }
        write_json(self._folder / LOSSES_FILE, record)

    def _around_backward(self, original: Any) -> Any:
        is_compiling, clock = compiling_asker(), clocks.perf_counter_ns

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if not is_compiling():
                # What a stranger's tensor raises costs one number, neither the job nor the capture.
                attempt(self._keep, clock(), args[0] if args else kwargs.get("tensors"))
            return original(*args, **kwargs)

        return wrapper

    @without_modes()
    def _keep(self, at_ns: int, roots: Any) -> None:
        self._num += 1
        if self._num % self._every:
            return
        loss = loss_of(self._torch, roots)
        if loss is None or self._is_in_backward():
            return
        if loss.device.type == "cpu":
            value = float(loss)
        elif loss.device.type == "cuda" and self._torch.cuda.is_current_stream_capturing():
            self._static = loss
            return
        else:
            # A copy: the job may write over it, and a compiled graph's memory is the graph's.
            self._on_device.append(loss.to(self._torch.float32, copy=True))
            value = None
            if len(self._on_device) >= FOLD:
                self._fold()
        self._at_ns.append(at_ns)
        self._values.append(value)
        if len(self._values) >= MAX_KEPT:
            self._thin()

    def _fold(self) -> None:
        alone, self._on_device = self._on_device, []
        self._folded.append(self._torch.stack([loss.to(alone[0].device) for loss in alone]))

    def _thin(self) -> None:
        """Once in tens of thousands of passes: it may wait for the device."""
        self._read()
        self._at_ns, self._values = self._at_ns[::2], self._values[::2]
        self._every *= 2

    def _read(self) -> None:
        """Fetches what is on the device."""
        if self._on_device:
            self._fold()
        fetched = iter([value for folded in self._folded for value in folded.tolist()])
        self._folded = []
        self._values = [next(fetched) if value is None else value for value in self._values]
