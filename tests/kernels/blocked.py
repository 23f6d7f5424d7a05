"""Kernels for tests: plain torch with a block size, as a Triton kernel has one, and the ways in
which such kernels fail."""

from __future__ import annotations

import os
import threading
from typing import Any

import torch


def plain(x: Any) -> Any:
    return torch.softmax(x, dim=-1)


def softmax(x: Any, BLOCK: int = 64, careless: bool = False) -> Any:  # noqa: N803 - settings of kernels are in capitals
    """Rows' maxima and sums over blocks of columns; in float32 inside."""
    wide = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
    parts = wide.split(BLOCK, dim=-1)
    top = torch.stack([part.amax(dim=-1) for part in parts]).amax(dim=0)[..., None].detach()
    if careless and wide.shape[-1] % BLOCK:
        parts = parts[:-1] or parts
    total = torch.stack([torch.exp(part - top).sum(dim=-1) for part in parts]).sum(dim=0)
    return (torch.exp(wide - top) / total[..., None]).to(x.dtype)


def one_block(x: Any, BLOCK: int = 4096) -> Any:  # noqa: N803
    """Right while a row fits a block: the rest of the output is whatever was in its memory."""
    out = torch.empty_like(x)
    out[..., :BLOCK] = torch.softmax(x[..., :BLOCK], dim=-1)
    return out


def moody(x: Any, mood: str = "good") -> Any:
    """Fails in every way a kernel can."""
    if mood == "raises":
        raise RuntimeError(
            "out of resource: shared memory, Required: 262144, Hardware limit: 232448"
        )
    if mood == "dies":
        os._exit(11)
    if mood == "hangs":
        threading.Event().wait()
    if mood == "writes":
        x.mul_(2)
        return torch.softmax(x / 2, dim=-1)
    return torch.softmax(x, dim=-1)


class Scaled(torch.autograd.Function):
    """A softmax whose backward can be told to be wrong."""

    @staticmethod
    def forward(ctx: Any, x: Any, factor: float) -> Any:
        out = torch.softmax(x, dim=-1)
        ctx.save_for_backward(out)
        ctx.factor = factor
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (out,) = ctx.saved_tensors
        grad = grads[0]
        return out * (grad - (grad * out).sum(dim=-1, keepdim=True)) * ctx.factor, None


def scaled(x: Any, factor: float = 1.0) -> Any:
    return Scaled.apply(x, factor)  # type: ignore[no-untyped-call]


def matmul(a: Any, b: Any, SPLIT: int) -> Any:  # noqa: N803
    """Sums over parts of the inner size."""
    return sum(
        one @ other for one, other in zip(a.split(SPLIT, dim=1), b.split(SPLIT, dim=0), strict=True)
    )


def plain_matmul(a: Any, b: Any) -> Any:
    return a @ b


class Small(torch.nn.Module):
    """A little network of convolutions."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 3)
        )

    def forward(self, images: Any) -> Any:
        return self.body(images)
