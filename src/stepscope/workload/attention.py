"""Fused attention: two products over the attended (query, key) pairs forward, four backward,
and a fifth that flash recomputes.

Forward, per head: scores = Q K^T (2*d FLOPs a pair) and P V (2*dv). Backward: dV = P^T dO, dP = dO
V^T (2*dv each), dQ = dS K, dK = dS^T Q (2*d each): twice the forward pass, which is what metrics.md
counts as model FLOPs. Flash kernels keep no scores and compute Q K^T again (Dao 2022,
FlashAttention, section 3.1 and algorithm 4): 2.5 times the forward pass when d = dv. That is
`hardware_flops`, and what torch.utils.flop_counter reports (which never halves for causal).

Recurrent layers: each step of each direction multiplies
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
from msgspec.structs import replace

from stepscope.workload.inputs import ParsedInputs, flag_at, integer_at, integers_at, text_at
from stepscope.workload.operands import (
    Model,
    Operand,
    Work,
    make_work,
    operand,
    operands,
    read_bytes,
    size_bytes,
    total,
    written_bytes,
)

HEADS_FIRST = "bhsd"
SEQUENCE_FIRST = "bshd"


class Attention(Struct, frozen=True, kw_only=True):
    """One fused attention operator."""

    layout: str
    query: int
    """key and value follow it."""
    causal: tuple[int, ...]
    """Indices at which is_causal may be."""
    mask_type: tuple[int, ...] = ()
    """Instead of `causal`: where custom_mask_type may stand, right before a truth value (0 none,
    1 top-left, 2 bottom-right)."""
    bottom_right: bool = False
    """Where the causal diagonal ends when the lengths differ:
    flash-attn 2.1 and later bottom-right, aten's SDPA top-left."""
    window: int | None = None
    """window_size_left, its right one after it; -1 or None is no window."""
    lengths: int | None = None
    """cu_seqlens_q, cu_seqlens_k after it: several sequences packed into one."""
    max_lengths: int | None = None
    also_read: tuple[int, ...] = ()
    unreadable: tuple[int, ...] = ()
    """Arguments that, when given, make the work depend on what the record does not have:
    used lengths, page tables, chunks."""
    is_backward: bool = False


_SDPA = Attention(layout=HEADS_FIRST, query=0, causal=(4,))
_SDPA_BACKWARD = Attention(
    layout=HEADS_FIRST, query=1, causal=(11,), also_read=(0, 4, 5), is_backward=True
)
_FLASH = Attention(
    layout=SEQUENCE_FIRST,
    query=0,
    causal=(8,),
    bottom_right=True,
    window=11,
    lengths=3,
    max_lengths=5,
    unreadable=(13, 15),
)
_FLASH_BACKWARD = Attention(
    layout=SEQUENCE_FIRST,
    query=1,
    causal=(11,),
    bottom_right=True,
    window=15,
    lengths=6,
    max_lengths=8,
    also_read=(0, 4, 5),
    is_backward=True,
)
_EFFICIENT = Attention(
    layout=SEQUENCE_FIRST,
    query=0,
    causal=(),
    mask_type=(9, 8),
    lengths=4,
    max_lengths=6,
    also_read=(3,),
    unreadable=(12, 13),
)
_EFFICIENT_BACKWARD = Attention(
    layout=SEQUENCE_FIRST,
    query=1,
    causal=(),
    mask_type=(14,),
    lengths=6,
    max_lengths=8,
    also_read=(0, 4, 5, 10),
    unreadable=(18,),
    is_backward=True,
)
_CUDNN = Attention(
    layout=HEADS_FIRST, query=0, causal=(10,), lengths=4, max_lengths=6, also_read=(3,)
)
_CUDNN_BACKWARD = Attention(
    layout=HEADS_FIRST,
    query=1,
    causal=(14, 11),
    lengths=9,
    max_lengths=11,
    also_read=(0, 4, 5, 8),
    is_backward=True,
)
_DAO = Attention(layout=SEQUENCE_FIRST, query=0, causal=(5,), bottom_right=True, window=6)
_DAO_BACKWARD = replace(
    _DAO, query=1, causal=(11,), window=12, also_read=(0, 4, 5), is_backward=True
)
_DAO_3 = replace(
    _DAO,
    causal=(24,),
    window=25,
    lengths=7,
    max_lengths=12,
    unreadable=(3, 4, 5, 10, 11, 14, 15, 16, 27),
)
_XFORMERS_BACKWARD = replace(
    _DAO,
    query=2,
    causal=(13,),
    window=14,
    lengths=7,
    max_lengths=9,
    also_read=(1, 5, 6),
    is_backward=True,
)

ATTENTIONS = {
    "aten::scaled_dot_product_attention": replace(_SDPA, causal=(5,), also_read=(3,)),
    "aten::_scaled_dot_product_attention_math": replace(_SDPA, causal=(5,), also_read=(3,)),
    "aten::_scaled_dot_product_flash_attention": replace(_SDPA, causal=(4, 7)),
    "aten::_scaled_dot_product_flash_attention_backward": _SDPA_BACKWARD,
    "aten::_scaled_dot_product_flash_attention_for_cpu": replace(_SDPA, also_read=(5,)),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": replace(
        _SDPA_BACKWARD, causal=(7,), also_read=(0, 4, 5, 8)
    ),
    "aten::_scaled_dot_product_efficient_attention": replace(_SDPA, causal=(6,), also_read=(3,)),
    "aten::_scaled_dot_product_efficient_attention_backward": replace(
        _SDPA_BACKWARD, also_read=(0, 4, 5, 6)
    ),
    "aten::_scaled_dot_product_cudnn_attention": replace(_SDPA, causal=(6, 4), also_read=(3,)),
    "aten::_scaled_dot_product_cudnn_attention_backward": _CUDNN_BACKWARD,
    "aten::_scaled_dot_product_fused_attention_overrideable": replace(
        _SDPA, causal=(5,), also_read=(3,)
    ),
    "aten::_scaled_dot_product_fused_attention_overrideable_backward": replace(
        _SDPA_BACKWARD, causal=(13,), also_read=(0, 4, 6, 7)
    ),
    "aten::_flash_attention_forward": _FLASH,
    "aten::_flash_attention_backward": _FLASH_BACKWARD,
    "aten::_efficient_attention_forward": _EFFICIENT,
    "aten::_efficient_attention_backward": _EFFICIENT_BACKWARD,
    "aten::_cudnn_attention_forward": _CUDNN,
    "aten::_cudnn_attention_backward": _CUDNN_BACKWARD,
    "flash_attn::_flash_attn_forward": _DAO,
    "flash_attn::_flash_attn_backward": _DAO_BACKWARD,
    "flash_attn::_flash_attn_varlen_forward": replace(
        _DAO, causal=(9,), window=10, lengths=3, max_lengths=5, unreadable=(15, 16, 17)
    ),
    "flash_attn::_flash_attn_varlen_backward": replace(
        _DAO_BACKWARD, causal=(15,), window=16, lengths=9, max_lengths=11
    ),
    "flash_attn_3::fwd": _DAO_3,
    "flash_attn_3::bwd": replace(
        _DAO_BACKWARD, causal=(16,), window=17, lengths=9, max_lengths=13, unreadable=(11, 12)
    ),
    "xformers_flash::flash_fwd": replace(
        _DAO, causal=(10,), window=11, lengths=3, max_lengths=6, unreadable=(5, 14)
    ),
    "xformers_flash::flash_bwd": _XFORMERS_BACKWARD,
    "xformers_flash3::flash_fwd": replace(
        _DAO, causal=(11,), window=17, lengths=3, max_lengths=7, unreadable=(5, 6, 15)
    ),
    "xformers_flash3::flash_bwd": replace(_XFORMERS_BACKWARD, causal=(12,), window=13),
    "aiter::mha_fwd": _DAO,
    "aiter::fmha_v3_fwd": _DAO,
    "aiter::_flash_attn_forward": replace(_DAO, also_read=(8,)),
    "aiter::mha_bwd": replace(_DAO_BACKWARD, causal=(8,), window=9),
}


UNBOUNDED = float("inf")


class Sizes(Struct, frozen=True, kw_only=True):
    """What an attention is of; `sequences` is None when packed sequences' lengths are not known."""

    sequences: int | None
    length_q: int
    length_k: int
    heads: int
    head_dim: int
    head_dim_v: int


class Band(Struct, frozen=True, kw_only=True):
    """The keys a query at the same position may see: from `left` before it to `right` after it."""

    left: float
    right: float
    bottom_right: bool


def attention_work(spec: Attention, inputs: ParsedInputs) -> Work | None:
    """The work of one fused attention, forward or backward."""
    query, key, value = (operand(inputs, spec.query + index) for index in range(3))
    if (
        query is None
        or key is None
        or value is None
        or any(_is_given(inputs, index) for index in spec.unreadable)
    ):
        return None
    sizes = _sizes(spec, inputs, query, key, value)
    if sizes is None:
        return None
    moved = _moved(spec, inputs, query, key, value)
    band = _band(spec, inputs)
    precision = query.dtype if query.dtype == key.dtype else None
    if band is None or sizes.sequences is None:
        return make_work("attention", flops=None, moved=moved, precision=precision)
    pairs = sizes.sequences * sizes.heads * attended_pairs(sizes.length_q, sizes.length_k, band)
    forward = 2 * pairs * (sizes.head_dim + sizes.head_dim_v)
    if not spec.is_backward:
        return make_work("attention", flops=forward, moved=moved, precision=precision)
    recomputed = 2 * pairs * sizes.head_dim
    return make_work(
        "attention",
        flops=2 * forward,
        moved=moved,
        precision=precision,
        hardware_flops=2 * forward + recomputed,
    )


def sizes_of(op: str, inputs: ParsedInputs) -> tuple[Sizes, bool] | None:
    """What a fused attention is of, and whether it is causal; None for other operators, and where
    the record does not say."""
    spec = ATTENTIONS.get(op)
    if spec is None or any(_is_given(inputs, index) for index in spec.unreadable):
        return None
    query, key, value = (operand(inputs, spec.query + index) for index in range(3))
    if query is None or key is None or value is None:
        return None
    sizes, band = _sizes(spec, inputs, query, key, value), _band(spec, inputs)
    if sizes is None or band is None or sizes.sequences is None or band.left != UNBOUNDED:
        return None
    return sizes, band.right == 0


def attended_pairs(length_q: int, length_k: int, band: Band) -> float:
    """The area of the band in the score matrix:
    exactly half of it when causal and square, as metrics.md counts.

    A row t of [0, length_q) sees the keys between its two edges, clipped to [0, length_k). The area
    under one clipped edge t + c is F(length_q + c) - F(c), with F the integral of min(max(x, 0),
    length_k).
    """
    shift = length_k - length_q if band.bottom_right else 0
    upper = _area_under(shift + band.right, length_q, length_k)
    return max(upper - _area_under(shift - band.left, length_q, length_k), 0.0)


def _area_under(start: float, length_q: int, length_k: int) -> float:
    if start >= length_k:
        return float(length_q) * length_k
    if start <= -length_q:
        return 0.0
    return _integral(length_q + start, length_k) - _integral(start, length_k)


def _integral(end: float, ceiling: int) -> float:
    rising = min(max(end, 0.0), ceiling)
    return rising * rising / 2 + max(end - ceiling, 0.0) * ceiling


def _band(spec: Attention, inputs: ParsedInputs) -> Band | None:
    """Band of keys that a query sees; `None` when the record does not say whether it is causal."""
    if spec.mask_type:
        return _masked_band(spec, inputs)
    flags = (flag_at(inputs, index) for index in spec.causal)
    causal = next((flag for flag in flags if flag is not None), None)
    left = _window(inputs, spec.window)
    right = _window(inputs, None if spec.window is None else spec.window + 1)
    if causal is None or left is None or right is None:
        return None
    return Band(
        left=left, right=min(right, 0.0) if causal else right, bottom_right=spec.bottom_right
    )


def _masked_band(spec: Attention, inputs: ParsedInputs) -> Band | None:
    for index in spec.mask_type:
        mask = integer_at(inputs, index)
        if mask in (0, 1, 2) and flag_at(inputs, index + 1) is not None:
            return Band(left=UNBOUNDED, right=0.0 if mask else UNBOUNDED, bottom_right=mask == 2)
    return None


def _window(inputs: ParsedInputs, index: int | None) -> float | None:
    if (
        index is None
        or index >= len(inputs.types)
        or (inputs.types[index] == "" and text_at(inputs, index) is None)
    ):
        return UNBOUNDED
    size = integer_at(inputs, index)
    if size is None:
        return None
    return float(size) if size >= 0 else UNBOUNDED


def _is_given(inputs: ParsedInputs, index: int) -> bool:
    if operand(inputs, index) is not None:
        return True
    return text_at(inputs, index) not in (None, "0")


def _sizes(
    spec: Attention, inputs: ParsedInputs, query: Operand, key: Operand, value: Operand
) -> Sizes | None:
    lengths = None if spec.lengths is None else operand(inputs, spec.lengths)
    sequence, head = (-2, -3) if spec.layout == HEADS_FIRST and len(query.dims) == 4 else (-3, -2)
    if not len(query.dims) == len(key.dims) == len(value.dims) or len(query.dims) not in (3, 4):
        return None
    if len(query.dims) == 3 and lengths is None:
        return None
    heads, heads_k, dim, dim_v = query.dims[head], key.dims[head], query.dims[-1], value.dims[-1]
    length_q, length_k = query.dims[sequence], key.dims[sequence]
    if key.dims[-1] != dim or value.dims[:-1] != key.dims[:-1] or not heads_k or heads % heads_k:
        return None
    batch = query.dims[0] if len(query.dims) == 4 else 1
    if len(query.dims) == 4 and key.dims[0] != batch:
        return None
    count: int | None = batch
    if lengths is not None:
        packed = _packed(spec, inputs, lengths.numel - 1, batch * length_q, batch * length_k)
        count, length_q, length_k = packed or (None, length_q, length_k)
    return Sizes(
        sequences=count,
        length_q=length_q,
        length_k=length_k,
        heads=heads,
        head_dim=dim,
        head_dim_v=dim_v,
    )


def _packed(
    spec: Attention, inputs: ParsedInputs, count: int, tokens_q: int, tokens_k: int
) -> tuple[int, int, int] | None:
    """The number and lengths of packed sequences, where they follow:
    there is one, or all are as long as the longest."""
    if count == 1:
        return 1, tokens_q, tokens_k
    if spec.max_lengths is None:
        return None
    longest_q = integer_at(inputs, spec.max_lengths)
    longest_k = integer_at(inputs, spec.max_lengths + 1)
    if (
        count < 1
        or longest_q is None
        or longest_k is None
        or count * longest_q != tokens_q
        or count * longest_k != tokens_k
    ):
        return None
    return count, longest_q, longest_k


def _moved(
    spec: Attention, inputs: ParsedInputs, query: Operand, key: Operand, value: Operand
) -> float | None:
    reads = read_bytes(query, key, value, *operands(inputs, spec.also_read))
    if spec.is_backward:
        return total(reads, written_bytes(query, key, value))
    rows = query.numel // query.dims[-1] if query.dims[-1] else 0
    out_dtype = (
        "bf16" if query.dtype == "fp8" else query.dtype
    )  # fp8 kernels write bf16 (hopper/flash_api.cpp, out_type)
    return total(
        reads, size_bytes(rows * value.dims[-1], out_dtype), size_bytes(rows, "fp32")
    )  # and the log-sum-exp


_OWN: Mapping[str, Model] = {op: partial(attention_work, spec) for op, spec in ATTENTIONS.items()}


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


RECURRENT: Mapping[str, Model] = {
    "aten::_cudnn_rnn": partial(rnn_work, Rnn(mode=6, projection=8, num_layers=9, passes=1)),
    "aten::_cudnn_rnn_backward": partial(
        rnn_work, Rnn(mode=10, projection=12, num_layers=13, passes=2)
    ),
    "aten::miopen_rnn": partial(rnn_work, Rnn(mode=5, projection=None, num_layers=7, passes=1)),
    "aten::miopen_rnn_backward": partial(
        rnn_work, Rnn(mode=10, projection=None, num_layers=12, passes=2)
    ),
}
MODELS: Mapping[str, Model] = {**_OWN, **RECURRENT}
