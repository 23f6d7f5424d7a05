"""Tensors among an operator's inputs, and the Work made of them.

Bytes follow one convention (metrics.md, roofline): each input is read once, each output written
once. A tensor that was expanded (stride 0) counts what lies in memory, not what it pretends to be.
What the record does not say is None, and None added to anything is None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf, prod
from typing import TypeGuard

from msgspec import Struct

from stepscope.workload.inputs import (
    DTYPES,
    ITEM_BYTES,
    SCALAR_TYPES,
    ParsedInputs,
    Shape,
    Shapes,
    integer_at,
)

MATRIX_KINDS = ("gemm", "batched-gemm", "grouped-gemm", "attention", "convolution", "rnn")
"""What MFU counts."""


class Work(Struct, frozen=True, kw_only=True):
    """What an operator has to do, from its inputs alone; `None` is not known."""

    kind: str
    flops: float | None
    """Model FLOPs: 2 per multiply-add, recomputation not counted."""
    bytes: float | None
    precision: str | None
    """Precision of the arithmetic, by the inputs' element type."""
    is_matrix: bool
    hardware_flops: float | None = None
    """What the kernel executes: more than `flops` only where it recomputes (attention backward)."""


class Operand(Struct, frozen=True, kw_only=True):
    """One strided tensor; its dtype is "" when the recorder's name for it is unknown."""

    dims: Shape
    dtype: str
    stored: int
    """Elements in memory: numel, less what stride 0 repeats."""

    @property
    def numel(self) -> int:
        return prod(self.dims)


Model = Callable[[ParsedInputs], Work | None]


def operand(inputs: ParsedInputs, index: int) -> Operand | None:
    """The tensor at this argument;
    `None` when it is none, is absent, or has dimensions but no strides (a sparse one)."""
    if not 0 <= index < len(inputs.dims):
        return None
    dims = inputs.dims[index]
    dtype = DTYPES.get(inputs.types[index], "")
    if not is_shape(dims) or (not dims and not dtype):
        return None
    if not inputs.strides:
        return Operand(dims=dims, dtype=dtype, stored=prod(dims))
    strides = inputs.strides[index]
    if not is_shape(strides) or len(strides) != len(dims):
        return None
    return Operand(
        dims=dims,
        dtype=dtype,
        stored=prod(size for size, stride in zip(dims, strides, strict=True) if stride != 0),
    )


def is_shape(dims: Shape | Shapes) -> TypeGuard[Shape]:
    """Whether these are one tensor's dims rather than a list's."""
    return not dims or isinstance(dims[0], int)


def operands(inputs: ParsedInputs, positions: Iterable[int]) -> list[Operand]:
    """The tensors at these arguments, leaving out those that are none."""
    candidates = (operand(inputs, index) for index in positions)
    return [tensor for tensor in candidates if tensor is not None]


def out_after(inputs: ParsedInputs, num_args: int) -> Operand | None:
    """The `out=` tensor: one that comes after all the arguments that can be tensors.
    Its dims may be stale: it can be resized."""
    return next(iter(operands(inputs, range(num_args, len(inputs.dims)))), None)


def shapes_at(inputs: ParsedInputs, index: int) -> Shapes | None:
    """A TensorList's shapes; `None` when it is no list, or one too long to have been recorded."""
    if not 0 <= index < len(inputs.dims):
        return None
    dims = inputs.dims[index]
    if not dims or is_shape(dims):
        return None
    return tuple(shape for shape in dims if isinstance(shape, tuple))


def scalar_type_at(inputs: ParsedInputs, index: int) -> str | None:
    """The dtype that a ScalarType argument names."""
    number = integer_at(inputs, index)
    return None if number is None else SCALAR_TYPES.get(number)


def size_bytes(elements: float, dtype: str | None) -> float | None:
    """What so many elements take; `None` for an unknown type."""
    item = ITEM_BYTES.get(dtype or "")
    return None if item is None else float(elements * item)


def read_bytes(*tensors: Operand | None) -> float | None:
    """What reading each tensor once takes; an absent one takes nothing."""
    return total(
        *(size_bytes(tensor.stored, tensor.dtype) for tensor in tensors if tensor is not None)
    )


def written_bytes(*tensors: Operand | None) -> float | None:
    """What writing a tensor of each one's dims and type takes."""
    return total(
        *(size_bytes(tensor.numel, tensor.dtype) for tensor in tensors if tensor is not None)
    )


def total(*parts: float | None) -> float | None:
    """The sum, or `None` when any part is not known."""
    sizes = [part for part in parts if part is not None]
    return float(sum(sizes)) if len(sizes) == len(parts) else None


def make_work(
    kind: str,
    *,
    flops: float | None,
    moved: float | None,
    precision: str | None,
    hardware_flops: float | None = None,
) -> Work | None:
    """A Work of so many FLOPs and bytes moved,
    or `None` when there is nothing to say: neither is known."""
    if flops is None and moved is None:
        return None
    return Work(
        kind=kind,
        flops=_sound(flops),
        bytes=_sound(moved),
        precision=precision or None,
        is_matrix=kind in MATRIX_KINDS,
        hardware_flops=_sound(flops if hardware_flops is None else hardware_flops),
    )


def _sound(figure: float | None) -> float | None:
    """A float; raises OverflowError for what is no amount of work,
    which only a damaged record gives."""
    figure = None if figure is None else float(figure)
    if figure is not None and not 0 <= figure < inf:
        raise OverflowError(figure)
    return figure


def broadcast(shapes: Sequence[Shape]) -> Shape | None:
    """The shape that these broadcast to (NumPy's rule); `None` when they do not."""
    out: list[int] = []
    for back in range(max((len(shape) for shape in shapes), default=0)):
        sizes = {shape[-1 - back] for shape in shapes if back < len(shape)} - {1}
        if len(sizes) > 1:
            return None
        out.append(sizes.pop() if sizes else 1)
    return tuple(reversed(out))
