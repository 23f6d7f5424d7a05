"""The training loop that the capture's benchmark times, and the hooks of a tool put in and taken
out between its blocks."""

from __future__ import annotations

import gc
import importlib
import itertools
import statistics
import sys
import threading
import time
import types
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

BLOCK_STEPS, SETTLE_STEPS = 12, 3
LONG_BLOCK_STEPS, LONG_SETTLE_STEPS = 20, 4
"""Steps of a block, and those before it that are not timed. The long ones are for TraceML, which
changes classes in use."""
ABSENT = object()
WHEN_MADE = ("profile_hook_step", "__iter__", "__next__")
"""Needed while a tool's optimizer and its pass over the loader are made, which then have them in
classes of their own: to change a class makes Python forget what it knows of it, and the steps after
that are slower."""

torch: Any = importlib.import_module("torch")

AroundStep = Callable[[Any], AbstractContextManager[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A loop whose step takes as long as wanted."""

    name: str
    step_ms: float
    width: int
    depth: int
    batch: int
    device: str = "cpu"
    grows: str = "batch"
    """What is made larger until a step takes as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A few steps, each figure for one of them."""

    thread_us: float
    every_us: float
    wall_us: float
    device_us: float | None


class Hooks:
    """The functions of torch that a tool has replaced, and the codes of those that it has changed,
    to be put in and taken out at will."""

    def __init__(self) -> None:
        self._before = _functions()
        self._changed: list[tuple[Any, str, Any, Any]] = []
        self._codes = _codes()
        self._coded: list[tuple[Any, Any, Any]] = []
        self._lists_out = self._lists_in = [held.copy() for held in _lists()]

    def learn(self) -> None:
        """The tool is in now."""
        before, after = self._before, _functions()
        changed = [
            key for key in before.keys() | after.keys() if before.get(key) is not after.get(key)
        ]
        self._changed = [(*key, before.get(key, ABSENT), after.get(key, ABSENT)) for key in changed]
        self._coded = [
            (function, before, function.__code__)
            for function, before in self._codes.items()
            if function.__code__ is not before
        ]
        self._lists_in = [held.copy() for held in _lists()]

    def put_in(self, *, to_make: bool = False) -> None:
        """`to_make` an optimizer and a pass over the loader, too."""
        for owner, name, _, now in self._changed:
            if to_make or name not in WHEN_MADE:
                _set(owner, name, now)
        for function, _, code in self._coded:
            if to_make or function.__name__ != "profile_hook_step":
                function.__code__ = code
        _fill(self._lists_in)

    def take_out(self, *, to_make: bool = False) -> None:
        for owner, name, was, _ in self._changed:
            if to_make or name not in WHEN_MADE:
                _set(owner, name, was)
        for function, code, _ in self._coded:
            if to_make or function.__name__ != "profile_hook_step":
                function.__code__ = code
        _fill(self._lists_out)


def _owners() -> tuple[Any, ...]:
    data = torch.utils.data
    iterator = data.dataloader._BaseDataLoaderIter  # noqa: SLF001 - hooked by the capture
    return (
        data.DataLoader,
        iterator,
        torch.nn.Module,
        torch.Tensor,
        torch.autograd,
        torch.optim.Optimizer,
    )


def _lists() -> tuple[Any, ...]:
    held = vars(sys.modules["torch.optim.optimizer"])
    return (gc.callbacks, held["_global_optimizer_pre_hooks"], held["_global_optimizer_post_hooks"])


def _functions() -> dict[tuple[Any, str], Any]:
    return {
        (owner, name): value
        for owner in _owners()
        for name, value in vars(owner).items()
        if name != "__dict__"
    }


def _codes() -> dict[Any, Any]:
    held = (getattr(value, "__func__", value) for value in _functions().values())
    return {each: each.__code__ for each in held if isinstance(each, types.FunctionType)}


def _set(owner: Any, name: str, value: Any) -> None:
    if value is ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, value)


def _fill(wanted: list[Any]) -> None:
    for held, what in zip(_lists(), wanted, strict=True):
        held.clear()
        (held.update if isinstance(held, dict) else held.extend)(what)


@dataclass(kw_only=True)
class Tool:
    """One way to run the loop."""

    name: str
    hooks: Hooks
    around_step: AroundStep | None = None
    threads: tuple[threading.Thread, ...] = ()

    def threads_ns(self) -> int:
        alive = [
            thread.ident
            for thread in self.threads
            if thread.is_alive() and thread.ident is not None
        ]
        return sum(time.clock_gettime_ns(time.pthread_getcpuclockid(ident)) for ident in alive)


class Batches:
    """The same batch for ever."""

    def __init__(self, *batch: Any) -> None:
        self._batch = batch

    def __len__(self) -> int:
        return 10**12

    def __getitem__(self, _: int) -> Any:
        return self._batch


class Loop:
    """The training loop of a case. Each tool has a pass over the loader and an optimizer, both made
    while its hooks are in."""

    def __init__(self, case: Case) -> None:
        self.case, self.batch, self.depth = case, case.batch, case.depth
        self._own: dict[str, tuple[Any, Iterator[Any]]] = {}
        self._build()

    def _build(self) -> None:
        width, device = self.case.width, self.case.device
        layers = [
            layer
            for _ in range(self.depth)
            for layer in (torch.nn.Linear(width, width), torch.nn.ReLU())
        ]
        self.model = torch.nn.Sequential(*layers, torch.nn.Linear(width, 8)).to(device)
        batches = Batches(torch.randn(self.batch, width), torch.zeros(self.batch, dtype=torch.long))
        self.loader = torch.utils.data.DataLoader(batches, batch_size=None)
        self._own.clear()
        self._state: Any = defaultdict(dict)

    def fit(self, tool: Tool) -> None:
        """Makes the loop as large as takes the wanted time."""
        for _ in range(5):
            self.block(tool)
            ratio = (
                self.case.step_ms
                * 1e3
                / statistics.median(
                    block.device_us or block.thread_us
                    for block in (self.block(tool) for _ in range(3))
                )
            )
            if self.case.grows == "batch":
                self.batch = max(1, round(self.batch * ratio))
            else:
                self.depth = max(1, round(self.depth * ratio))
            self._build()

    def block(self, tool: Tool, *, is_long: bool = True) -> Block:
        """A few steps, after some that are not timed."""
        if tool.name not in self._own:
            self._own[tool.name] = self._optimizer(), self._batches()
        optimizer, batches = self._own[tool.name]
        steps, settle_steps = (
            (LONG_BLOCK_STEPS, LONG_SETTLE_STEPS) if is_long else (BLOCK_STEPS, SETTLE_STEPS)
        )
        self._steps(settle_steps, optimizer, batches, tool.around_step)
        is_cuda = self.case.device == "cuda"
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if is_cuda else []
        if is_cuda:
            torch.cuda.synchronize()
            events[0].record()
        wall = time.perf_counter_ns()
        thread_ns = self._steps(steps, optimizer, batches, tool.around_step)
        if is_cuda:
            events[1].record()
            torch.cuda.synchronize()
        wall = time.perf_counter_ns() - wall
        device_us = events[0].elapsed_time(events[1]) * 1e3 / steps if is_cuda else None
        every_us = statistics.fmean(thread_ns) / 1e3
        return Block(
            thread_us=middle_half(thread_ns) / 1e3,
            every_us=every_us,
            wall_us=wall / 1e3 / steps,
            device_us=device_us,
        )

    def _optimizer(self) -> Any:
        # A class of its own, made out of the step as torch has it: whoever hooks optimizers now
        # hooks this one alone.
        sgd = torch.optim.SGD
        made = type("SGD", (sgd,), {"step": vars(sgd)["step"]})(
            self.model.parameters(), lr=1e-6, momentum=0.9
        )
        # One state for all: where a tensor lies in memory makes a difference, too.
        made.state = self._state
        return made

    def _batches(self) -> Iterator[Any]:
        made: Any = iter(self.loader)
        if isinstance(made, torch.utils.data.dataloader._BaseDataLoaderIter):  # noqa: SLF001 - hooked by the capture
            made.__class__ = type("Own", (type(made),), {"__next__": type(made).__next__})
        batches: Iterator[Any] = made
        return batches

    def _steps(
        self, num: int, optimizer: Any, batches: Iterator[Any], around_step: AroundStep | None
    ) -> list[int]:
        """CPU time of each step."""
        model, device, loss_of = self.model, self.case.device, torch.nn.functional.cross_entropy
        ends = [time.thread_time_ns()]
        for x, y in itertools.islice(batches, num):
            with nullcontext() if around_step is None else around_step(model):
                optimizer.zero_grad(set_to_none=True)
                loss = loss_of(
                    model(x.to(device, non_blocking=True)), y.to(device, non_blocking=True)
                )
                loss.backward()
                optimizer.step()
            ends.append(time.thread_time_ns())
        return [end - begun for begun, end in itertools.pairwise(ends)]


def middle_half(values: list[int]) -> float:
    """The mean of the middle half: a step during which somebody else had the caches says
    nothing."""
    quarter = len(values) // 4
    return statistics.fmean(sorted(values)[quarter : len(values) - quarter])
