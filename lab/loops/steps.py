"""What a step does: forward, backward, update, and what a run does after it."""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from lab.loops.data import Batches
from lab.measure import BIG, DEV


def train(
    forward: Callable[[Any], Tensor],
    batches: Batches,
    opt: torch.optim.Optimizer,
    *,
    amp: bool = True,
    keep_casts: bool = True,
    accum: int = 1,
    after: Iterable[Callable[[Tensor], object]] = (),
) -> Callable[[], None]:
    """One optimizer step over `accum` micro-batches, then whatever the run does `after` each
    step."""
    hooks = tuple(after)

    def step() -> None:
        for _ in range(accum):
            batch = next(batches)
            with torch.autocast(DEV, torch.bfloat16, enabled=amp, cache_enabled=keep_casts):
                loss = forward(batch)
            (loss / accum if accum > 1 else loss).backward()  # type: ignore[no-untyped-call]
        opt.step()
        opt.zero_grad(set_to_none=True)
        for hook in hooks:
            hook(loss.detach())

    return step


def adamw(model: nn.Module, **kw: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-4, **(kw or {"fused": True}))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)


def read_loss(loss: Tensor) -> object:
    return loss.item()


def give_back_cache(_: Tensor) -> object:
    return torch.cuda.empty_cache() if BIG else None


def saver(state: Callable[[], Any]) -> Callable[[Tensor], object]:
    path = os.path.join(tempfile.mkdtemp(), "weights.pt")
    return lambda _: torch.save(state(), path)


def collector(num_objects: int) -> Callable[[Tensor], object]:
    """gc.collect() each step in a process that holds a large index of small Python objects."""
    index = [{"path": f"{i}.jpg", "label": [i]} for i in range(num_objects)]
    return lambda _: (gc.collect(), len(index))


def captured(step: Callable[[], None]) -> Callable[[], None]:
    """The whole step as one CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay
