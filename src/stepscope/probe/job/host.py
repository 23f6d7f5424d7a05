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
FEW, MANY = 4, 16
REPEATS, WARM = 30, 5
CAPTURED = "reduce-overhead"
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

    def captured_entry(self) -> list[float]:
        """A model with one parameter, compiled in `reduce-overhead`, forward and backward."""
        return self._spent(self._step(self._scales(1), compiled=True, mode=CAPTURED))

    def captured_parameter(self) -> list[float]:
        """A parameter more in it."""
        return self._one_more(self._scales, compiled=True, mode=CAPTURED)

    def captured_saved(self) -> list[float]:
        """Four kernels more in it, and a tensor that the forward leaves for the backward."""
        return self._one_more(self._products, compiled=True, mode=CAPTURED)

    def graph_launch(self) -> list[float]:
        """A captured graph of few kernels, launched."""
        return self._spent(self._captured(FEW).replay)

    def graph_kernel(self) -> list[float]:
        """A kernel more in it."""
        few, many = 10 * FEW, 10 * MANY
        first, second = (self._spent(self._captured(num).replay) for num in (few, many))
        return _each_more(first, second, many - few)

    def _captured(self, num: int) -> Any:
        tensor = torch.randn(16, device=self.device)
        tensor.add_(1)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(num):
                tensor.add_(1)
        return graph

    def _one_more(
        self, make: Callable[[int], Any], *, compiled: bool, mode: str | None = None
    ) -> list[float]:
        few, many = (
            self._spent(self._step(make(num), compiled=compiled, mode=mode)) for num in (FEW, MANY)
        )
        return _each_more(few, many, MANY - FEW)

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

    def _step(self, model: Any, *, compiled: bool, mode: str | None = None) -> Run:
        if mode is not None and self.device != "cuda":
            raise UnbuildableError("there are no captured graphs without a GPU")
        given = torch.randn(WIDTH, WIDTH, device=self.device)
        if compiled:
            # What was compiled before it, of the same classes, would be looked at in each call.
            torch.compiler.reset()
        call = torch.compile(model, mode=mode) if compiled else model
        parameters = list(model.parameters())

        def run() -> None:
            call(given).sum().backward()
            for parameter in parameters:
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


def _each_more(few: list[float], many: list[float], num: int) -> list[float]:
    """What each of so many more takes, the quickest beside the quickest."""
    samples = [(b - a) / num for a, b in zip(sorted(few), sorted(many), strict=True)]
    if median(samples) <= 0:
        raise UnbuildableError("the host is too uneven to tell what one more costs")
    return samples


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
