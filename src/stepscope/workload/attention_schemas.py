"""Fused attention operators: where each one's schema has what its work depends on.

Read in: aten/src/ATen/native/native_functions.yaml (torch 2.1 to 2.13),
flash_attn/flash_attn_interface.py (2.7, 2.8), hopper/flash_api.cpp (flash_attn_3),
xformers/ops/fmha/flash.py and flash3.py (0.0.31), aiter/ops/mha.py. Schemas moved between versions;
a position counts only if what stands there has the right type, so `causal` lists the places to
look, newest first.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

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
