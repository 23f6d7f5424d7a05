"""The loss, now and then, for who watches the run: the number that a backward pass starts from.

A number on the host is read. One on a device is copied to pinned memory behind the device's other
work, and read by a later pass once an event says that it is there: nothing waits for the device.
"""

from __future__ import annotations

import inspect
import math
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from stepscope.capture.describe.peek import attempt, attributes, tensor_methods
from stepscope.capture.guard import Guard, is_ours
from stepscope.capture.hooks.changes import watched_function
from stepscope.capture.hooks.probes import Probe, watch
from stepscope.capture.modes import without_modes
from stepscope.capture.recording.forked import never_let_go

EVERY_NS = 250_000_000
"""Time between two losses: 2 us a look on the host, and some 160 on a device (20 where nothing ran
in between that takes the code out of the caches), are then 0.06 % of the time at most, however
short a step is."""
NEVER = 1 << 62
MAX_KEPT = 256
"""Losses kept until the writer takes them, once a second."""
MAX_FAILURES = 3
"""Looks that may fail before no more are taken: it is the loss that is not measured then, and
nothing else."""


class LossSampler:
    """Asked at the end of each backward pass whose time has come."""

    __slots__ = ("_num_failed", "_pending", "_thread", "due_ns", "event", "pinned", "values")

    def __init__(self) -> None:
        self.due_ns = 0
        self.values: deque[tuple[int, float]] = deque(maxlen=MAX_KEPT)
        """When its pass ended, and the loss."""
        self._num_failed = 0
        self.begin_anew()

    def begin_anew(self) -> None:
        """Begin anew, in a forked child too, where nothing of the parent's device may be
        touched."""
        self.values.clear()
        self.pinned: Any = None
        self.event: Any = None
        self._pending: tuple[int, Any] | None = None
        self._thread = 0

    def off(self) -> None:
        self.due_ns = NEVER

    def take(self, roots: Any, now: int) -> None:
        """Never raises: a stranger's tensor may do anything."""
        self.due_ns = now + EVERY_NS
        try:
            self._take(roots, now)
        except Exception as error:
            # Part of the boundary: only the loss is given up for it.
            if not is_ours(error):
                raise
            self._num_failed += 1
            if self._num_failed >= MAX_FAILURES:
                self.off()

    def taken(self) -> list[list[Any]]:
        """What was read since the last call, as JSON has it; in the writer's thread."""
        values = [self.values.popleft() for _ in range(len(self.values))]
        return [[at_ns, json_number(float(f"{value:.7g}"))] for at_ns, value in values]

    @without_modes()
    def _take(self, roots: Any, now: int) -> None:
        torch = sys.modules["torch"]
        loss = loss_of(torch, roots)
        # One thread's alone: a second model that another thread trains has another loss.
        self._thread = self._thread or threading.get_ident()
        if loss is None or self._thread != threading.get_ident():
            return
        if loss.device.type == "cpu":
            self.values.append((now, float(tensor_methods(torch).item(loss))))
        elif loss.device.type == "cuda" and not torch.cuda.is_current_stream_capturing():
            self._copy(torch, loss, now)

    def _copy(self, torch: Any, loss: Any, now: int) -> None:
        if self._pending is not None:
            at_ns, device = self._pending
            if not self.event.query():
                return
            self.values.append((at_ns, float(self.pinned)))
            self._pending = None
            if device != loss.device:
                self.event = None
        if self.pinned is None:
            self.pinned = torch.empty((), dtype=torch.float32, device="cpu", pin_memory=True)
            never_let_go(self.pinned)
        if self.event is None:
            self.event = torch.cuda.Event()
            never_let_go(self.event)
        self.pinned.copy_(loss, non_blocking=True)
        self.event.record(torch.cuda.current_stream(loss.device))
        self._pending = now, loss.device


_unscaled: dict[int, tuple[Any, Any]] = {}
"""Losses by the identity of a scaled loss that is alive: a weak reference to it, and the loss
before."""


def loss_of(torch: Any, roots: Any) -> Any:
    """The loss that a backward pass starts from: its root, where that is one number; before a
    GradScaler's scale. Of a sharded tensor, this rank's part: no collective is started for it."""
    several = (roots,) if isinstance(roots, torch.Tensor) else roots or ()
    root = next(iter(several), None)
    if root is None:
        return None
    return one_number(torch, _before_scale(root))


def one_number(torch: Any, tensor: Any) -> Any:
    """A tensor's one number, detached; None where it has more, or where an operator on it would
    run code of the job's: a class may see every one that is called on its tensors."""
    local = attributes(tensor).get("_local_tensor")
    plain = tensor if local is None else local
    kind = type(plain)
    if not issubclass(kind, torch.Tensor) or is_watching(torch, kind):
        return None
    methods = tensor_methods(torch)
    if methods.numel(plain) != 1:
        return None
    return methods.reshape(methods.detach(plain), ())


def is_watching(torch: Any, kind: type) -> bool:
    """Whether a class of tensors sees the operators that are called on them."""
    inert = torch._C._disabled_torch_dispatch_impl  # noqa: SLF001
    seen = inspect.getattr_static(kind, "__torch_dispatch__", inert)
    return getattr(seen, "__func__", seen) is not inert


def remember_unscaled(guard: Guard, is_wanted: Callable[[], bool] = lambda: True) -> None:
    """A GradScaler's scaled loss remembers what it was before.

    Its scale changes from step to step, and the loss does not.
    """

    def enter(_: Any, outputs: Any = None, *__: Any) -> Any:
        return outputs if is_wanted() else None

    def leave(outputs: Any, scaled: Any) -> None:
        if outputs is not None and scaled is not None and scaled is not outputs:
            attempt(_remember, scaled, outputs)

    scale = watched_function("torch.amp.grad_scaler.GradScaler.scale")
    watch(guard, scale, Probe(enter, leave))


def _before_scale(root: Any) -> Any:
    kept = _unscaled.get(id(root))
    return kept[1] if kept is not None and kept[0]() is root else root


@without_modes()
def _remember(scaled: Any, outputs: Any) -> None:
    """Beside the tensor, not on it: its attributes are saved and copied with it."""
    torch = sys.modules["torch"]
    name, loss = id(scaled), one_number(torch, outputs)
    if loss is None:
        return
    _unscaled[name] = weakref.ref(scaled, lambda _: _unscaled.pop(name, None)), loss


def json_number(value: float | None) -> float | str | None:
    """A number for JSON, which has neither NaN nor infinity: those become text."""
    return value if value is None or math.isfinite(value) else str(value)
