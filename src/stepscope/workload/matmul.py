"""Matrix products: 2*m*n*k FLOPs for (m, k) x (k, n),
as metrics.md counts and as torch.utils.flop_counter does.

Which operator of a nest does the work is the caller's business:
a wrapper (linear, matmul) has the same model as what it calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import prod

from msgspec import Struct

from stepscope.workload.inputs import ParsedInputs, Shape, is_scalar, number_at
from stepscope.workload.operands import (
    Model,
    Operand,
    Work,
    broadcast,
    make_work,
    operand,
    out_after,
    read_bytes,
    scalar_type_at,
    size_bytes,
    total,
)

# One complex multiply-add is 4 real multiplications and 4 additions:
# 8 FLOPs where a real one has 2.
COMPLEX_FACTOR = 4

Product = tuple[Shape, int]
"""The output's shape, and k, the length of each of its dot products."""


class Gemm(Struct, frozen=True, kw_only=True):
    """Where a matrix product's schema has its tensors."""

    kind: str
    shape: Callable[[Shape, Shape], Product | None]
    left: int = 0
    right: int = 1
    added: int | None = None
    """The tensor added to the product (self of addmm, a bias)."""
    beta: int | None = None
    """The factor on the added tensor: at 0 it is not read."""
    also_read: tuple[int, ...] = ()
    """Scales and group offsets."""
    offsets: int | None = None
    out_type: tuple[int, ...] = ()
    """Indices at which a ScalarType may name the output's type, newest schema first."""
    out_dtype: str | None = None
    """The output's type where it is fixed."""
    num_args: int = 2
    """Arguments before `out=` that can be tensors."""
    num_scalars: int | None = None
    """Scalars of the plain overload,
    where there is another with a ScalarType right after the tensors."""
    has_lists: bool = False
    """Reads TensorLists, whose types are not recorded."""


def mm_shape(left: Shape, right: Shape) -> Product | None:
    """(m, k) x (k, n)."""
    if len(left) != 2 or len(right) != 2 or left[1] != right[0]:
        return None
    return (left[0], right[1]), left[1]


def bmm_shape(left: Shape, right: Shape) -> Product | None:
    """(b, m, k) x (b, k, n)."""
    if len(left) != 3 or len(right) != 3 or left[0] != right[0] or left[2] != right[1]:
        return None
    return (left[0], left[1], right[2]), left[2]


def addbmm_shape(left: Shape, right: Shape) -> Product | None:
    """(b, m, k) x (b, k, n), summed over b: a dot product has b*k terms."""
    product = bmm_shape(left, right)
    return None if product is None else (product[0][1:], product[1] * left[0])


def linear_shape(left: Shape, right: Shape) -> Product | None:
    """(..., k) x (n, k) transposed."""
    if not left or len(right) not in (1, 2) or left[-1] != right[-1]:
        return None
    return (*left[:-1], *right[:-1]), left[-1]


def matmul_shape(left: Shape, right: Shape) -> Product | None:
    """NumPy's matmul: vectors lose their dimension again, batches broadcast."""
    if not left or not right:
        return None
    rows = left[-2:-1]
    columns = right[-1:] if len(right) > 1 else ()
    batch = broadcast((left[:-2], right[:-2]))
    if batch is None or left[-1] != (right[-2] if len(right) > 1 else right[0]):
        return None
    return (*batch, *rows, *columns), left[-1]


def grouped_shape(left: Shape, right: Shape) -> Product | None:
    """Groups along the one ragged dimension:
    their offsets are on the device, but they cover it, so their sizes add up."""
    if len(left) == 3 and len(right) == 3:
        return bmm_shape(left, right)
    if not {len(left), len(right)} <= {2, 3} or left[-1] != right[-2]:
        return None
    return (left[-2], right[-1]), left[-1]


def gemm_work(spec: Gemm, inputs: ParsedInputs) -> Work | None:
    """The work of one matrix product."""
    left, right = operand(inputs, spec.left), operand(inputs, spec.right)
    if left is None or right is None:
        return None
    product = spec.shape(left.dims, right.dims)
    if product is None:
        return None
    dims, inner = product
    if left.dtype == "fp4":
        inner *= 2  # dims count bytes, each of two values, along k
    flops = 2 * prod(dims) * inner * (COMPLEX_FACTOR if left.dtype.startswith("complex") else 1)
    moved = total(
        read_bytes(
            left, right, _added(spec, inputs), *(operand(inputs, index) for index in spec.also_read)
        ),
        size_bytes(
            prod(dims) * _num_outputs(spec, inputs, left, right), _out_dtype(spec, inputs, left)
        ),
        None if spec.has_lists else 0.0,
    )
    precision = left.dtype if left.dtype == right.dtype else None
    return make_work(spec.kind, flops=flops, moved=moved, precision=precision)


def _num_outputs(spec: Gemm, inputs: ParsedInputs, left: Operand, right: Operand) -> int:
    if spec.offsets is None or not len(left.dims) == len(right.dims) == 2:
        return 1
    groups = operand(inputs, spec.offsets)  # k is ragged: each group has an (m, n) of its own
    return 1 if groups is None else groups.numel


def _added(spec: Gemm, inputs: ParsedInputs) -> Operand | None:
    if spec.added is None:
        return None
    if spec.beta is not None and number_at(inputs, spec.beta + _has_out_type(spec, inputs)) == 0:
        return None
    return operand(inputs, spec.added)


def _out_dtype(spec: Gemm, inputs: ParsedInputs, left: Operand) -> str | None:
    out = out_after(inputs, spec.num_args)
    if out is not None or spec.out_dtype is not None:
        return spec.out_dtype if out is None else out.dtype
    for index in spec.out_type:
        if is_scalar(inputs, index):
            return scalar_type_at(inputs, index)
    return scalar_type_at(inputs, spec.num_args) if _has_out_type(spec, inputs) else left.dtype


def _has_out_type(spec: Gemm, inputs: ParsedInputs) -> bool:
    """Whether this is the overload that names the output's type (mm.dtype,
    addmm.dtype): it has one scalar more."""
    scalars = sum(is_scalar(inputs, index) for index in range(spec.num_args, len(inputs.types)))
    return spec.num_scalars is not None and scalars == spec.num_scalars + 1


def te_gemm_work(inputs: ParsedInputs) -> Work | None:
    """TransformerEngine's te_gemm_ts: A at 0, B at 5, D at 10, either of A and B transposed;
    D's shape says which sizes are k."""
    left, right, out = operand(inputs, 0), operand(inputs, 5), operand(inputs, 10)
    if left is None or right is None or out is None or len(out.dims) < 2 or not out.numel:
        return None
    columns = out.dims[-1]
    rows = out.numel // columns
    inner, rest = divmod(left.numel, columns)
    if rest or right.numel != rows * inner:
        return None
    moved = total(read_bytes(left, right), size_bytes(out.numel, out.dtype))
    precision = left.dtype if left.dtype == right.dtype else None
    return make_work("gemm", flops=2 * out.numel * inner, moved=moved, precision=precision)


_MATMUL = Gemm(kind="gemm", shape=matmul_shape)
_ADDMM = Gemm(
    kind="gemm", shape=mm_shape, left=1, right=2, added=0, beta=3, num_args=3, num_scalars=2
)
_ADDMV = Gemm(kind="gemm", shape=matmul_shape, left=1, right=2, added=0, beta=3, num_args=3)
_ADDBMM = Gemm(
    kind="batched-gemm", shape=addbmm_shape, left=1, right=2, added=0, beta=3, num_args=3
)
_BADDBMM = Gemm(
    kind="batched-gemm",
    shape=bmm_shape,
    left=1,
    right=2,
    added=0,
    beta=3,
    num_args=3,
    num_scalars=2,
)
_GROUPED = Gemm(
    kind="grouped-gemm",
    shape=grouped_shape,
    added=3,
    also_read=(2,),
    offsets=2,
    out_type=(4,),
    num_args=4,
)

GEMMS = {
    "aten::mm": Gemm(kind="gemm", shape=mm_shape, num_scalars=0),
    "aten::_int_mm": Gemm(kind="gemm", shape=mm_shape, out_dtype="int32"),
    "aten::addmm": _ADDMM,
    "aten::addmm_": _ADDMM,
    "aten::_addmm_activation": Gemm(
        kind="gemm", shape=mm_shape, left=1, right=2, added=0, beta=3, num_args=3
    ),
    "aten::linear": Gemm(kind="gemm", shape=linear_shape, added=2, num_args=3),
    "aten::matmul": _MATMUL,
    "aten::mv": _MATMUL,
    "aten::dot": _MATMUL,
    "aten::vdot": _MATMUL,
    "aten::addmv": _ADDMV,
    "aten::addmv_": _ADDMV,
    "aten::bmm": Gemm(kind="batched-gemm", shape=bmm_shape, num_scalars=0),
    "aten::baddbmm": _BADDBMM,
    "aten::baddbmm_": _BADDBMM,
    "aten::addbmm": _ADDBMM,
    "aten::addbmm_": _ADDBMM,
    "aten::_scaled_mm": Gemm(
        kind="gemm", shape=mm_shape, added=4, also_read=(2, 3, 5), out_type=(6, 3), num_args=6
    ),
    "aten::_scaled_mm_v2": Gemm(
        kind="gemm", shape=mm_shape, added=8, out_type=(9,), num_args=9, has_lists=True
    ),
    "aten::_grouped_mm": _GROUPED,
    "aten::_scaled_grouped_mm": Gemm(
        kind="grouped-gemm",
        shape=grouped_shape,
        added=5,
        also_read=(2, 3, 4, 6),
        offsets=4,
        out_type=(7,),
        num_args=7,
    ),
}
MODELS: Mapping[str, Model] = {op: partial(gemm_work, spec) for op, spec in GEMMS.items()} | {
    "tex_ts::te_gemm_ts": te_gemm_work
}


def product_size(op: str, inputs: ParsedInputs) -> tuple[int, int] | None:
    """Rows and columns of each of a product's outputs; None where they are not known, or differ
    within the call."""
    spec = GEMMS.get(op)
    if spec is None or spec.kind == "grouped-gemm":
        return None
    left, right = operand(inputs, spec.left), operand(inputs, spec.right)
    product = None if left is None or right is None else spec.shape(left.dims, right.dims)
    if product is None or len(product[0]) < 2:
        return None
    return product[0][-2], product[0][-1]
