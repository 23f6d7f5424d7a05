"""An operator's call on a batch so many times as large.

Which sizes of a call are its batch's is told by the model's weights: what a weight has stays, the
other size of a product grows, or what is summed over where the product is a weight's gradient.
Images and attention have their batch first.
"""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import replace

from stepscope.core.hardware import Dims, OperatorCall

Shape = tuple[int, ...]
PRODUCTS = {"aten::mm": 0, "aten::addmm": 1, "aten::bmm": 0, "aten::baddbmm": 1}
"""Where the first of the two matrices is."""
BATCH_FIRST = {
    "aten::convolution": (0,), "aten::convolution_backward": (0, 1), "batch_norm": (0,),
    "batch_norm_backward": (0,), "attention": (0, 1, 2), "attention_backward": (0, 1, 2),
}  # fmt: skip


def larger_call(call: OperatorCall, weights: Collection[Shape], times: int) -> OperatorCall | None:
    """The same operator with so many times the samples; None where that is not known."""
    if call.op in BATCH_FIRST:
        grown = [(argument, 0) for argument in BATCH_FIRST[call.op]]
        mask = call.dims[3] if call.op.startswith("attention") else ()
        if mask and mask[0] == call.dims[0][0]:
            grown.append((3, 0))
    elif call.op in PRODUCTS:
        found = _of_product(call, weights)
        if found is None:
            return None
        grown = found
    else:
        return None
    dims, strides = list(call.dims), list(call.strides)
    for argument, axis in grown:
        if strides and strides[argument]:
            strides[argument] = _grown_strides(strides[argument], axis, times)
        sizes = list(dims[argument])
        size = sizes[axis]
        assert isinstance(size, int)
        sizes[axis] = size * times
        dims[argument] = tuple(sizes)
    return replace(call, dims=tuple(dims), strides=tuple(strides))


def _of_product(call: OperatorCall, weights: Collection[Shape]) -> list[tuple[int, int]] | None:
    """Sizes of its two matrices, and of what is added, that are the batch's."""
    first = PRODUCTS[call.op]
    left, right = _shape(call.dims[first]), _shape(call.dims[first + 1])
    if left is None or right is None or len(left) != len(right) or len(left) < 2:
        return None
    row, column, summed = len(left) - 2, len(left) - 1, len(right) - 2
    if _is_weight(right, weights):
        return [(first, row), *_of_added(call, first, row, left[row])]
    if _is_weight(left, weights):
        return [(first + 1, column), *_of_added(call, first, column, right[column])]
    if _is_weight((*left[:-1], right[-1]), weights):
        return [(first, column), (first + 1, summed)]
    if len(left) == 3:
        return [(first, 0), (first + 1, 0), *_of_added(call, first, 0, left[0])]
    return None


def _of_added(call: OperatorCall, first: int, axis: int, size: int) -> list[tuple[int, int]]:
    """Size of what is added, where it is as large as the product."""
    added = _shape(call.dims[0]) if first else None
    if added is None or len(added) <= axis or added[axis] != size:
        return []
    return [(0, axis)]


def _is_weight(shape: Shape, weights: Collection[Shape]) -> bool:
    return shape in weights or (*shape[:-2], shape[-1], shape[-2]) in weights


def _shape(dims: Dims) -> Shape | None:
    sizes = tuple(size for size in dims if isinstance(size, int))
    return sizes if len(sizes) == len(dims) else None


def _grown_strides(strides: Dims, axis: int, times: int) -> Dims:
    """The axes that lie outside of the grown one are that much further apart."""
    inner = strides[axis]
    assert isinstance(inner, int)
    return tuple(
        step * times if place != axis and isinstance(step, int) and step > inner else step
        for place, step in enumerate(strides)
    )
