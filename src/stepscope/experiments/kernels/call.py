"""One call of a kernel: its outputs, what it did to its inputs, and its gradients, with names for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stepscope.experiments.kernels.target import Inputs
from stepscope.experiments.kernels.ways import Built


@dataclass(frozen=True, slots=True, kw_only=True)
class Called:
    """What one call gave."""

    outputs: dict[str, Any]
    inputs: dict[str, Any]
    """The tensors that went in, as they are afterwards."""
    gradients: dict[str, Any]
    is_differentiable: bool


def leaves(torch: Any, value: Any) -> list[Any]:
    """The tensors in whatever a function returns."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, Mapping):
        return [leaf for one in value.values() for leaf in leaves(torch, one)]
    if isinstance(value, list | tuple):
        return [leaf for one in value for leaf in leaves(torch, one)]
    return []


def named_tensors(torch: Any, inputs: Inputs, names: tuple[str, ...]) -> dict[str, Any]:
    """The tensors among a call's inputs, by their parameters' names."""
    found: dict[str, Any] = {}
    for at, value in enumerate(inputs[0]):
        name = names[at] if at < len(names) else f"input {at}"
        parts = leaves(torch, value)
        found |= {name if len(parts) == 1 else f"{name}[{index}]": part for index, part in enumerate(parts)}
    return found | {name: value for name, value in inputs[1].items() if isinstance(value, torch.Tensor)}


def fresh(torch: Any, inputs: Inputs, *, dtype: Any = None, with_gradients: bool = False) -> Inputs:
    """Copies, so that a kernel that writes to its inputs spoils only them."""

    def copied(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            value = value.detach().clone()
            if value.is_floating_point():
                value = value if dtype is None else value.to(dtype)
                return value.requires_grad_(with_gradients)
            return value
        if isinstance(value, tuple):
            return tuple(copied(one) for one in value)
        return [copied(one) for one in value] if isinstance(value, list) else value

    return tuple(copied(value) for value in inputs[0]), {name: copied(value) for name, value in inputs[1].items()}


def call_once(torch: Any, built: Built, inputs: Inputs, names: tuple[str, ...], *, gradients: bool, seed: int) -> Called:
    """Runs it, and backward where its outputs carry gradients and they are wanted. `inputs` are the call's own to keep."""
    with torch.set_grad_enabled(gradients):
        returned = leaves(torch, built.kernel(*inputs[0], **inputs[1]))
    tensors = named_tensors(torch, inputs, names)
    outputs = {f"output {at}" if len(returned) > 1 else "output": one for at, one in enumerate(returned)}
    ends = [one for one in returned if one.requires_grad and one.is_floating_point()]
    found: dict[str, Any] = {}
    if gradients and ends:
        found = gradients_of(torch, ends, tensors, built, seed)
    kept = {name: one.detach().clone() for name, one in outputs.items()}
    after = {name: one.detach() for name, one in tensors.items()}
    return Called(outputs=kept, inputs=after, gradients=found, is_differentiable=bool(ends))


def gradients_of(torch: Any, ends: list[Any], tensors: dict[str, Any], built: Built, seed: int) -> dict[str, Any]:
    """By the same random direction for everyone: drawn on the host in float32, whatever the precision."""
    wanted = {f"gradient of {name}": one for name, one in (*tensors.items(), *built.parameters) if one.requires_grad}
    directions = [direction_like(torch, end, seed + at) for at, end in enumerate(ends)]
    given = torch.autograd.grad(ends, list(wanted.values()), directions, allow_unused=True)
    return {name: gradient.detach().clone() for name, gradient in zip(wanted, given, strict=True) if gradient is not None}


def direction_like(torch: Any, end: Any, seed: int) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(end.shape, generator=generator).to(end.device, torch.bfloat16).to(end.dtype)


def poison(torch: Any, outputs: dict[str, Any]) -> None:
    """Leaves NaNs in the memory that the next outputs will get: a kernel that does not write all of it must not find the
    right answer there from the call before."""
    held = []
    for one in outputs.values():
        for _ in range(3):
            spoiled = torch.empty_like(one)
            held.append(spoiled.fill_(float("nan")) if one.is_floating_point() else spoiled.fill_(1))
    if any(one.is_cuda for one in held):
        torch.cuda.synchronize()
