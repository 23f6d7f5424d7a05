"""Pooling and resampling: the input read once, the output written once,
one FLOP for each element under each window."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import prod

from stepscope.workload.conv import per_dim, window_dims
from stepscope.workload.inputs import ParsedInputs, flag_at, integers_at
from stepscope.workload.operands import (
    Model,
    Work,
    make_work,
    operand,
    read_bytes,
    size_bytes,
    total,
    written_bytes,
)


def pool_work(
    inputs: ParsedInputs, *, rank: int, dilation: int | None, ceil: int, has_indices: bool
) -> Work | None:
    """(self, kernel_size, stride, padding, ...) over the last `rank` dimensions;
    an empty stride is the kernel's size."""
    tensor, kernel = operand(inputs, 0), per_dim(integers_at(inputs, 1), rank)
    if tensor is None or kernel is None or len(tensor.dims) not in (rank + 1, rank + 2):
        return None
    stride = per_dim(integers_at(inputs, 2) or kernel, rank)
    padding = per_dim(integers_at(inputs, 3), rank)
    steps = (1,) * rank if dilation is None else per_dim(integers_at(inputs, dilation), rank)
    rounds_up = flag_at(inputs, ceil)
    if stride is None or padding is None or steps is None or rounds_up is None or min(stride) < 1:
        return None
    spread = tuple(step * (taps - 1) for step, taps in zip(steps, kernel, strict=True))
    sizes = window_dims(tensor.dims[-rank:], spread, stride, padding, ceil=rounds_up)
    if min(sizes) < 0:
        return None
    elements = prod(tensor.dims[:-rank]) * prod(sizes)
    written = total(
        size_bytes(elements, tensor.dtype), size_bytes(elements, "int64") if has_indices else 0.0
    )
    return make_work(
        "pooling",
        flops=elements * prod(kernel),
        moved=total(read_bytes(tensor), written),
        precision=tensor.dtype,
    )


def resized_work(inputs: ParsedInputs, *, rank: int, flops: int) -> Work | None:
    """(self, output_size): adaptive pooling,
    which adds each element of the input once (`flops` 0), and upsampling."""
    tensor, sizes = operand(inputs, 0), integers_at(inputs, 1)
    if (
        tensor is None
        or sizes is None
        or len(sizes) != rank
        or len(tensor.dims) < rank + 1
        or min(sizes) < 0
    ):
        return None
    elements = prod(tensor.dims[:-rank]) * prod(sizes)
    moved = total(read_bytes(tensor), size_bytes(elements, tensor.dtype))
    return make_work(
        "pooling", flops=elements * flops or tensor.numel, moved=moved, precision=tensor.dtype
    )


def backward_work(inputs: ParsedInputs, *, indices: int | None = None) -> Work | None:
    """(grad_output, self, ...): the gradient spread over something of the input's size;
    the input itself is not read."""
    grad, tensor = operand(inputs, 0), operand(inputs, 1)
    if grad is None or tensor is None or len(grad.dims) != len(tensor.dims):
        return None
    chosen = None if indices is None else operand(inputs, indices)
    moved = total(read_bytes(grad, chosen), written_bytes(tensor))
    return make_work(
        "pooling", flops=max(grad.numel, tensor.numel), moved=moved, precision=grad.dtype
    )


_max_pool = partial(pool_work, dilation=4, ceil=5)
MODELS: Mapping[str, Model] = {
    **{
        f"aten::max_pool{rank}d_with_indices": partial(_max_pool, rank=rank, has_indices=True)
        for rank in (2, 3)
    },
    **{
        f"aten::max_pool{rank}d": partial(_max_pool, rank=rank, has_indices=False)
        for rank in (1, 2, 3)
    },
    **{
        f"aten::avg_pool{rank}d": partial(
            pool_work, rank=rank, dilation=None, ceil=4, has_indices=False
        )
        for rank in (1, 2, 3)
    },
    **{
        f"aten::_adaptive_avg_pool{rank}d": partial(resized_work, rank=rank, flops=0)
        for rank in (2, 3)
    },
    **{
        f"aten::max_pool{rank}d_with_indices_backward": partial(backward_work, indices=7)
        for rank in (2, 3)
    },
    **{
        f"aten::{name}{rank}d_backward": backward_work
        for name in ("avg_pool", "_adaptive_avg_pool")
        for rank in (2, 3)
    },
    # A copy; and per dimension two multiplications and an addition.
    **{
        f"aten::upsample_nearest{rank}d": partial(resized_work, rank=rank, flops=1)
        for rank in (1, 2, 3)
    },
    "aten::upsample_bilinear2d": partial(resized_work, rank=2, flops=9),
}
