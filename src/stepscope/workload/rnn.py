"""Recurrent layers: each step of each direction multiplies
by the input weights and by the recurrent ones.

A cell has gates*H rows: 4 for an LSTM (Hochreiter and Schmidhuber 1997, with forget gates), 3 for a
GRU (Cho 2014), 1 for a plain cell. Per token that is 2*gates*H*(I + R) FLOPs, I the layer's input
and R the size of what is fed back: H, or the projection's. The backward pass costs twice that:
gradients of inputs and of weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import prod

from msgspec import Struct

from stepscope.workload.inputs import ParsedInputs, flag_at, integer_at, integers_at
from stepscope.workload.operands import Model, Work, make_work, operand, size_bytes

# at::native's cudnn_rnn_mode and miopen_rnn_mode.
GATES: Mapping[int | None, int] = {0: 1, 1: 1, 2: 4, 3: 3}
MAX_LAYERS = 1000
"""More are a damaged record."""


class Rnn(Struct, frozen=True, kw_only=True):
    """Where the schema has its arguments;
    batch_first, dropout, train and bidirectional follow num_layers, then batch_sizes."""

    mode: int
    num_layers: int
    projection: int | None
    passes: int


def rnn_work(spec: Rnn, inputs: ParsedInputs) -> Work | None:
    """The work of all layers and directions;
    bytes are those of the input, the output and the weights."""
    tensor = operand(inputs, 0)
    mode, hidden, layers = (
        integer_at(inputs, index) for index in (spec.mode, spec.mode + 1, spec.num_layers)
    )
    both_ways = flag_at(inputs, spec.num_layers + 4)
    packed = integers_at(inputs, spec.num_layers + 5)
    projection = 0 if spec.projection is None else integer_at(inputs, spec.projection)
    if (
        tensor is None
        or mode not in GATES
        or both_ways is None
        or packed is None
        or len(tensor.dims) != (2 if packed else 3)
    ):
        return None
    if (
        hidden is None
        or layers is None
        or projection is None
        or min(hidden, layers) < 1
        or layers > MAX_LAYERS
        or projection < 0
    ):
        return None
    directions = 2 if both_ways else 1
    fed_back = projection or hidden
    weights = 0
    for layer in range(layers):
        fan_in = fed_back * directions if layer else tensor.dims[-1]
        weights += directions * (GATES[mode] * hidden * (fan_in + fed_back) + projection * hidden)
    tokens = prod(tensor.dims[:-1])
    ends = tensor.numel + tokens * directions * fed_back
    moved = size_bytes((ends + weights) * spec.passes, tensor.dtype)
    return make_work(
        "rnn", flops=2 * tokens * weights * spec.passes, moved=moved, precision=tensor.dtype
    )


MODELS: Mapping[str, Model] = {
    "aten::_cudnn_rnn": partial(rnn_work, Rnn(mode=6, projection=8, num_layers=9, passes=1)),
    "aten::_cudnn_rnn_backward": partial(
        rnn_work, Rnn(mode=10, projection=12, num_layers=13, passes=2)
    ),
    "aten::miopen_rnn": partial(rnn_work, Rnn(mode=5, projection=None, num_layers=7, passes=1)),
    "aten::miopen_rnn_backward": partial(
        rnn_work, Rnn(mode=10, projection=None, num_layers=12, passes=2)
    ),
}
