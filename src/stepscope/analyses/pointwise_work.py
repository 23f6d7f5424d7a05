"""Pointwise operators: the output has the shape the inputs broadcast to, and the type they promote to.

A FLOP is one arithmetic operation or one call of a function such as exp: what a pointwise kernel costs is its bytes, and its FLOPs
only need to be small beside them. An `out=` tensor is one that comes after the arguments that can be tensors; a name that ends
in "_" writes its first argument, which it also reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from math import prod

from stepscope.analyses.dtypes import FLOAT, category, promote
from stepscope.analyses.op_inputs import ParsedInputs, integer_at, is_scalar, number_at
from stepscope.analyses.operands import (
    Model,
    Operand,
    Work,
    broadcast,
    make_work,
    operand,
    operands,
    out_after,
    read_bytes,
    size_bytes,
    total,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pointwise:
    """One pointwise operator."""

    num_args: int
    """Arguments that can be tensors; a tensor after them is `out=`."""
    flops: int = 1
    """Per element of the output."""
    kind: str = "pointwise"
    in_place: bool = False
    gives: str = ""
    """"bool"; "float" when integers give a float; "" when the promoted type."""
    mask: int | None = None
    """An argument that chooses, and has no say in the type."""


def pointwise_work(spec: Pointwise, inputs: ParsedInputs) -> Work | None:
    """The work of one pointwise operator."""
    reads = operands(inputs, range(spec.num_args))
    dims = broadcast([tensor.dims for tensor in reads])
    if not reads or dims is None or _has_list(inputs):
        return None
    numbers = operands(inputs, (at for at in range(spec.num_args) if at != spec.mask))
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
        written = out.dtype if out is not None else "bool" if spec.gives == "bool" else precision or ""
    moved = total(read_bytes(*reads), size_bytes(prod(dims), written))
    return make_work(spec.kind, flops=prod(dims) * spec.flops, moved=moved, precision=precision)


def _promoted(spec: Pointwise, inputs: ParsedInputs, tensors: list[Operand]) -> str | None:
    dtype = promote((tensor.dtype, not tensor.dims) for tensor in tensors)
    if dtype is None or category(dtype) >= FLOAT:
        return dtype
    # A Python number among the arguments: 2 leaves an integer tensor's type as it is, 2.5 makes it the default float.
    scalars = [at for at in range(spec.num_args) if is_scalar(inputs, at)]
    is_float = any(number_at(inputs, at) is not None and integer_at(inputs, at) is None for at in scalars)
    return "fp32" if is_float or spec.gives == "float" else dtype


def _has_list(inputs: ParsedInputs) -> bool:
    return "TensorList" in inputs.types


def backward_work(op: str, inputs: ParsedInputs) -> Work | None:
    """The generic rule: the gradient of a pointwise function of one tensor is pointwise in the output's gradient and that tensor."""
    base = op.removesuffix("_backward")
    if base == op or base not in POINTWISE or POINTWISE[base].num_args != 1:
        return None
    return pointwise_work(Pointwise(num_args=2, flops=POINTWISE[base].flops + 1), inputs)


_UNARY = """abs acos acosh angle asin asinh atan atanh ceil celu conj_physical cos cosh deg2rad digamma elu erf erfc erfinv exp exp2
expm1 floor frac gelu hardshrink hardsigmoid hardswish hardtanh i0 leaky_relu lgamma log log10 log1p log2
logit mish nan_to_num neg positive rad2deg reciprocal relu relu6 round rsqrt selu sgn sigmoid sign silu sin sinc sinh softplus
softshrink sqrt square tan tanh threshold trunc bitwise_not logical_not isfinite isinf isnan isneginf isposinf signbit tril triu
special_entr special_i0e special_i1 special_i1e special_ndtri special_erfcx"""
_BINARY = """add atan2 bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor clamp_max clamp_min copysign div
divide eq float_power floor_divide fmax fmin fmod gcd ge gt heaviside hypot lcm ldexp le logaddexp logaddexp2 logical_and
logical_or logical_xor lt masked_fill maximum minimum mul multiply ne nextafter pow _prelu_kernel remainder rsub sub
subtract true_divide xlogy __and__ __or__ __xor__ __lshift__ __rshift__ mse_loss smooth_l1_loss huber_loss
soft_margin_loss hardtanh_backward leaky_relu_backward sigmoid_backward tanh_backward threshold_backward gelu_backward silu_backward
hardswish_backward softplus_backward logit_backward mish_backward"""
_TERNARY = """addcdiv addcmul clamp clip lerp where binary_cross_entropy mse_loss_backward smooth_l1_loss_backward
huber_loss_backward soft_margin_loss_backward log_sigmoid_backward"""

_NUM_ARGS = {
    **dict.fromkeys(_UNARY.split(), 1),
    **dict.fromkeys(_BINARY.split(), 2),
    **dict.fromkeys(_TERNARY.split(), 3),
    "masked_fill": 3,
    "binary_cross_entropy_backward": 4,
    "elu_backward": 6,  # (grad_output, alpha, scale, input_scale, is_result, self_or_result)
}
_FLOPS = {
    # x/2 * (1 + erf(x / sqrt 2)): four multiplications and additions, one erf; its derivative adds exp(-x*x/2) * x and a product.
    **{"gelu": 5, "gelu_backward": 10, "mish": 5, "mish_backward": 8, "softplus": 3, "softplus_backward": 4, "selu": 3, "elu": 3},
    # x / (1 + exp(-x)), and s * (1 + x * (1 - s)) * grad after computing s.
    **{"silu": 4, "silu_backward": 9, "sigmoid": 4, "sigmoid_backward": 3, "tanh_backward": 3, "hardswish": 4, "hardswish_backward": 4},
    **{"addcmul": 3, "addcdiv": 3, "lerp": 3, "add": 1, "xlogy": 2, "logaddexp": 4, "hypot": 4, "logit": 3, "logit_backward": 4},
    **{"mse_loss": 2, "mse_loss_backward": 3, "smooth_l1_loss": 4, "huber_loss": 4, "binary_cross_entropy": 6},
    **{"smooth_l1_loss_backward": 4, "huber_loss_backward": 4, "binary_cross_entropy_backward": 6},
    # These move data; they compute nothing.
    **dict.fromkeys("positive tril triu where masked_fill".split(), 0),
}
_TO_BOOL = """eq ne lt le gt ge isfinite isinf isnan isneginf isposinf signbit logical_and logical_or logical_xor
logical_not"""
_TO_FLOAT = """acos acosh asin asinh atan atanh atan2 cos cosh sin sinh tan tanh deg2rad rad2deg digamma div divide true_divide erf
erfc erfinv exp exp2 expm1 i0 lgamma log log10 log1p log2 logit reciprocal rsqrt sigmoid sinc sqrt xlogy logaddexp logaddexp2"""
_GIVES = {**dict.fromkeys(_TO_BOOL.split(), "bool"), **dict.fromkeys(_TO_FLOAT.split(), "float")}
_MASKS = {"where": 0, "masked_fill": 1}


def _spec(name: str, *, in_place: bool) -> Pointwise:
    return Pointwise(
        num_args=_NUM_ARGS[name],
        flops=_FLOPS.get(name, 1),
        kind="loss" if "_loss" in name or "cross_entropy" in name else "pointwise",
        in_place=in_place,
        gives=_GIVES.get(name, ""),
        mask=_MASKS.get(name),
    )


_IN_PLACE = [name for name in _NUM_ARGS if not name.endswith(("_backward", "_loss", "_entropy", "__"))]
POINTWISE = {f"aten::{name}": _spec(name, in_place=False) for name in _NUM_ARGS} | {
    f"aten::{name}_": _spec(name, in_place=True) for name in _IN_PLACE
}
MODELS: Mapping[str, Model] = {op: partial(pointwise_work, spec) for op, spec in POINTWISE.items()}
