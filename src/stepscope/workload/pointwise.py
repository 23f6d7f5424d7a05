"""Pointwise operators: the output has the shape the inputs broadcast to,
and the type they promote to.

A FLOP is one arithmetic operation or one call of a function such as exp: what a pointwise kernel
costs is its bytes, and its FLOPs only need to be small compared with them. An `out=` tensor is one
that comes after the arguments that can be tensors; a name that ends in "_" writes its first
argument, which it also reads.

Operators over lists of tensors: fused optimizers and _foreach_*.

A list's shapes are recorded while it has no more than 30 tensors, its element type never: FLOPs
follow, bytes do not. A list of more gives nothing at all.

Reductions and scans: every element is read once;
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
    number_at,
    promote,
    text_at,
)
from stepscope.workload.operands import (
    Model,
    Operand,
    Work,
    broadcast,
    make_work,
    operand,
    operands,
    out_after,
    read_bytes,
    scalar_type_at,
    shapes_at,
    size_bytes,
    total,
)


class Pointwise(Struct, frozen=True, kw_only=True):
    num_args: int
    """Arguments that can be tensors; a tensor after them is `out=`."""
    flops: int = 1
    """FLOPs per element of the output."""
    kind: str = "pointwise"
    in_place: bool = False
    out_dtype: str = ""
    """"bool"; "float" when integers give a float; "" when the promoted type."""
    mask: int | None = None
    """An argument that chooses, and has no say in the type."""


def pointwise_work(spec: Pointwise, inputs: ParsedInputs) -> Work | None:
    reads = operands(inputs, range(spec.num_args))
    dims = broadcast([tensor.dims for tensor in reads])
    if not reads or dims is None or ("TensorList" in inputs.types):
        return None
    numbers = operands(inputs, (index for index in range(spec.num_args) if index != spec.mask))
    precision = _promoted(spec, inputs, numbers)
    if not numbers:
        return None
    if spec.in_place:
        first = operand(inputs, 0)
        if first is None or first.dims != dims:
            return None
        written = first.dtype
    else:
        out = out_after(inputs, spec.num_args)
        promoted = "bool" if spec.out_dtype == "bool" else precision or ""
        written = promoted if out is None else out.dtype
    moved = total(read_bytes(*reads), size_bytes(prod(dims), written))
    return make_work(spec.kind, flops=prod(dims) * spec.flops, moved=moved, precision=precision)


def _promoted(spec: Pointwise, inputs: ParsedInputs, tensors: list[Operand]) -> str | None:
    dtype = promote((tensor.dtype, not tensor.dims) for tensor in tensors)
    if dtype is None or category(dtype) >= FLOAT:
        return dtype
    # A Python number among the arguments:
    # 2 leaves an integer tensor's type as it is, 2.5 makes it the default float.
    scalars = [index for index in range(spec.num_args) if is_scalar(inputs, index)]
    is_float = any(
        number_at(inputs, index) is not None and integer_at(inputs, index) is None
        for index in scalars
    )
    return "fp32" if is_float or spec.out_dtype == "float" else dtype


def backward_work(op: str, inputs: ParsedInputs) -> Work | None:
    """The generic rule: the gradient of a function of one tensor
    is pointwise in that tensor and in the gradient it gets."""
    base = op.removesuffix("_backward")
    if base == op or base not in POINTWISE or POINTWISE[base].num_args != 1:
        return None
    return pointwise_work(Pointwise(num_args=2, flops=POINTWISE[base].flops + 1), inputs)


def glu_work(inputs: ParsedInputs) -> Work | None:
    """glu(self, dim): one half times the sigmoid of the other."""
    tensor = operand(inputs, 0)
    if tensor is None or tensor.numel % 2:
        return None
    moved = total(read_bytes(tensor), size_bytes(tensor.numel // 2, tensor.dtype))
    return make_work("pointwise", flops=tensor.numel // 2 * 5, moved=moved, precision=tensor.dtype)


_UNARY = """abs acos acosh angle asin asinh atan atanh bitwise_not ceil celu conj_physical cos cosh
deg2rad digamma elu erf erfc erfinv exp exp2 expm1 floor frac gelu hardshrink hardsigmoid hardswish
hardtanh i0 isfinite isinf isnan isneginf isposinf leaky_relu lgamma log log10 log1p log2
logical_not logit mish nan_to_num neg positive rad2deg reciprocal relu relu6 round rsqrt selu sgn
sigmoid sign signbit silu sin sinc sinh softplus softshrink special_entr special_erfcx special_i0e
special_i1 special_i1e special_ndtri sqrt square tan tanh threshold tril triu trunc"""
_BINARY = """__and__ __lshift__ __or__ __rshift__ __xor__ _prelu_kernel add atan2 bitwise_and
bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor clamp_max clamp_min copysign div
divide eq float_power floor_divide fmax fmin fmod gcd ge gelu_backward gt hardswish_backward
hardtanh_backward heaviside huber_loss hypot lcm ldexp le leaky_relu_backward logaddexp
logaddexp2 logical_and logical_or logical_xor logit_backward lt masked_fill maximum minimum
mish_backward mse_loss mul multiply ne nextafter pow remainder rsub sigmoid_backward
silu_backward smooth_l1_loss soft_margin_loss softplus_backward sub subtract tanh_backward
threshold_backward true_divide xlogy"""
_TERNARY = """addcdiv addcmul binary_cross_entropy clamp clip huber_loss_backward lerp
log_sigmoid_backward mse_loss_backward smooth_l1_loss_backward soft_margin_loss_backward where"""

_NUM_ARGS = {
    **dict.fromkeys(_UNARY.split(), 1),
    **dict.fromkeys(_BINARY.split(), 2),
    **dict.fromkeys(_TERNARY.split(), 3),
    "masked_fill": 3,
    "binary_cross_entropy_backward": 4,
    "elu_backward": 6,  # (grad_output, alpha, scale, input_scale, is_result, self_or_result)
}
# Operations per element where it is not one. gelu is x/2 * (1 + erf(x / sqrt 2)); its gradient adds
# x * exp(-x*x/2), a product. silu is x / (1 + exp(-x)); its gradient is grad * s * (1 + x * (1 -
# s)) once s is there. The first line moves data and no more.
_FLOPS_OF = {
    0: "positive tril triu where masked_fill",
    2: "xlogy mse_loss",
    3: (
        "addcmul addcdiv lerp softplus selu elu logit sigmoid_backward tanh_backward "
        "mse_loss_backward"
    ),
    4: "silu sigmoid hardswish hardswish_backward softplus_backward logaddexp logaddexp2 hypot "
    "logit_backward smooth_l1_loss huber_loss smooth_l1_loss_backward huber_loss_backward",
    5: "gelu mish",
    6: "binary_cross_entropy binary_cross_entropy_backward",
    8: "mish_backward",
    9: "silu_backward",
    10: "gelu_backward",
}
_FLOPS = {name: flops for flops, names in _FLOPS_OF.items() for name in names.split()}
_TO_BOOL = """eq ge gt isfinite isinf isnan isneginf isposinf le logical_and logical_not logical_or
logical_xor lt ne signbit"""
_TO_FLOAT = """acos acosh asin asinh atan atan2 atanh cos cosh deg2rad digamma div divide erf erfc
erfinv exp exp2 expm1 i0 lgamma log log10 log1p log2 logaddexp logaddexp2 logit rad2deg reciprocal
rsqrt sigmoid sin sinc sinh sqrt tan tanh true_divide xlogy"""
_OUT_DTYPES = {
    **dict.fromkeys(_TO_BOOL.split(), "bool"),
    **dict.fromkeys(_TO_FLOAT.split(), "float"),
}
_MASKS = {"where": 0, "masked_fill": 1}


def _spec(name: str, *, in_place: bool) -> Pointwise:
    return Pointwise(
        num_args=_NUM_ARGS[name],
        flops=_FLOPS.get(name, 1),
        kind="loss" if "_loss" in name or "cross_entropy" in name else "pointwise",
        in_place=in_place,
        out_dtype=_OUT_DTYPES.get(name, ""),
        mask=_MASKS.get(name),
    )


_IN_PLACE = [
    name for name in _NUM_ARGS if not name.endswith(("_backward", "_loss", "_entropy", "__"))
]
POINTWISE = {f"aten::{name}": _spec(name, in_place=False) for name in _NUM_ARGS} | {
    f"aten::{name}_": _spec(name, in_place=True) for name in _IN_PLACE
}
_OWN: Mapping[str, Model] = {
    op: partial(pointwise_work, spec) for op, spec in POINTWISE.items()
} | {"aten::glu": glu_work}


FUSED = {
    # Kingma and Ba 2015, algorithm 1: first moment (3), second moment (4), two bias corrections
    # (2), root and epsilon (2), step (3); decoupled weight decay (2) as in Loshchilov and Hutter
    # 2019, algorithm 2.
    "_fused_adam": 14,
    "_fused_adamw": 16,
    # Weight decay (2), momentum (3), step (2).
    "_fused_sgd": 7,
    # Weight decay (2), sum of squares (2), root and epsilon (2), step (3).
    "_fused_adagrad": 9,
}
_LISTS = {
    "_foreach_norm": (2, "reduction"),
    "_foreach_max": (1, "reduction"),
    "_foreach_copy": (0, "copy"),
    "_foreach_zero": (0, "copy"),
    "_foreach_clone": (0, "copy"),
    "_amp_foreach_non_finite_check_and_unscale": (1, "pointwise"),
}


def list_work(inputs: ParsedInputs, *, flops: int, kind: str) -> Work | None:
    """Work of so many FLOPs for each element of the first list."""
    shapes = shapes_at(inputs, 0)
    if shapes is None:
        return None
    return make_work(
        kind, flops=flops * sum(prod(shape) for shape in shapes), moved=None, precision=None
    )


def _with_in_place(name: str) -> tuple[str, str]:
    return f"aten::{name}", f"aten::{name}_"


_POINTWISE_LISTS = {
    op.replace("aten::", "aten::_foreach_"): partial(list_work, flops=spec.flops, kind="pointwise")
    for op, spec in POINTWISE.items()
    if not op.endswith("_backward")
}
OPTIMIZERS: Mapping[str, Model] = {
    **_POINTWISE_LISTS,
    **{
        op: partial(list_work, flops=flops, kind=kind)
        for name, (flops, kind) in _LISTS.items()
        for op in _with_in_place(name)
    },
    **{
        op: partial(list_work, flops=flops, kind="optimizer")
        for name, flops in FUSED.items()
        for op in _with_in_place(name)
    },
}


class Reduction(Struct, frozen=True, kw_only=True):
    flops: int = 1
    """FLOPs per element of the input."""
    one_dim: bool = False
    """An overload takes a single dimension, followed by keepdim."""
    has_indices: bool = False
    """Whether that overload gives the indices too."""
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
REDUCTION_MODELS: Mapping[str, Model] = {
    **{f"aten::{name}": partial(reduction_work, spec) for name, spec in REDUCTIONS.items()},
    **{
        f"aten::{name}": partial(scan_work, flops=flops, out_dtypes=gives)
        for name, (flops, gives) in _SCANS.items()
    },
    "aten::topk": topk_work,
}
MODELS: Mapping[str, Model] = {**_OWN, **OPTIMIZERS, **REDUCTION_MODELS}
