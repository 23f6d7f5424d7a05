"""A training job whose every habit is a setting: a change replaces some of them."""

from __future__ import annotations

import gc
import itertools
import os
import random
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from lab.loops.data import ahead, to_device
from lab.measure import BIG, DEV, Run

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a job runs. `workers` None: batches wait on the device or, with `source`, on the host."""

    batch: int
    precision: str = "bf16"  # fp32, tf32, bf16 or fp16 autocast; weights: kept in bf16 themselves
    compile: str | None = None
    optimizer: str = "adamw"
    update: str = "fused"  # fused, foreach, loop
    channels_last: bool = False
    cudnn_benchmark: bool = False
    attention: str = "sdpa"
    recompute: bool = False
    accumulate: int = 1
    source: str = "device"  # device, pinned, pageable; ahead: pinned, copied a step before use
    workers: int | None = None
    transform_units: int = 0
    read_ms: float = 0.0
    clip: str | None = None  # loop: a norm read on the host per parameter; fused: one call
    anomaly: bool = False
    read_loss: bool = False
    read_weights: int = 0
    empty_cache: bool = False
    heap: int = 0  # collects each step over this many live objects
    python_ms: float = 0.0
    small_copies: int = 0  # lists of numbers sent to the device one by one
    sent_together: bool = False
    save_every: int = 0
    variant: str = ""  # a model's own switch

    def said(self) -> dict[str, Any]:
        """As the board says them."""
        return {key: value for key, value in asdict(self).items() if value}


@dataclass(frozen=True, kw_only=True)
class TimedJob(ABC):
    """What the timing asks of a job.

    `changes` maps a code of the rules (CODE#WAY for a second way) to the settings it replaces;
    `samples` of a change says how many times the base's samples its step takes.
    """

    base: Settings
    changes: Mapping[str, Mapping[str, Any]]
    samples: Mapping[str, int] | None = None
    stacks: bool = False  # record Python's calls, too

    @abstractmethod
    def changed(self, code: str) -> Settings: ...

    @abstractmethod
    def build(self, settings: Settings) -> Run: ...


@dataclass(frozen=True, kw_only=True)
class Job(TimedJob):
    model: Callable[[Settings], nn.Module]
    inputs: Callable[[int], tuple[Tensor, ...]]
    loss: Callable[[Callable[..., Any], tuple[Tensor, ...]], Tensor]

    def changed(self, code: str) -> Settings:
        return replace(self.base, **self.changes[code])

    def build(self, settings: Settings) -> Run:
        return build(self, settings)


class Made(Dataset[tuple[Tensor, ...]]):
    """Samples made on the host: units of transform, milliseconds of slow storage."""

    def __init__(self, job: Job, settings: Settings) -> None:
        self.job, self.settings = job, settings

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, i: int) -> tuple[Tensor, ...]:
        torch.set_num_threads(1)
        for _ in range(self.settings.transform_units):
            torch.randn(128, 128).cumsum(0).sort(1)
        if self.settings.read_ms:
            time.sleep(self.settings.read_ms / 1e3)
        return tuple(part[0] for part in self.job.inputs(1))


def batches(job: Job, settings: Settings) -> Iterator[Any]:
    if settings.workers is not None:
        loader = DataLoader(
            Made(job, settings),
            batch_size=settings.batch,
            num_workers=settings.workers,
            pin_memory=BIG,
            persistent_workers=settings.workers > 0,
            multiprocessing_context="fork" if settings.workers else None,
        )
        return itertools.chain.from_iterable(itertools.repeat(loader))
    pool = [job.inputs(settings.batch) for _ in range(4)]
    if settings.source == "device":
        return itertools.cycle([tuple(to_device(batch)) for batch in pool])
    if settings.source in {"pinned", "ahead"} and BIG:
        pool = [tuple(part.pin_memory() for part in batch) for batch in pool]
    if settings.source == "ahead":
        return ahead(itertools.cycle(pool))
    return itertools.cycle(pool)


def optimizer_of(params: list[nn.Parameter], settings: Settings) -> torch.optim.Optimizer:
    ways = {
        "fused": {"fused": BIG},
        "foreach": {"foreach": True},
        "loop": {"foreach": False, "fused": False},
    }
    way: dict[str, Any] = ways[settings.update]
    if settings.optimizer == "sgd":
        return torch.optim.SGD(params, lr=1e-4, momentum=0.9, **way)
    return torch.optim.AdamW(params, lr=1e-5, **way)


class Masters:
    """An optimizer over fp32 copies of 16-bit weights."""

    def __init__(self, params: list[nn.Parameter], settings: Settings) -> None:
        self.params = params
        self.copies = [nn.Parameter(param.detach().float()) for param in params]
        self.optimizer = optimizer_of(self.copies, settings)

    def step(self) -> None:
        used = [
            (param, copy)
            for param, copy in zip(self.params, self.copies, strict=True)
            if param.grad is not None
        ]
        for param, copy in used:
            assert param.grad is not None
            copy.grad = torch.empty_like(copy)
        torch._foreach_copy_([c.grad for _, c in used], [p.grad for p, _ in used])
        self.optimizer.step()
        with torch.no_grad():
            torch._foreach_copy_([p for p, _ in used], [c for _, c in used])

    def zero_grad(self) -> None:
        for param in self.params:
            param.grad = None


def build(job: Job, settings: Settings) -> Run:
    torch.manual_seed(0)
    random.seed(0)
    model = job.model(settings).to(DEV).train()
    in_16_bits = settings.precision == "weights"
    if in_16_bits:
        model = model.to(torch.bfloat16)
    if settings.channels_last:
        model = model.to(memory_format=torch.channels_last)
    forward: Callable[..., Any] = model
    if settings.compile:
        forward = torch.compile(model, mode=settings.compile)
    params = [param for param in model.parameters() if param.requires_grad]
    optimizer: Any = Masters(params, settings) if in_16_bits else optimizer_of(params, settings)
    scaler = torch.amp.GradScaler(DEV, enabled=settings.precision == "fp16")
    source = batches(job, settings)
    after = _habits(settings, model, params)

    def step() -> None:
        for _ in range(settings.accumulate):
            batch = tuple(to_device(next(source)))
            if settings.channels_last:
                batch = tuple(_last(part) for part in batch)
            if in_16_bits:
                batch = tuple(_halved(part) for part in batch)
            with torch.autograd.set_detect_anomaly(settings.anomaly):
                dtype = DTYPES.get(settings.precision)
                with torch.autocast(DEV, dtype or torch.bfloat16, enabled=dtype is not None):
                    loss = job.loss(forward, batch) / settings.accumulate
                scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            if settings.read_loss:
                loss.item()
        if settings.clip == "fused":
            nn.utils.clip_grad_norm_(params, 1e6, foreach=True)
        elif settings.clip == "loop":
            for param in params:
                if param.grad is not None and param.grad.norm().item() > 1e6:
                    param.grad.mul_(0.5)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        for habit in after:
            habit()

    return Run(
        step=step,
        matmul="high" if settings.precision == "tf32" else "highest",
        cudnn_tf32=settings.precision == "tf32",
        cudnn_benchmark=settings.cudnn_benchmark,
    )


def _last(part: Tensor) -> Tensor:
    return part.to(memory_format=torch.channels_last) if part.dim() == 4 else part


def _halved(part: Tensor) -> Tensor:
    return part.bfloat16() if part.is_floating_point() else part


def _habits(
    settings: Settings, model: nn.Module, params: list[nn.Parameter]
) -> list[Callable[[], object]]:
    """What the loop does after each step."""
    habits: list[Callable[[], object]] = []
    if settings.read_weights:
        watched = params[: settings.read_weights]
        habits.append(lambda: [float(param.detach().abs().mean()) for param in watched])
    if settings.empty_cache and BIG:
        habits.append(torch.cuda.empty_cache)
    if settings.heap:
        objects = [{"path": str(i), "box": [i]} for i in range(settings.heap)]
        habits.append(lambda: (gc.collect(), len(objects)))
    if settings.python_ms:
        habits.append(lambda: _spin(settings.python_ms))
    if settings.small_copies:
        lists = [[random.random() for _ in range(8)] for _ in range(settings.small_copies)]  # noqa: S311
        habits.append(lambda: _send(lists, together=settings.sent_together))
    if settings.save_every:
        path = os.path.join(tempfile.mkdtemp(), "weights.pt")
        turns = itertools.count(1)
        habits.append(
            lambda: (
                torch.save(model.state_dict(), path)
                if next(turns) % settings.save_every == 0
                else None
            )
        )
    return habits


def _send(lists: list[list[float]], *, together: bool) -> list[Tensor]:
    if together:
        return list(torch.tensor(lists).to(DEV).unbind(0))
    return [torch.tensor(values, device=DEV) for values in lists]


def _spin(ms: float) -> None:
    end = time.perf_counter() + ms / 1e3
    while time.perf_counter() < end:
        sum(range(200))


def compiled(job: TimedJob) -> dict[str, Settings]:
    """Those of the job's settings that compile something, by the change's code or "base"."""
    each = {"base": job.base, **{code: job.changed(code) for code in job.changes}}
    return {
        code: settings
        for code, settings in each.items()
        if settings.compile or settings.variant == "compiled"
    }
