"""What each step computed, on the first rank: its loss, the norm of its gradients, and now and then
a digest of the parameters.

Numbers stay on the device until a digest is due, so that a step waits for it once in ten.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import math
import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from stepscope.capture.describe.peek import attempt
from stepscope.capture.describe.rank import rank_numbers
from stepscope.capture.guard import Guard
from stepscope.capture.losses import json_number, loss_of
from stepscope.capture.modes import without_modes
from stepscope.capture.recording.window import backward_asker
from stepscope.capture.trial.patches import compiling_asker, replace
from stepscope.protocol.json_text import json_text
from stepscope.protocol.run_folder import NUMERICS_FILE

EVERY = 10
"""Steps from one digest to the next."""
MAX_OPTIMIZERS = 64


class Numerics:
    """Listens to backward passes and optimizers, and writes a line for each step."""

    def __init__(self, guard: Guard, torch: Any) -> None:
        self._torch = torch
        self._folder: Path | None = None
        self._is_on = True
        self._is_in_backward = backward_asker(torch)
        self._losses: list[Any] = []
        self._norms: list[Any] = []
        self._optimizers: dict[int, weakref.ref[Any]] = {}
        self._waiting: list[tuple[int, Any, Any]] = []
        """Rows whose numbers are still on the device: the step, losses and norms."""
        replace(guard, torch.autograd, "backward", self._around_backward(guard))
        replace(guard, torch, "compile", _drawing_alike)
        handle = sys.modules["torch.optim.optimizer"].register_optimizer_step_pre_hook(
            guard.watch(self._before_step)
        )
        guard.at_end(handle.remove)

    def began(self, folder: Path) -> None:
        self._folder = folder
        self._is_on = rank_numbers(self._torch)["rank"] == 0

    def stepped(self, step: int) -> None:
        if not self._is_on:
            return
        self._waiting.append((step, self._losses, self._norms))
        self._losses, self._norms = [], []
        if step % EVERY == 0:
            self._write()

    def ended(self) -> None:
        if self._is_on:
            self._write()

    def _around_backward(self, guard: Guard) -> Callable[[Any], Any]:
        is_compiling, keep = compiling_asker(), guard.watch(self._keep_loss)

        def make(original: Any) -> Any:
            @functools.wraps(original)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                if not is_compiling():
                    keep(args[0] if args else kwargs.get("tensors"))
                return original(*args, **kwargs)

            return wrapper

        return make

    @without_modes()
    def _keep_loss(self, roots: Any) -> None:
        """The root of a pass is the loss, where it is one number.

        A pass inside another is a recomputed part's own.
        """
        if not self._is_on or self._is_in_backward():
            return
        loss = loss_of(self._torch, roots)
        if loss is not None:
            self._losses.append(loss.double().clone())

    @without_modes()
    def _before_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if not self._is_on:
            return
        if id(optimizer) not in self._optimizers and len(self._optimizers) < MAX_OPTIMIZERS:
            self._optimizers[id(optimizer)] = weakref.ref(optimizer)
        grads = [
            param.grad
            for group in optimizer.param_groups
            for param in group["params"]
            if param.grad is not None
        ]
        norm = attempt(total_norm, self._torch, grads)
        if norm is not None:
            self._norms.append(norm)

    @without_modes()
    def _write(self) -> None:
        if self._folder is None or not self._waiting:
            return
        params = self._params()
        last = self._waiting[-1][0]
        lines = []
        for step, losses, norms in self._waiting:
            loss = json_number(_mean([float(loss) for loss in losses]))
            grad_norm = json_number(_norm([float(norm) for norm in norms]))
            params_digest = params_norm = None
            if step == last and params:
                params_digest = attempt(digest, self._torch, params)
                params_norm = json_number(attempt(lambda: float(total_norm(self._torch, params))))
            lines.append(json_text((step, loss, grad_norm, params_digest, params_norm)))
        self._waiting = []
        with (self._folder / NUMERICS_FILE).open("a", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")

    def _params(self) -> list[Any]:
        optimizers = [
            optimizer for ref in self._optimizers.values() if (optimizer := ref()) is not None
        ]
        return [
            param.detach()
            for optimizer in optimizers
            for group in optimizer.param_groups
            for param in group["params"]
        ]


def _drawing_alike(original: Any) -> Any:
    """torch.compile, set to draw random numbers as uncompiled code does.

    With others, dropout alone makes every loss differ.
    """

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with suppress(Exception):
            config: Any = importlib.import_module("torch._inductor.config")
            config.fallback_random = True
        return original(*args, **kwargs)

    return wrapper


def total_norm(torch: Any, tensors: list[Any]) -> Any:
    """The norm of all of them together, as float64; None where there are none.

    Of a sharded tensor, this rank's part.
    """
    local = [_local(tensor) for tensor in tensors]
    by_kind: dict[Any, list[Any]] = {}
    for tensor in local:
        by_kind.setdefault((tensor.device, tensor.dtype), []).append(
            tensor.coalesce().values() if tensor.is_sparse else tensor
        )
    parts = [
        norm
        for group in by_kind.values()
        for norm in torch._foreach_norm(_wide(torch, group))  # noqa: SLF001
    ]
    if not parts:
        return None
    device = parts[0].device
    return torch.linalg.vector_norm(torch.stack([part.to(device).double() for part in parts]))


def _wide(torch: Any, group: list[Any]) -> list[Any]:
    if group[0].dtype in (torch.float16, torch.bfloat16):
        return [tensor.float() for tensor in group]
    return group


def digest(torch: Any, tensors: list[Any]) -> str:
    """Digest of every bit of every tensor, in order: two sums of each one's bit patterns. One is
    not linear, so that differences do not cancel."""
    kinds = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    sums: dict[Any, list[Any]] = {}
    shapes = []
    for tensor in tensors:
        local = _local(tensor).contiguous()
        bits = (torch.view_as_real(local) if local.is_complex() else local).view(-1)
        bits = bits.view(kinds[bits.element_size()])
        shapes.append((tuple(local.shape), str(local.dtype)))
        mixed = bits * (bits | 1)
        sums.setdefault(local.device, []).extend(
            (bits.sum(dtype=torch.int64), mixed.sum(dtype=torch.int64))
        )
    totals = [torch.stack(device_sums).cpu().tolist() for device_sums in sums.values()]
    return hashlib.sha256(repr((shapes, totals)).encode()).hexdigest()[:16]


def _local(tensor: Any) -> Any:
    local = getattr(tensor, "_local_tensor", None)
    return tensor if local is None else local


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _norm(values: list[float]) -> float | None:
    return math.hypot(*values) if values else None
