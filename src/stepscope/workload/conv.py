"""Convolutions: 2 FLOPs per output point, output channel,
input channel of its group and kernel tap.

The same count as torch.utils.flop_counter's conv_flop_count, except that a grouped convolution's
weight gradient is divided by its groups as well. A weight is (out, in / groups, *kernel),
transposed (in, out / groups, *kernel), so groups need not be known. Each of the two gradients costs
what the forward pass costs.

Pooling and resampling: the input read once, the output written once,
one FLOP for each element under each window.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import prod

from msgspec import Struct

from stepscope.workload.inputs import (
    ParsedInputs,
    Shape,
    flag_at,
    flags_at,
    integer_at,
    integers_at,
)
from stepscope.workload.operands import (
    Model,
    Operand,
    Work,
    make_work,
    operand,
    operands,
    read_bytes,
    size_bytes,
    total,
    written_bytes,
)


class Conv(Struct, frozen=True, kw_only=True):
    """Where a convolution's schema has its arguments;
    `None` where it has none, and the argument is at its default."""

    stride: int
    padding: int
    dilation: int | None = None
    transposed: int | None = None
    """The argument that says so."""
    is_transposed: bool = False
    output_padding: int | None = None
    groups: int | None = None
    """Needed for a transposed one's output channels alone."""
    also_read: tuple[int, ...] = ()
    """A bias, and what else is added."""


def conv_work(spec: Conv, inputs: ParsedInputs) -> Work | None:
    """The forward pass."""
    tensor, weight = operand(inputs, 0), operand(inputs, 1)
    transposed = spec.is_transposed if spec.transposed is None else flag_at(inputs, spec.transposed)
    if tensor is None or weight is None or transposed is None or not _fits(tensor, weight):
        return None
    out = _out_dims(spec, inputs, tensor.dims, weight.dims, transposed=transposed)
    if out is None:
        return None
    flops = conv_flops(tensor.dims if transposed else out, weight.dims)
    moved = total(
        read_bytes(tensor, weight, *operands(inputs, spec.also_read)),
        size_bytes(prod(out), tensor.dtype),
    )
    return make_work("convolution", flops=flops, moved=moved, precision=tensor.dtype)


def conv_flops(points: Shape, weight: Shape) -> int:
    """FLOPs of a pass whose kernel is applied at each of these points:
    (batch, channels, *spatial), the channels not used."""
    return 2 * points[0] * prod(points[2:]) * prod(weight)


def conv_backward_work(inputs: ParsedInputs, *, transposed_at: int, mask_at: int) -> Work | None:
    """The gradients that output_mask asks for; the bias's is a sum, and an operator of its own."""
    grad, tensor, weight = (operand(inputs, index) for index in range(3))
    transposed, mask = flag_at(inputs, transposed_at), flags_at(inputs, mask_at)
    if (
        grad is None
        or tensor is None
        or weight is None
        or transposed is None
        or mask is None
        or len(mask) != 3
    ):
        return None
    if (
        not _fits(tensor, weight)
        or len(grad.dims) != len(tensor.dims)
        or grad.dims[0] != tensor.dims[0]
    ):
        return None
    flops = conv_flops(tensor.dims if transposed else grad.dims, weight.dims) * (mask[0] + mask[1])
    moved = total(
        read_bytes(grad, weight if mask[0] else None, tensor if mask[1] else None),
        written_bytes(tensor if mask[0] else None, weight if mask[1] else None),
    )
    return make_work("convolution", flops=flops, moved=moved, precision=tensor.dtype)


def _fits(tensor: Operand, weight: Operand) -> bool:
    return len(tensor.dims) == len(weight.dims) >= 3


def _out_dims(
    spec: Conv, inputs: ParsedInputs, tensor: Shape, weight: Shape, *, transposed: bool
) -> Shape | None:
    """torch.nn.Conv2d's and torch.nn.ConvTranspose2d's formulas."""
    rank = len(tensor) - 2
    stride, padding = (
        per_dim(integers_at(inputs, index), rank) for index in (spec.stride, spec.padding)
    )
    dilation = (
        (1,) * rank if spec.dilation is None else per_dim(integers_at(inputs, spec.dilation), rank)
    )
    if stride is None or padding is None or dilation is None or min(stride) < 1:
        return None
    spread = tuple(step * (taps - 1) for step, taps in zip(dilation, weight[2:], strict=True))
    if not transposed:
        sizes = window_dims(tensor[2:], spread, stride, padding)
        return (tensor[0], weight[0], *sizes) if min(sizes) >= 0 else None
    if spec.output_padding is None or spec.groups is None:
        return None
    extra = per_dim(integers_at(inputs, spec.output_padding), rank)
    groups = integer_at(inputs, spec.groups)
    if extra is None or groups is None:
        return None
    rows = zip(tensor[2:], stride, padding, spread, extra, strict=True)
    sizes = tuple(
        (size - 1) * step - 2 * pad + reach + more + 1 for size, step, pad, reach, more in rows
    )
    return (tensor[0], weight[1] * groups, *sizes) if min(sizes) >= 0 and groups > 0 else None


def window_dims(
    sizes: Shape, spread: Shape, stride: Shape, padding: Shape, *, ceil: bool = False
) -> Shape:
    """How many windows fit along each dimension;
    with `ceil`, one that starts inside may end outside."""
    out = []
    for size, reach, step, pad in zip(sizes, spread, stride, padding, strict=True):
        span = size + 2 * pad - reach - 1
        count = span // step + 1
        if ceil and span % step and count * step < size + pad:
            count += 1
        out.append(count)
    return tuple(out)


def per_dim(values: Shape | None, rank: int) -> Shape | None:
    """A value for each dimension, where one may stand for all."""
    if values is None or len(values) not in (1, rank):
        return None
    return values * rank if len(values) == 1 else values


_PLAIN = Conv(
    stride=3, padding=4, dilation=5, transposed=6, output_padding=7, groups=8, also_read=(2,)
)
_WRAPPER = Conv(stride=3, padding=4, dilation=5, groups=6, also_read=(2,))
_MIOPEN = Conv(padding=3, stride=4, dilation=5, groups=6, also_read=(2,))
_WITH_RELU = Conv(stride=3, padding=4, dilation=5, groups=6, also_read=(2,))
_WITH_ADD = Conv(stride=5, padding=6, dilation=7, groups=8, also_read=(2, 4))
_WITH_KERNEL_SIZE = Conv(stride=4, padding=5, dilation=6, also_read=(3,))
_WITHOUT_DILATION = Conv(stride=4, padding=5, also_read=(3,))

CONVS = {
    "aten::conv1d": _WRAPPER,
    "aten::conv2d": _WRAPPER,
    "aten::conv3d": _WRAPPER,
    "aten::convolution": _PLAIN,
    "aten::_convolution": _PLAIN,
    "aten::convolution_overrideable": _PLAIN,
    "aten::cudnn_convolution": Conv(padding=2, stride=3, dilation=4, groups=5),
    "aten::cudnn_convolution_transpose": Conv(
        is_transposed=True, padding=2, output_padding=3, stride=4, dilation=5, groups=6
    ),
    "aten::cudnn_convolution_relu": _WITH_RELU,
    "aten::cudnn_convolution_add_relu": _WITH_ADD,
    "aten::miopen_convolution": _MIOPEN,
    "aten::miopen_depthwise_convolution": _MIOPEN,
    "aten::miopen_convolution_transpose": Conv(
        is_transposed=True,
        padding=3,
        output_padding=4,
        stride=5,
        dilation=6,
        groups=7,
        also_read=(2,),
    ),
    "aten::miopen_convolution_relu": _WITH_RELU,
    "aten::miopen_convolution_add_relu": _WITH_ADD,
    "aten::mkldnn_convolution": _MIOPEN,
    "aten::_conv_depthwise2d": _WITH_KERNEL_SIZE,
    "aten::conv_depthwise3d": _WITH_KERNEL_SIZE,
    "aten::slow_conv_dilated2d": _WITH_KERNEL_SIZE,
    "aten::slow_conv_dilated3d": _WITH_KERNEL_SIZE,
    "aten::_slow_conv2d_forward": _WITHOUT_DILATION,
    "aten::slow_conv3d_forward": _WITHOUT_DILATION,
}
_OWN: Mapping[str, Model] = {op: partial(conv_work, spec) for op, spec in CONVS.items()} | {
    "aten::convolution_backward": partial(conv_backward_work, transposed_at=7, mask_at=10),
    "aten::convolution_backward_overrideable": partial(
        conv_backward_work, transposed_at=6, mask_at=9
    ),
}


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
POOLS: Mapping[str, Model] = {
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
MODELS: Mapping[str, Model] = {**_OWN, **POOLS}
