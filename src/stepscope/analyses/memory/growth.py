"""What grows with the batch, and what does not.

Weights, their gradients and the optimizer's states do not; nor does a copy of a weight in another
precision (autocast keeps them from forward to backward), or a gradient on its way. All else that
forward and backward make does.
"""

from __future__ import annotations

import re

import numpy as np

from stepscope.analyses.grouping import distinct, matching
from stepscope.analyses.memory.kinds import CODE, Kinds
from stepscope.analyses.memory.lifetimes import DeviceEvents, Lifetimes
from stepscope.analyses.memory.phases import BACKWARD, FORWARD
from stepscope.analyses.rank_context import RankContext
from stepscope.analyses.weights import CASTS, Trained, first_tensor
from stepscope.core.recordings.memory import ACTIVATIONS, GRADIENTS, INPUTS, TEMPORARY
from stepscope.core.trace import NONE, Bool, Int64, Trace
from stepscope.workload.inputs import inputs_of
from stepscope.workload.operands import operand

PRODUCTS = ("aten::mm", "aten::addmm")
MAKERS = (
    "aten::convolution_backward",
    "aten::embedding_dense_backward",
    "aten::native_layer_norm_backward",
    "aten::cudnn_batch_norm_backward",
    "aten::native_batch_norm_backward",
)
"""Operators of the backward pass that make gradients of weights beside those of activations."""
BATCHES = tuple(np.geomspace(1 / 16, 256, 61).tolist())
"""Times today's, for which the peak is looked up: an eighth more from one to the next."""
GROWING = (ACTIVATIONS, TEMPORARY, INPUTS)


REDUCTIONS = re.compile(
    r"^aten::(sum|mean|prod|var|std|var_mean|amax|amin|max|min|logsumexp|linalg_vector_norm)$"
)
PARTIAL_SUMS_BYTES = 1 << 20
"""Bytes of a reduction's partial sums on each multiprocessor, once it fills the device: 132 to 136
MiB of `aten::sum` on an H200's 132, whatever it sums (torch 2.11,
aten/src/ATen/native/cuda/Reduce.cuh)."""


def growing_mask(
    context: RankContext, spans: Lifetimes, kinds: Kinds, operator: Int64, trained: Trained
) -> Bool:
    """Allocations that are larger with a larger batch."""
    grows: Bool = np.isin(kinds.kind, [CODE[name] for name in GROWING])
    grows &= np.isin(kinds.phase, (FORWARD, BACKWARD))
    grows &= ~_of_weights(context.trace, operator, trained)
    return grows & ~_on_its_way(context.trace, operator, spans, kinds, trained)


def partial_sums(context: RankContext, kinds: Kinds, operator: Int64) -> Bool:
    """Where a reduction's blocks leave their sums for one another: no larger than the device is
    wide."""
    is_reduction = matching(context.trace, REDUCTIONS)
    found: Bool = (operator != NONE) & (kinds.kind == CODE[TEMPORARY])
    found[found] = is_reduction[operator[found]]
    return found


def batch_lines(events: DeviceEvents, spans: Lifetimes, grows: Bool) -> list[tuple[int, int]]:
    """Fixed and growing bytes of the moments that are the peak of some batch, as few as that
    takes."""
    size = spans.size[grows]
    times = np.concatenate([spans.start_ns[grows], spans.end_ns[grows]])
    change = np.concatenate([size, -size])
    order = np.lexsort((change, times))
    total = np.concatenate([[0], np.cumsum(change[order])])
    growing = total[np.searchsorted(times[order], events.time_ns, side="right")]
    return _envelope(np.maximum(events.allocated - growing, 0), np.maximum(growing, 0))


def _envelope(fixed: Int64, growing: Int64) -> list[tuple[int, int]]:
    """The moments that are the highest for a batch of some size."""
    highest = {int((fixed + times * growing).argmax()) for times in BATCHES}
    lines = {(int(fixed[index]), int(growing[index])) for index in highest}
    return sorted(lines, key=lambda line: line[1])


def _of_weights(trace: Trace, operator: Int64, trained: Trained) -> Bool:
    """Made by a copy of what has a weight's shape."""
    is_cast = matching(trace, CASTS)
    result = np.zeros(len(operator), np.bool_)
    known: dict[int, bool] = {}
    for index in np.flatnonzero(operator != NONE).tolist():
        op = int(operator[index])
        if not is_cast[op]:
            continue
        detail = int(trace.detail[op])
        if detail not in known:
            tensor = first_tensor(trace, op)
            known[detail] = tensor is not None and tensor[0] in trained.shapes
        result[index] = known[detail]
    return result


def _on_its_way(
    trace: Trace, operator: Int64, spans: Lifetimes, kinds: Kinds, trained: Trained
) -> Bool:
    """Made in backward and no larger with the batch: gradients of weights that are summed up, or
    are cast to the weights' precision."""
    sizes = set(distinct(spans.size[kinds.kind == CODE[GRADIENTS]]).tolist())
    on_way: Bool = (kinds.phase == BACKWARD) & (kinds.kind == CODE[TEMPORARY])
    for index in np.flatnonzero(on_way & (operator != NONE)).tolist():
        op, size = int(operator[index]), int(spans.size[index])
        name = trace.names[trace.name[op]]
        if name in PRODUCTS:
            shape = _product_shape(trace, op)
            on_way[index] = shape in trained.shapes or shape[::-1] in trained.shapes
        elif name in MAKERS:
            on_way[index] = size in sizes or 2 * size in sizes
        else:
            tensor = first_tensor(trace, op)
            on_way[index] = tensor is not None and tensor[0] in trained.shapes
    known: Bool = operator != NONE
    return on_way & known


def _product_shape(trace: Trace, op: int) -> tuple[int, ...]:
    inputs = inputs_of(trace, op)
    if inputs is None:
        return ()
    tensors = [operand(inputs, index) for index in range(len(inputs.dims))]
    shapes = [tensor.dims for tensor in tensors if tensor is not None and len(tensor.dims) == 2]
    return (shapes[-2][0], shapes[-1][1]) if len(shapes) > 1 else ()
