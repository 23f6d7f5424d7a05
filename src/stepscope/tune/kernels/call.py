"""One call of a kernel.

Its outputs, what it did to its inputs, and its gradients, with names for each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from stepscope.tune.kernels.execution import Built
from stepscope.tune.kernels.target import Inputs


class CallResult(Struct, frozen=True, kw_only=True):
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
        return [leaf for item in value.values() for leaf in leaves(torch, item)]
    if isinstance(value, list | tuple):
        return [leaf for item in value for leaf in leaves(torch, item)]
    return []


def differentiable(tensors: list[Any]) -> list[Any]:
    """Tensors that a backward can start from."""
    return [tensor for tensor in tensors if tensor.requires_grad and tensor.is_floating_point()]


def named_tensors(torch: Any, inputs: Inputs, names: tuple[str, ...]) -> dict[str, Any]:
    """The tensors among a call's inputs, by their parameters' names."""
    tensors: dict[str, Any] = {}
    for index, value in enumerate(inputs[0]):
        name = names[index] if index < len(names) else f"input {index}"
        parts = leaves(torch, value)
        tensors |= {
            name if len(parts) == 1 else f"{name}[{number}]": part
            for number, part in enumerate(parts)
        }
    return tensors | {
        name: value for name, value in inputs[1].items() if isinstance(value, torch.Tensor)
    }


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
            return tuple(copied(item) for item in value)
        return [copied(item) for item in value] if isinstance(value, list) else value

    return tuple(copied(value) for value in inputs[0]), {
        name: copied(value) for name, value in inputs[1].items()
    }


def call_once(
    torch: Any, built: Built, inputs: Inputs, names: tuple[str, ...], *, gradients: bool, seed: int
) -> CallResult:
    """Runs it, and backward where its outputs carry gradients and they are wanted.

    `inputs` are the call's own to keep.
    """
    with torch.set_grad_enabled(gradients):
        returned = leaves(torch, built.kernel(*inputs[0], **inputs[1]))
    tensors = named_tensors(torch, inputs, names)
    outputs = {
        f"output {index}" if len(returned) > 1 else "output": tensor
        for index, tensor in enumerate(returned)
    }
    ends = differentiable(returned)
    computed = gradients_of(torch, ends, tensors, built, seed) if gradients and ends else {}
    copies = {name: tensor.detach().clone() for name, tensor in outputs.items()}
    after = {name: tensor.detach() for name, tensor in tensors.items()}
    return CallResult(
        outputs=copies, inputs=after, gradients=computed, is_differentiable=bool(ends)
    )


def gradients_of(
    torch: Any, ends: list[Any], tensors: dict[str, Any], built: Built, seed: int
) -> dict[str, Any]:
    """Gradients by the same random direction for everyone.

    Drawn on the host in float32, whatever the precision.
    """
    wanted = {
        f"gradient of {name}": tensor
        for name, tensor in (*tensors.items(), *built.parameters)
        if tensor.requires_grad
    }
    directions = [direction_like(torch, end, seed + index) for index, end in enumerate(ends)]
    gradients = torch.autograd.grad(ends, list(wanted.values()), directions, allow_unused=True)
    return {
        name: gradient.detach().clone()
        for name, gradient in zip(wanted, gradients, strict=True)
        if gradient is not None
    }


def direction_like(torch: Any, end: Any, seed: int) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(end.shape, generator=generator).to(end.device, torch.bfloat16).to(end.dtype)


def poison(torch: Any, outputs: dict[str, Any]) -> None:
    """Leaves NaNs in the memory that the next outputs will get: a kernel that does not write all
    of it must not find the right answer there from the call before."""
    spoiled_tensors = []
    for output in outputs.values():
        for _ in range(3):
            spoiled = torch.empty_like(output)
            spoiled_tensors.append(
                spoiled.fill_(float("nan")) if output.is_floating_point() else spoiled.fill_(1)
            )
    if any(output.is_cuda for output in spoiled_tensors):
        torch.cuda.synchronize()
