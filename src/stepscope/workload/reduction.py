"""Reductions and scans: every element is read once;
what is written follows from the dimensions reduced.

Overloads of one name put the dimensions in different places. A list of them is the first
ScalarList; a single one is the Scalar right after the input; without either the whole tensor is
reduced. Where the values of arguments were not recorded (before torch 2.1) the output's size is not
known, and neither are the bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import prod

from msgspec import Struct

from stepscope.workload.inputs import (
    FLOAT,
    ParsedInputs,
    category,
    flag_at,
    integer_at,
    integers_at,
    is_scalar,
    text_at,
)
from stepscope.workload.operands import (
    Model,
    Operand,
    Work,
    make_work,
    operand,
    out_after,
    read_bytes,
    scalar_type_at,
    size_bytes,
    total,
)
from stepscope.workload.pointwise import Pointwise, pointwise_work


class Reduction(Struct, frozen=True, kw_only=True):
    flops: int = 1
    """Per element of the input."""
    one_dim: bool = False
    """An overload takes a single dimension, followed by keepdim."""
    has_indices: bool = False
    """That overload gives the indices too."""
    has_dtype: bool = False
    """The output's type can be named:
    after keepdim, or right after the input when all is reduced."""
    out_dtypes: tuple[str, ...] = ("",)
    """The outputs' types; "" is the input's, "sum" the input's with integers made int64."""
    has_binary: bool = False
    """An overload is pointwise: max(self, other)."""


def reduction_work(spec: Reduction, inputs: ParsedInputs) -> Work | None:
    """The work of a reduction, over some dimensions or all."""
    tensor = operand(inputs, 0)
    if tensor is None:
        return _out_first(spec, inputs)
    other = operand(inputs, 1)
    if spec.has_binary and other is not None:
        if other.numel > 1:
            return pointwise_work(Pointwise(num_args=2), inputs)
        # A second tensor of one element may be max's
        # other or the out= of the whole tensor's maximum.
        return None
    kept = _kept(spec, inputs, tensor)
    dtypes = [
        _out_dtype(name, tensor, out_after(inputs, 1), _named(spec, inputs))
        for name in spec.out_dtypes
    ]
    if spec.has_indices and _has_one_dim(spec, inputs):
        dtypes.append("int64")
    written = None if kept is None else total(*(size_bytes(kept, dtype) for dtype in dtypes))
    moved = total(read_bytes(tensor), written)
    return make_work(
        "reduction", flops=tensor.numel * spec.flops, moved=moved, precision=tensor.dtype
    )


def _named(spec: Reduction, inputs: ParsedInputs) -> str | None:
    if not spec.has_dtype:
        return None
    by_dim = flag_at(inputs, 2) is not None
    return scalar_type_at(inputs, 3) if by_dim else scalar_type_at(inputs, 1)


def _has_one_dim(spec: Reduction, inputs: ParsedInputs) -> bool:
    return spec.one_dim and is_scalar(inputs, 1) and flag_at(inputs, 2) is not None


def _out_first(spec: Reduction, inputs: ParsedInputs) -> Work | None:
    # Recorders before torch 2.1 wrote an out= variant's undefined output in front:
    # the input is the second.
    tensor = operand(inputs, 1) if inputs.types[:1] == ("",) else None
    if tensor is None:
        return None
    return make_work(
        "reduction", flops=tensor.numel * spec.flops, moved=None, precision=tensor.dtype
    )


def _kept(spec: Reduction, inputs: ParsedInputs, tensor: Operand) -> int | None:
    """How many elements are left; `None` when the record does not say which dimensions go."""
    if any(
        is_scalar(inputs, index) and text_at(inputs, index) is None
        for index in range(1, len(inputs.types))
    ):
        return None
    dims = next(
        (
            integers_at(inputs, index)
            for index, name in enumerate(inputs.types)
            if index and name == "ScalarList"
        ),
        (),
    )
    if _has_one_dim(spec, inputs):
        dim = integer_at(inputs, 1)
        dims = None if dim is None else (dim,)
    if dims is None:
        return None
    return kept_elements(tensor.dims, dims)


def kept_elements(sizes: tuple[int, ...], dims: tuple[int, ...]) -> int | None:
    """Elements left of a tensor reduced over these dimensions, or over all when there are none;
    `None` when it has no such."""
    rank = len(sizes)
    if not dims or not rank:
        return 1
    if any(not -rank <= dim < rank for dim in dims):
        return None
    gone = {dim % rank for dim in dims}
    return prod(size for index, size in enumerate(sizes) if index not in gone)


def _out_dtype(name: str, tensor: Operand, out: Operand | None, named: str | None = None) -> str:
    if name not in ("", "sum"):
        return name
    if out is not None:
        return out.dtype
    if named is not None:
        return named
    if name == "sum" and tensor.dtype and category(tensor.dtype) < FLOAT:
        return "int64"
    return tensor.dtype


def scan_work(inputs: ParsedInputs, *, flops: int, out_dtypes: tuple[str, ...]) -> Work | None:
    """A scan or a sort: outputs as large as the input. Comparisons are not counted as FLOPs."""
    tensor = operand(inputs, 0)
    if tensor is None:
        return None
    named = scalar_type_at(inputs, 2) if out_dtypes == ("sum",) else None
    written = total(
        *(
            size_bytes(tensor.numel, _out_dtype(name, tensor, out_after(inputs, 1), named))
            for name in out_dtypes
        )
    )
    return make_work(
        "reduction",
        flops=tensor.numel * flops,
        moved=total(read_bytes(tensor), written),
        precision=tensor.dtype,
    )


def topk_work(inputs: ParsedInputs) -> Work | None:
    """topk(self, k, dim): k values and k indices along one dimension."""
    tensor, count = operand(inputs, 0), integer_at(inputs, 1)
    dim = integer_at(inputs, 2)
    if tensor is None or not tensor.dims or count is None or dim is None or count < 0:
        return None
    if not -len(tensor.dims) <= dim < len(tensor.dims):
        return None
    rows = tensor.numel // tensor.dims[dim] if tensor.dims[dim] else 0
    written = total(size_bytes(rows * count, tensor.dtype), size_bytes(rows * count, "int64"))
    return make_work(
        "reduction", flops=0, moved=total(read_bytes(tensor), written), precision=tensor.dtype
    )


REDUCTIONS = {
    **dict.fromkeys(("sum", "nansum"), Reduction(out_dtypes=("sum",), has_dtype=True)),
    "mean": Reduction(has_dtype=True),
    **dict.fromkeys(("amax", "amin"), Reduction()),
    "prod": Reduction(one_dim=True, out_dtypes=("sum",), has_dtype=True),
    **dict.fromkeys(("max", "min"), Reduction(one_dim=True, has_indices=True, has_binary=True)),
    **dict.fromkeys(("any", "all"), Reduction(one_dim=True, out_dtypes=("bool",))),
    **dict.fromkeys(("argmax", "argmin"), Reduction(one_dim=True, out_dtypes=("int64",))),
    "aminmax": Reduction(one_dim=True, out_dtypes=("", "")),
    "median": Reduction(one_dim=True, has_indices=True),
    # One multiplication and one addition.
    **dict.fromkeys(("norm", "linalg_vector_norm", "native_norm"), Reduction(flops=2)),
    # x - max, exp, sum.
    "logsumexp": Reduction(flops=3),
    # Welford: two subtractions, a division, a multiplication, two additions.
    **dict.fromkeys(("var", "std"), Reduction(flops=6)),
    **dict.fromkeys(("var_mean", "std_mean"), Reduction(flops=6, out_dtypes=("", ""))),
}
_SCANS = {
    "cumsum": (1, ("sum",)),
    "cumsum_": (1, ("",)),
    "cumprod": (1, ("sum",)),
    "logcumsumexp": (4, ("",)),
    "_logcumsumexp": (4, ("",)),
    "cummax": (1, ("", "int64")),
    "cummin": (1, ("", "int64")),
    "sort": (0, ("", "int64")),
    "argsort": (0, ("int64",)),
}
MODELS: Mapping[str, Model] = {
    **{f"aten::{name}": partial(reduction_work, spec) for name, spec in REDUCTIONS.items()},
    **{
        f"aten::{name}": partial(scan_work, flops=flops, out_dtypes=gives)
        for name, (flops, gives) in _SCANS.items()
    },
    "aten::topk": topk_work,
}
