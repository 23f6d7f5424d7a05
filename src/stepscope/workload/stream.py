"""Operators that pass over their tensors and write others of the same shapes:
norms, softmax, dropout, gradients of them.

FLOPs are counted per element and small compared with the bytes;
each count's derivation is next to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import prod

from msgspec import Struct
from msgspec.structs import replace

from stepscope.workload.inputs import ParsedInputs, flag_at, flags_at, integer_at, integers_at
from stepscope.workload.operands import (
    Model,
    Operand,
    Work,
    make_work,
    operand,
    operands,
    read_bytes,
    scalar_type_at,
    size_bytes,
    total,
    written_bytes,
)


class Stream(Struct, frozen=True, kw_only=True):
    """What is read, and which inputs the outputs are like."""

    kind: str
    flops: int
    """Per element of the input at `like[0]`,
    or at `reads[0]` when nothing of its size is written."""
    reads: tuple[int, ...]
    like: tuple[int, ...] = ()
    """An output has the dims and type of the input at each of these."""
    mask: int | None = None
    """output_mask's index: which of `like` are written."""
    masks: tuple[str, ...] = ()
    """Types of further outputs as large as the first."""
    stats_shape: int | None = None
    """normalized_shape's index: statistics are kept for each row of that shape."""
    stats_count: int | None = None
    """The index of a number of statistics per batch entry (group_norm's groups);
    the batch is `stats_count - 3`."""
    num_stats: int = 0
    wide: int | None = None
    """The index of a truth value that makes the output fp32 (half_to_float)."""
    out_type: int | None = None
    """The index of a ScalarType that names the output's type."""


def stream_work(spec: Stream, inputs: ParsedInputs) -> Work | None:
    like = _written_like(spec, inputs)
    first = operand(inputs, spec.reads[0])
    main = operand(inputs, spec.like[0]) if spec.like else first
    if first is None or main is None or like is None or not _agree(spec, inputs, main):
        return None
    written = total(
        *(_written(spec, inputs, tensor) for tensor in like),
        *(size_bytes(main.numel, dtype) for dtype in spec.masks),
        _stats_bytes(spec, inputs, main),
    )
    moved = total(read_bytes(*operands(inputs, spec.reads)), written)
    return make_work(spec.kind, flops=main.numel * spec.flops, moved=moved, precision=first.dtype)


def _agree(spec: Stream, inputs: ParsedInputs, main: Operand) -> bool:
    """Whether every large tensor read is as large as the main one:
    otherwise these are another operator's inputs."""
    return all(
        tensor.numel <= main.numel or not spec.like for tensor in operands(inputs, spec.reads)
    )


def _written_like(spec: Stream, inputs: ParsedInputs) -> list[Operand] | None:
    if spec.mask is None:
        return operands(inputs, spec.like)
    mask = flags_at(inputs, spec.mask)
    if mask is None:
        return None
    return operands(
        inputs, (index for index, wanted in zip(spec.like, mask, strict=False) if wanted)
    )


def _written(spec: Stream, inputs: ParsedInputs, tensor: Operand) -> float | None:
    if spec.wide is not None:
        wide = flag_at(inputs, spec.wide)
        return None if wide is None else size_bytes(tensor.numel, "fp32" if wide else tensor.dtype)
    if spec.out_type is not None:
        return size_bytes(tensor.numel, scalar_type_at(inputs, spec.out_type))
    return written_bytes(tensor)


def _stats_bytes(spec: Stream, inputs: ParsedInputs, main: Operand) -> float | None:
    """Means and inverse deviations, kept in fp32 (fp64 for fp64): a row's, or a group's."""
    rows: int | None = 0
    if spec.stats_shape is not None:
        weight = operand(inputs, spec.reads[1])
        shape = integers_at(inputs, spec.stats_shape) or (weight.dims if weight is not None else ())
        rows = main.numel // prod(shape) if shape and prod(shape) > 0 else None
    elif spec.stats_count is not None:
        batch = integer_at(inputs, spec.stats_count - 3)
        groups = integer_at(inputs, spec.stats_count)
        rows = None if batch is None or groups is None else batch * groups
    if rows is None:
        return None
    return size_bytes(rows * spec.num_stats, "fp64" if main.dtype == "fp64" else "fp32")


# Forward: mean (1), variance (3: subtract, square, add), normalise (2:
# subtract, multiply), affine (2).
NORM = 8
# Square and add, multiply by the inverse root, multiply by the weight.
RMS_NORM = 4
# x hat (2), d gamma (2), d beta (1), g = dy * gamma (1), sum g (1), sum g * x hat (2),
# dx = rstd * (g - c1 - x hat * c2) (4).
NORM_BACKWARD = 13
# x hat (1), d gamma (2), g (1), sum g * x hat (2), dx (3).
RMS_NORM_BACKWARD = 9
# max, subtract, exp, add, divide; and dy * y, add, subtract, multiply.
SOFTMAX, SOFTMAX_BACKWARD = 5, 4

_LAYER_NORM = Stream(
    kind="norm", flops=NORM, reads=(0, 2, 3), like=(0,), stats_shape=1, num_stats=2
)
_BATCH_NORM = Stream(kind="norm", flops=NORM, reads=(0, 1, 2, 3, 4), like=(0, 1, 1))
_BATCH_NORM_BACKWARD = Stream(
    kind="norm", flops=NORM_BACKWARD, reads=(0, 1, 2, 5, 6), like=(1, 2, 2), mask=9
)
_CUDNN_NORM_BACKWARD = Stream(
    kind="norm", flops=NORM_BACKWARD, reads=(0, 1, 2, 5, 6), like=(0, 2, 2)
)
_GROUP_NORM = Stream(
    kind="norm", flops=NORM, reads=(0, 1, 2), like=(0,), stats_count=6, num_stats=2
)
_RMS_NORM = Stream(kind="norm", flops=RMS_NORM, reads=(0, 2), like=(0,), stats_shape=1, num_stats=1)
_SOFTMAX = Stream(kind="softmax", flops=SOFTMAX, reads=(0,), like=(0,), wide=2)
_SOFTMAX_BACKWARD = Stream(
    kind="softmax", flops=SOFTMAX_BACKWARD, reads=(0, 1), like=(0,), out_type=3
)

STREAMS = {
    "aten::native_layer_norm": _LAYER_NORM,
    "aten::layer_norm": _LAYER_NORM,
    "aten::native_layer_norm_backward": Stream(
        kind="norm", flops=NORM_BACKWARD, reads=(0, 1, 3, 4, 5), like=(1, 5, 6), mask=7
    ),
    "aten::_fused_rms_norm": _RMS_NORM,
    "aten::rms_norm": _RMS_NORM,
    "aten::_fused_rms_norm_backward": Stream(
        kind="norm", flops=RMS_NORM_BACKWARD, reads=(0, 1, 3, 4), like=(1, 4), mask=5
    ),
    **dict.fromkeys(
        (
            "aten::native_batch_norm",
            "aten::cudnn_batch_norm",
            "aten::miopen_batch_norm",
            "aten::batch_norm",
            "aten::_native_batch_norm_legit",
            "aten::_native_batch_norm_legit_no_training",
            "aten::_native_batch_norm_legit_functional",
            "aten::_batch_norm_with_update",
            "aten::_batch_norm_no_update",
            "aten::_batch_norm_impl_index",
        ),
        _BATCH_NORM,
    ),
    "aten::native_batch_norm_backward": _BATCH_NORM_BACKWARD,
    "aten::batch_norm_backward": _BATCH_NORM_BACKWARD,
    "aten::cudnn_batch_norm_backward": _CUDNN_NORM_BACKWARD,
    "aten::miopen_batch_norm_backward": _CUDNN_NORM_BACKWARD,
    # SyncBatchNorm's parts.
    "aten::batch_norm_stats": Stream(kind="norm", flops=4, reads=(0,)),
    "aten::batch_norm_elemt": Stream(kind="norm", flops=4, reads=(0, 1, 2, 3, 4), like=(0,)),
    "aten::batch_norm_backward_reduce": Stream(kind="norm", flops=6, reads=(0, 1, 2, 3, 4)),
    "aten::batch_norm_backward_elemt": Stream(
        kind="norm", flops=7, reads=(0, 1, 2, 3, 4, 5, 6), like=(1,)
    ),
    "aten::native_group_norm": _GROUP_NORM,
    "aten::group_norm": Stream(kind="norm", flops=NORM, reads=(0, 2, 3), like=(0,)),
    "aten::native_group_norm_backward": Stream(
        kind="norm", flops=NORM_BACKWARD, reads=(0, 1, 2, 3, 4), like=(1, 4, 4), mask=9
    ),
    "aten::_softmax": _SOFTMAX,
    "aten::_log_softmax": _SOFTMAX,
    "aten::_safe_softmax": replace(_SOFTMAX, wide=None),
    "aten::_softmax_backward_data": _SOFTMAX_BACKWARD,
    "aten::_log_softmax_backward_data": _SOFTMAX_BACKWARD,
    "aten::_masked_softmax": Stream(kind="softmax", flops=SOFTMAX, reads=(0, 1), like=(0,)),
    "aten::_masked_softmax_backward": Stream(
        kind="softmax", flops=SOFTMAX_BACKWARD, reads=(0, 1, 2), like=(0,)
    ),
    "aten::native_dropout": Stream(kind="dropout", flops=2, reads=(0,), like=(0,), masks=("bool",)),
    "aten::_fused_dropout": Stream(
        kind="dropout", flops=2, reads=(0,), like=(0,), masks=("uint8",)
    ),
    "aten::native_dropout_backward": Stream(kind="dropout", flops=2, reads=(0, 1), like=(0,)),
    "aten::_masked_scale": Stream(kind="dropout", flops=2, reads=(0, 1), like=(0,)),
    "aten::glu_backward": Stream(kind="pointwise", flops=6, reads=(0, 1), like=(1,)),
    # vLLM's kernels write their first argument, or their first two.
    "_C::rms_norm": Stream(kind="norm", flops=RMS_NORM, reads=(1, 2), like=(0,)),
    "_C::fused_add_rms_norm": Stream(kind="norm", flops=RMS_NORM + 1, reads=(0, 1, 2), like=(0, 1)),
    "_C::static_scaled_fp8_quant": Stream(kind="pointwise", flops=2, reads=(1, 2), like=(0,)),
    # An LSTM cell's gates: four non-linearities, then c = f*c + i*g and h = o * tanh(c).
    "aten::_thnn_fused_lstm_cell": Stream(
        kind="pointwise", flops=6, reads=(0, 1, 2, 3, 4), like=(0, 2, 2)
    ),
    "aten::_thnn_fused_gru_cell": Stream(
        kind="pointwise", flops=6, reads=(0, 1, 2, 3, 4), like=(0, 2)
    ),
}
MODELS: Mapping[str, Model] = {op: partial(stream_work, spec) for op, spec in STREAMS.items()}
