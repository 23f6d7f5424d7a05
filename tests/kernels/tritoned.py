"""Triton kernels for tests, run by its interpreter where there is no GPU. Imported only where
Triton is."""

# mypy: ignore-errors
# ruff: noqa: N803

import torch
import triton
import triton.language as tl


@triton.jit
def double_kernel(x, y, size, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < size) * 2, mask=at < size)


@triton.autotune(
    configs=[triton.Config({"BLOCK": 16}, num_warps=2), triton.Config({"BLOCK": 64}, num_warps=4)],
    key=["size"],
)
@triton.jit
def tuned_kernel(x, y, size, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < size) * 2, mask=at < size)


def double(x, BLOCK=64, num_warps=4, short=0):
    """`short` leaves out so many blocks."""
    y = torch.empty_like(x)
    blocks = triton.cdiv(x.numel(), BLOCK) - short
    double_kernel[(max(blocks, 1),)](x, y, x.numel(), BLOCK=BLOCK, num_warps=num_warps)
    return y


def tuned_double(x):
    y = torch.empty_like(x)
    tuned_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, x.numel())
    return y


def plain(x):
    return x * 2
