"""What a kernel is, as far as its name says."""

from __future__ import annotations

import re
from functools import lru_cache

CATEGORIES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (category, re.compile(pattern))
    for category, pattern in (
        (
            "collective",
            r"nccl|rccl|oneccl|hccl|msccl|nvshmem|multimem_all|cross_device_reduce|one_shot_all_reduce|two_shot_all_reduce",
        ),
        (
            "attention",
            r"flash|fmha|sdpa|attention|attn_fwd|attn_bwd|bwd_kernel_dk_dv|bwd_kernel_dq|paged_att",
        ),
        (
            "optimizer",
            r"multi_tensor_apply.*(adam|sgd|lamb|optimizer)|fusedoptimizer|fused_adam|adam_?w?_kernel|lamb_stage",
        ),
        ("embedding", r"embedding|vectorized_gather_kernel|index_?select|embs_kernel"),
        ("layout", r"nchwtonhwc|nhwctonchw|tensortransform|batched_transpose|nchw2nhwc"),
        ("norm", r"norm(?!al)|bn_fw|bn_bw|gammabeta|welford"),
        (
            "convolution",
            r"conv(?!ert)|fprop|dgrad|wgrad|winograd|scudnn|igemm|cudnn_(infer|train)_|xdlops.*gnwc",
        ),
        (
            "gemm",
            r"(?<!fb)gemm|nvjet|cutlass|cijk_|gemv|cublas|splitkreduce|wgmma|matmul|_mm_|(^|\W)bmm_|ck::.*gridwise|xe_?tla",
        ),
        ("softmax", r"softmax"),
        ("loss", r"nll_loss|cross_?entropy"),
        ("dropout", r"dropout"),
        ("sort", r"radixsort|(^|[^a-z])sort|topk|scan_?by_?key|devicescan|segmented"),
        (
            "copy",
            r"direct_copy|copy_kernel|catarray|memcpy|fillfunctor|transpose|permute_|(?<!no)cast_kernel|convert_|dtype_copy",
        ),
        ("index", r"index|gather|scatter|masked_fill|where|take"),
        ("reduction", r"reduce|sum_functor|norm_kernel|meanops|argmax|triton_red|triton_per"),
        ("optimizer", r"multi_tensor_apply|foreach"),
        ("pool", r"pool|upsample|interpolate|grid_sample"),
        ("random", r"random|philox|bernoulli|normal_kernel|uniform|distribution"),
        ("rnn", r"lstm|gru(?![a-z])|rnn"),
        ("pointwise", r"elementwise|triton_poi|pointwise|vectorized_|unrolled_|functor|tensorop"),
    )
)
"""Tried on names in lower case, which is several times as fast as `re.IGNORECASE`. First match
wins, so the specific stand before the general."""

TENSOR_CORE = re.compile(
    r"nvjet|wgmma|(cutlass|_)tensorop|hmma|imma|_mma|mma_|[hsdiu](884|1688|16816|16832|161616)|xmma_(?!.*ffma)|flash_fwd|flash_bwd|flash_[fb]prop|fmha_v\d"
    r"|device_kernel.*sm(90|100)|_mi\d+x\d+|xdl|mfma|gtcx|tensor_?core|cutlass_(80|90|100)_(?!simt)"
)
VECTOR_UNIT = re.compile(
    r"simt|ffma|sgemm|dgemm|scudnn|gemv|_convolve_sgemm|wgrad_alg0_engine|dgrad_engine|dgrad2d|wgrad2d"
)
"""Both on names in lower case."""
AMD_MATRIX = re.compile(r"_MI\d+x\d+|xdl|mfma|gtcx", re.IGNORECASE)
"""`gtcx` are MIOpen's implicit GEMMs on the matrix units (generic tensor contraction, xdlops)."""
TF32 = re.compile(r"tf32|s1688(?!.*(f16|bf16|half))|tensorop_s1688", re.IGNORECASE)

MATRIX_CATEGORIES = ("gemm", "convolution", "attention")
MAX_NAMES = 4096
"""Names whose answers are kept: twenty patterns are tried on each, and several analyses ask."""


@lru_cache(maxsize=MAX_NAMES)
def category_of(name: str) -> str:
    """The kind of work, by name alone; `other` when nothing matches."""
    lower = name.lower()
    for category, pattern in CATEGORIES:
        if pattern.search(lower):
            return category
    return "other"


@lru_cache(maxsize=MAX_NAMES)
def uses_tensor_cores(name: str) -> bool | None:
    """Whether the kernel is a tensor-core (matrix-unit) one; None when its name does not say."""
    lower = name.lower()
    if VECTOR_UNIT.search(lower) and not re.search(r"_tensorop|[hs](1688|16816)|_MI\d+x\d+", name):
        return False
    return True if TENSOR_CORE.search(lower) else None


def rounds_to_tf32(name: str) -> bool:
    """Whether a matrix kernel over 32-bit floats works in TF32:
    NVIDIA's matrix units know no other way, AMD's do."""
    return TF32.search(name) is not None or (
        uses_tensor_cores(name) is True and AMD_MATRIX.search(name) is None
    )
