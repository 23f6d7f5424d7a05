"""Operators that move bytes and compute nothing: copies, fills, concatenation, indexing, embedding.

A lookup reads the rows it looks up, but never counts more than the whole table: rows that repeat
are read once from memory. What is filled with zeros before it (a gradient's table) is another
operator's work.

Operators that pass over their tensors and write others of the same shapes:
norms, softmax, dropout, gradients of them.

FLOPs are counted per element and small compared with the bytes;
each count's derivation is next to it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from math import ceil, prod

from msgspec import Struct
from msgspec.structs import replace

from stepscope.workload.inputs import (
    ParsedInputs,
    flag_at,
    flags_at,
    integer_at,
    integers_at,
    is_scalar,
    number_at,
)
from stepscope.workload.operands import (
    Model,
    Operand,
    Work,
    make_work,
    operand,
    operands,
    out_after,
    read_bytes,
    scalar_type_at,
    shapes_at,
    size_bytes,
    total,
    written_bytes,
)


def _moves(kind: str, *sizes: float | None) -> Work | None:
    """Work that moves so many bytes and computes nothing."""
    return make_work(kind, flops=0, moved=total(*sizes), precision=None)


def copy_work(inputs: ParsedInputs, *, to: int = 0, source: int = 1) -> Work | None:
    """copy_(self, src): the source read, the destination written."""
    written, read = operand(inputs, to), operand(inputs, source)
    if written is None or read is None:
        return None
    return _moves("copy", read_bytes(read), written_bytes(written))


def cast_work(inputs: ParsedInputs) -> Work | None:
    """to(self, dtype): known only where a ScalarType follows the tensor."""
    tensor, dtype = operand(inputs, 0), scalar_type_at(inputs, 1)
    if tensor is None or dtype is None or not is_scalar(inputs, 1):
        return None
    return _moves("copy", read_bytes(tensor), size_bytes(tensor.numel, dtype))


def fill_work(inputs: ParsedInputs, *, kind: str = "copy") -> Work | None:
    """The first tensor written, not read."""
    tensor = operand(inputs, 0)
    return None if tensor is None else _moves(kind, written_bytes(tensor))


def arange_work(inputs: ParsedInputs) -> Work | None:
    """arange(start, end, step, out):
    the output is sized by the call, so its recorded dims are stale."""
    out = out_after(inputs, 0)
    start, end, step = (number_at(inputs, index) for index in range(3))
    if out is None or start is None or end is None or not step:
        return None
    span = (end - start) / step
    if not 0 <= span < 2**63:
        return None
    return _moves("copy", size_bytes(ceil(span), out.dtype))


def cat_work(inputs: ParsedInputs) -> Work | None:
    """cat(tensors, dim): the list's type is known only through an out= tensor,
    which comes last or, in old traces, first."""
    first, out = operand(inputs, 0), out_after(inputs, 1)
    if first is not None and "TensorList" in inputs.types[1:2] and first.numel:
        return _moves("copy", written_bytes(first), written_bytes(first))
    shapes = shapes_at(inputs, 0)
    if shapes is None:
        return None
    elements = sum(prod(shape) for shape in shapes)
    return _moves("copy", None if out is None else size_bytes(2 * elements, out.dtype))


def index_select_work(inputs: ParsedInputs) -> Work | None:
    """index_select(self, dim, index): whole slices."""
    table, dim, index = operand(inputs, 0), integer_at(inputs, 1), operand(inputs, 2)
    if (
        table is None
        or index is None
        or dim is None
        or not -len(table.dims) <= dim < len(table.dims)
    ):
        return None
    slices = table.numel // table.dims[dim] if table.dims[dim] else 0
    return _lookup("indexing", table, index, slices * index.numel)


def embedding_work(inputs: ParsedInputs) -> Work | None:
    """embedding(weight, indices): a row for each index."""
    table, index = operand(inputs, 0), operand(inputs, 1)
    if table is None or index is None or len(table.dims) != 2:
        return None
    return _lookup("embedding", table, index, index.numel * table.dims[1])


def gather_work(inputs: ParsedInputs) -> Work | None:
    """gather(self, dim, index) and take(self, index): an element for each index."""
    table = operand(inputs, 0)
    index = operand(inputs, 2) or operand(inputs, 1)
    return (
        None if table is None or index is None else _lookup("indexing", table, index, index.numel)
    )


def _lookup(kind: str, table: Operand, index: Operand, elements: int) -> Work | None:
    looked_up = size_bytes(min(elements, table.stored), table.dtype)
    return _moves(kind, looked_up, read_bytes(index), size_bytes(elements, table.dtype))


def embedding_backward_work(inputs: ParsedInputs) -> Work | None:
    """embedding_dense_backward(grad, indices, num_weights):
    gradient rows added into the rows looked up, at most all of them."""
    grad, index, rows = operand(inputs, 0), operand(inputs, 1), integer_at(inputs, 2)
    if grad is None or index is None or rows is None or rows < 0 or not grad.dims:
        return None
    touched = min(index.numel, rows) * grad.dims[-1]
    moved = total(read_bytes(grad, index), size_bytes(touched, grad.dtype))
    return make_work("embedding", flops=grad.numel, moved=moved, precision=grad.dtype)


def scatter_work(inputs: ParsedInputs, *, adds: bool) -> Work | None:
    """scatter_(self, dim, index, src), index_add_, index_copy_:
    the source put, or added, where the indices say."""
    table, index, source = operand(inputs, 0), operand(inputs, 2), operand(inputs, 3)
    if table is None or index is None or (source is None and not is_scalar(inputs, 3)):
        return None
    elements = index.numel if source is None else source.numel
    touched = size_bytes(min(elements, table.numel), table.dtype)
    moved = total(read_bytes(index, source), touched, touched if adds else 0.0)
    return make_work(
        "indexing",
        flops=elements if adds else 0,
        moved=moved,
        precision=table.dtype if adds else None,
    )


def nll_loss_work(inputs: ParsedInputs, *, scores_at: int = 0) -> Work | None:
    """nll_loss_forward(self, target): one element of each row; nll_loss_backward(grad, self,
    target): the same, written into zeros."""
    scores, target = operand(inputs, scores_at), operand(inputs, scores_at + 1)
    if scores is None or target is None:
        return None
    moved = total(read_bytes(target), size_bytes(target.numel, scores.dtype))
    return make_work("loss", flops=target.numel, moved=moved, precision=scores.dtype)


def cross_entropy_work(inputs: ParsedInputs) -> Work | None:
    """cross_entropy_loss(self, target) in one pass over the scores:
    max, subtract, exp, add, and the target's score."""
    scores, target = operand(inputs, 0), operand(inputs, 1)
    if scores is None or target is None:
        return None
    return make_work(
        "loss", flops=4 * scores.numel, moved=read_bytes(scores, target), precision=scores.dtype
    )


# An Inductor kernel's name lists the operators fused in it. With nothing but functions of one
# tensor and views in the name, and two tensors as large as the iteration, one is the input and the
# other the output. Any other fusion may update a tensor in place, which the record does not show:
# no model.
_ONE_TENSOR = (
    "_to_copy|clone|view|_unsafe_view|reshape|permute|transpose|unsqueeze|squeeze|t|expand|relu|gelu|silu|tanh|sigmoid|exp|neg|abs|"
    "sqrt|rsqrt|sin|cos|square|reciprocal"
)
_UNARY_KERNEL = re.compile(rf"triton_poi_fused_(?:(?:{_ONE_TENSOR})_)+\d+")


def inductor_work(op: str, inputs: ParsedInputs) -> Work | None:
    """A compiled kernel that surely reads one tensor and writes another; bytes only."""
    if not _UNARY_KERNEL.fullmatch(op):
        return None
    tensors = operands(inputs, range(len(inputs.dims)))
    elements = [
        integer_at(inputs, index) for index in range(len(inputs.dims)) if is_scalar(inputs, index)
    ]
    if (
        len(tensors) != 2
        or len(elements) != 1
        or any(tensor.numel != elements[0] for tensor in tensors)
    ):
        return None
    return make_work("pointwise", flops=None, moved=read_bytes(*tensors), precision=None)


_RANDOM = "uniform_ normal_ bernoulli_ random_ exponential_ geometric_ log_normal_ cauchy_"
_CLONES = "clone contiguous flip roll _local_scalar_dense"
_SCATTERS = {
    **dict.fromkeys(("scatter", "scatter_", "index_copy", "index_copy_"), False),
    **dict.fromkeys(
        (
            "scatter_add",
            "scatter_add_",
            "index_add",
            "index_add_",
            "scatter_reduce",
            "scatter_reduce_",
        ),
        True,
    ),
}
_OWN: Mapping[str, Model] = {
    "aten::copy_": copy_work,
    **{f"aten::{name}": partial(copy_work, source=0) for name in _CLONES.split()},
    "aten::to": cast_work,
    "aten::_to_copy": cast_work,
    "aten::fill_": fill_work,
    "aten::zero_": fill_work,
    **{f"aten::{name}": partial(fill_work, kind="random") for name in _RANDOM.split()},
    "aten::arange": arange_work,
    "aten::cat": cat_work,
    "aten::stack": cat_work,
    "aten::index_select": index_select_work,
    "aten::embedding": embedding_work,
    "aten::gather": gather_work,
    "aten::take": gather_work,
    "aten::embedding_dense_backward": embedding_backward_work,
    **{f"aten::{name}": partial(scatter_work, adds=adds) for name, adds in _SCATTERS.items()},
    "aten::nll_loss_forward": nll_loss_work,
    "aten::nll_loss": nll_loss_work,
    "aten::nll_loss2d_forward": nll_loss_work,
    "aten::nll_loss_backward": partial(nll_loss_work, scores_at=1),
    "aten::nll_loss2d_backward": partial(nll_loss_work, scores_at=1),
    "aten::cross_entropy_loss": cross_entropy_work,
}


class Stream(Struct, frozen=True, kw_only=True):
    """What is read, and which inputs the outputs are like."""

    kind: str
    flops: int
    """FLOPs per element of the input at `like[0]`, or at `reads[0]` when nothing of its size is
    written."""
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
STREAM_MODELS: Mapping[str, Model] = {
    op: partial(stream_work, spec) for op, spec in STREAMS.items()
}
MODELS: Mapping[str, Model] = {**_OWN, **STREAM_MODELS}
