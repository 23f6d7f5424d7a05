"""What this host takes for what a replay prices: launches, captured graphs, compiled regions,
parameters.

Small models are run forward and backward, so narrow that the device is never what is waited for.
What one more of a thing costs is the difference between a model with many of it and one with few.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from stepscope.probe.job.tensors import UnbuildableError

WIDTH = 64
FEW, MANY = 4, 20
REPEATS, WARM = 30, 5
Run = Callable[[], object]


class Host:
    """One device, and the host that launches on it."""

    def __init__(self, device: str) -> None:
        self.torch, self.device = torch, device

    def time(self, name: str) -> list[float]:
        """Seconds of what the case names, a sample each."""
        samples: list[float] = getattr(self, name.replace("-", "_"))()
        return samples

    def eager_layer(self) -> list[float]:
        """A product, a gelu and a layer norm of modules, forward and backward."""
        return self._one_more(self._layers, compiled=False)

    def eager_entry(self) -> list[float]:
        """The model with few of them."""
        return self._spent(self._step(self._layers(FEW), compiled=False))

    def compiled_layer(self) -> list[float]:
        """The same layer, compiled."""
        return self._one_more(self._layers, compiled=True)

    def compiled_entry(self) -> list[float]:
        """A compiled model with one parameter, forward and backward."""
        return self._spent(self._step(self._scales(1), compiled=True))

    def compiled_parameter(self) -> list[float]:
        """A parameter more in a compiled model whose kernels stay as many."""
        return self._one_more(self._scales, compiled=True)

    def compiled_launches(self) -> list[float]:
        """Four launches more in a compiled model whose parameters stay as many: a product and what
        the compiler wrote, forward and backward."""
        return self._one_more(self._products, compiled=True)

    def graph_launch(self) -> list[float]:
        """A captured graph of few kernels, launched."""
        return self._spent(self._captured(FEW).replay)

    def graph_kernel(self) -> list[float]:
        """A kernel more in it."""
        few, many = 10 * FEW, 10 * MANY
        return self._difference(self._captured(few).replay, self._captured(many).replay, many - few)

    def _captured(self, num: int) -> Any:
        tensor = torch.randn(16, device=self.device)
        tensor.add_(1)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(num):
                tensor.add_(1)
        return graph

    def _one_more(self, make: Callable[[int], Any], *, compiled: bool) -> list[float]:
        few, many = (self._step(make(num), compiled=compiled) for num in (FEW, MANY))
        return self._difference(few, many, MANY - FEW)

    def _difference(self, few: Run, many: Run, num: int) -> list[float]:
        """Of the two in turns, so that what else the host does is in both."""
        first, second = self._spent(few), self._spent(many)
        samples = [(b - a) / num for a, b in zip(sorted(first), sorted(second), strict=True)]
        if median(samples) <= 0:
            raise UnbuildableError("the host is too uneven to tell what one more costs")
        return samples

    def _spent(self, run: Run) -> list[float]:
        samples = []
        for _ in range(WARM):
            run()
        for _ in range(REPEATS):
            self._settle()
            begun = time.perf_counter()
            run()
            samples.append(time.perf_counter() - begun)
        self._settle()
        return samples

    def _settle(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def _step(self, model: Any, *, compiled: bool) -> Run:
        given = torch.randn(WIDTH, WIDTH, device=self.device)
        call = torch.compile(model) if compiled else model

        def run() -> None:
            call(given).sum().backward()
            for parameter in model.parameters():
                parameter.grad = None

        return run

    def _layers(self, num: int) -> Any:
        parts = []
        for _ in range(num):
            parts += [nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.LayerNorm(WIDTH)]
        return nn.Sequential(*parts).to(self.device)

    def _scales(self, num: int) -> Any:
        return Scales(num).to(self.device)

    def _products(self, num: int) -> Any:
        return Products(num).to(self.device)


class Scales(nn.Module):
    """Multiplications by a parameter each, which fuse."""

    def __init__(self, num: int) -> None:
        super().__init__()
        self.all = nn.ParameterList([nn.Parameter(torch.ones(WIDTH, WIDTH)) for _ in range(num)])

    def forward(self, x: Tensor) -> Tensor:
        for each in self.all:
            x = x * each
        return x


class Products(nn.Module):
    """Products with a matrix that is not trained, and a function after each."""

    def __init__(self, num: int) -> None:
        super().__init__()
        self.num, self.first = num, nn.Parameter(torch.eye(WIDTH))
        self.other = nn.Parameter(torch.eye(WIDTH), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.first
        for _ in range(self.num):
            x = torch.tanh(x @ self.other)
        return x


def time_case(device: str, name: str) -> dict[str, Any]:
    """The host's time for what the case names, in nanoseconds."""
    ordered = sorted(Host(device).time(name))
    last = len(ordered) - 1
    return {
        "ns": median(ordered) * 1e9,
        "low_ns": ordered[round(0.1 * last)] * 1e9,
        "high_ns": ordered[round(0.9 * last)] * 1e9,
        "samples": len(ordered),
    }
