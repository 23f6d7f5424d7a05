"""Pointwise operators: the output has the shape the inputs broadcast to,
and the type they promote to.

A FLOP is one arithmetic operation or one call of a function such as exp: what a pointwise kernel
costs is its bytes, and its FLOPs only need to be small compared with them. An `out=` tensor is one
that comes after the arguments that can be tensors; a name that ends in "_" writes its first
argument, which it also reads.

Operators over lists of tensors: fused optimizers and _foreach_*.

A list's shapes are recorded while it has no more than 30 tensors, its element type never: FLOPs
follow, bytes do not. A list of more gives nothing at all.
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
    integer_at,
    is_scalar,
    number_at,
    promote,
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
    shapes_at,
    size_bytes,
    total,
)


class Pointwise(Struct, frozen=True, kw_only=True):
    num_args: int
    """Arguments that can be tensors; a tensor after them is `out=`."""
    flops: int = 1
    """Per element of the output."""
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
    """So many FLOPs for each element of the first list."""
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
MODELS: Mapping[str, Model] = {**_OWN, **OPTIMIZERS}
