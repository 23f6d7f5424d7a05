"""From the fields of a Hugging Face config to a Model, family by family,
as transformers' modeling files build it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from stepscope.plan.config_fields import MAX_LAYERS, Fields
from stepscope.plan.config_gpt import GPT_FAMILIES
from stepscope.plan.model import Experts, Latent, Model

# The shape that most decoders share, under the names that most use.


def llama(
    f: Fields, *, tied: bool = False, kv_heads: int | None = None, head_dim: int | None = None
) -> Model:
    """Llama's shape: RMS norms, a gated MLP, no learned positions.

    Biases where the config asks for them.
    """
    hidden, heads = f.count("hidden_size"), f.count("num_attention_heads")
    bias = f.flag("attention_bias", default=False)
    return Model(
        name="",
        layers=f.count("num_hidden_layers", at_most=MAX_LAYERS),
        hidden=hidden,
        heads=heads,
        kv_heads=f.count("num_key_value_heads", default=kv_heads or heads),
        head_dim=f.count("head_dim", default=head_dim or f.head_dim(hidden, heads)),
        ffn_hidden=f.count("intermediate_size"),
        vocab=f.count("vocab_size"),
        is_tied=f.flag("tie_word_embeddings", default=tied),
        has_qkv_bias=bias,
        has_out_bias=bias,
        has_mlp_bias=f.flag("mlp_bias", default=False),
    )


def _windowed(f: Fields, model: Model, layers: int | None = None) -> Model:
    """The model with its sliding window, which `layers` of the layers have,
    or as many as `layer_types` says."""
    window = f.count("sliding_window", default=0, at_least=0)
    kinds = f.words("layer_types")
    num = sum(kind == "sliding_attention" for kind in kinds) if kinds else layers
    num = model.layers if num is None else min(num, model.layers)
    return replace(model, window=window, num_window_layers=num) if window and num else model


def _but(**changes: Any) -> Callable[[Fields], Model]:
    """Llama's shape but for some of it."""
    return lambda f: replace(llama(f), **changes)


def _with_wide_qk_norm(model: Model) -> Model:
    """Norms over all queries and all keys."""
    return replace(model, qk_norm_params=(model.heads + model.kv_heads) * model.head_dim)


def _mistral(f: Fields) -> Model:
    """Phi-3 is alike."""
    return _windowed(
        f, replace(llama(f), has_mlp_bias=False, has_qkv_bias=False, has_out_bias=False)
    )


def _qwen(f: Fields) -> Model:
    """Qwen 1: its `intermediate_size` is of gate and input together."""
    model = llama(f)
    return replace(model, ffn_hidden=model.ffn_hidden // 2, has_qkv_bias=True, has_out_bias=False)


def _qwen2(f: Fields) -> Model:
    model = replace(llama(f), has_qkv_bias=True, has_out_bias=False, has_mlp_bias=False)
    return _windowed(f, model) if f.flag("use_sliding_window", default=False) else model


def _qwen3(f: Fields) -> Model:
    model = replace(llama(f, head_dim=128), has_qk_norm=True, has_mlp_bias=False)
    return _windowed(f, model) if f.flag("use_sliding_window", default=False) else model


def _gemma(f: Fields) -> Model:
    return replace(llama(f, tied=True, head_dim=256), has_mlp_bias=False)


def _gemma2(f: Fields) -> Model:
    model = replace(_gemma(f), norms_per_layer=4)
    return _windowed(f, model, layers=-(-model.layers // 2))


def _gemma3(f: Fields) -> Model:
    f = f.or_else(
        vocab_size=262208, num_attention_heads=8, num_key_value_heads=4
    )  # The 4B's config leaves them out.
    model = replace(_gemma(f), norms_per_layer=4, has_qk_norm=True)
    pattern = f.count("sliding_window_pattern", default=6)
    return _windowed(f, model, layers=model.layers - model.layers // pattern)


def _olmo2(f: Fields) -> Model:
    """OLMo 2 and 3: norms after attention and MLP, and over all queries and all keys."""
    return _with_wide_qk_norm(replace(llama(f), has_mlp_bias=False))


def _internlm(f: Fields) -> Model:
    """InternLM 1 and 2: one `bias` for all four of attention."""
    bias = f.flag("bias", default=False)
    return replace(llama(f), has_qkv_bias=bias, has_out_bias=bias)


def _stablelm(f: Fields) -> Model:
    model = replace(
        llama(f),
        norm_size=2,
        has_qkv_bias=f.flag("use_qkv_bias", default=False),
        has_out_bias=False,
    )
    parallel = f.flag("use_parallel_residual", default=False)
    if f.flag("qk_layernorm", default=False):
        model = _with_wide_qk_norm(model)
    return replace(model, norms_per_layer=1 if parallel else 2, is_parallel=parallel)


def _starcoder2(f: Fields) -> Model:
    bias = f.flag("use_bias", default=True)
    model = llama(f, tied=True, kv_heads=2)
    model = replace(
        model, is_gated=False, norm_size=2, has_qkv_bias=bias, has_out_bias=bias, has_mlp_bias=bias
    )
    return _windowed(f, model)


def _cohere(f: Fields) -> Model:
    model = replace(llama(f, tied=True), norms_per_layer=1, is_parallel=True, has_mlp_bias=False)
    return _with_wide_qk_norm(model) if f.flag("use_qk_norm", default=False) else model


def _glm(f: Fields) -> Model:
    bias = f.flag("attention_bias", default=False)
    return replace(llama(f), has_qkv_bias=bias, has_out_bias=False, has_mlp_bias=False)


def _glm4(f: Fields) -> Model:
    return replace(_glm(f), norms_per_layer=4)


# Mixtures.


def _mixtral(f: Fields) -> Model:
    model = _mistral(f)
    experts = Experts(
        num=f.count("num_local_experts", default=8),
        top_k=f.count("num_experts_per_tok", default=2),
        ffn_hidden=model.ffn_hidden,
    )
    return _mixture(f, model, experts)


def _qwen2_moe(f: Fields) -> Model:
    model = replace(_qwen2(f), has_qkv_bias=f.flag("qkv_bias", default=True))
    shared = f.count("shared_expert_intermediate_size", default=5632, at_least=0)
    experts = replace(_qwen_experts(f, model), shared_ffn_hidden=shared, has_shared_gate=True)
    return _mixture(f, model, experts)


def _qwen3_moe(f: Fields) -> Model:
    model = replace(llama(f), has_qk_norm=True, has_mlp_bias=False)
    return _mixture(f, model, _qwen_experts(f, model))


def _qwen_experts(f: Fields, model: Model) -> Experts:
    step = f.count("decoder_sparse_step", default=1)
    dense = set(f.counts("mlp_only_layers"))
    num_dense = sum(layer in dense or (layer + 1) % step != 0 for layer in range(model.layers))
    return Experts(
        num=f.count("num_experts", "num_local_experts"),
        top_k=f.count("num_experts_per_tok"),
        ffn_hidden=f.count("moe_intermediate_size"),
        num_dense_layers=num_dense,
    )


def _olmoe(f: Fields) -> Model:
    model = _olmo2(f)
    experts = Experts(
        num=f.count("num_experts", "num_local_experts", default=64),
        top_k=f.count("num_experts_per_tok", default=8),
        ffn_hidden=model.ffn_hidden,
    )
    return _mixture(f, model, experts)


def _gpt_oss(f: Fields) -> Model:
    model = llama(f, head_dim=64)
    bias = f.flag("attention_bias", default=True)
    model = replace(
        model, has_qkv_bias=bias, has_out_bias=bias, has_mlp_bias=True, num_sinks=model.heads
    )
    experts = Experts(
        num=f.count("num_local_experts", "num_experts"),
        top_k=f.count("num_experts_per_tok", "experts_per_token"),
        ffn_hidden=model.ffn_hidden,
        has_router_bias=True,
    )
    return _windowed(f, _mixture(f, model, experts), layers=-(-model.layers // 2))


def _deepseek(f: Fields) -> Model:
    """DeepSeek-V2 and V3 (Kimi-K2 is alike).

    Latent attention, dense layers first, then mixtures with shared experts.
    """
    latent = Latent(
        kv_rank=f.count("kv_lora_rank"),
        q_rank=_q_rank(f),
        nope_dim=f.count("qk_nope_head_dim"),
        rope_dim=f.count("qk_rope_head_dim"),
        v_dim=f.count("v_head_dim"),
    )
    model = replace(
        llama(f, head_dim=latent.nope_dim + latent.rope_dim),
        latent=latent,
        has_qkv_bias=False,
        has_out_bias=False,
    )
    model = replace(model, head_dim=latent.nope_dim + latent.rope_dim)
    if f.flag("attention_bias", default=False):
        raise f.fault("attention_bias with latent attention is not supported")
    if not f.has("n_routed_experts"):
        return model
    expert = f.count("moe_intermediate_size")
    frequency = f.count("moe_layer_freq", default=1)
    first = f.count("first_k_dense_replace", default=0, at_least=0)
    num_dense = sum(layer < first or layer % frequency != 0 for layer in range(model.layers))
    experts = Experts(
        num=f.count("n_routed_experts"),
        top_k=f.count("num_experts_per_tok"),
        ffn_hidden=expert,
        shared_ffn_hidden=expert * f.count("n_shared_experts", default=0, at_least=0),
        num_dense_layers=num_dense,
        num_groups=f.count("n_group", default=1),
        top_groups=f.count("topk_group", default=1),
        has_router_bias=_balances(f),
    )
    return _mixture(f, model, experts)


def _q_rank(f: Fields) -> int | None:
    """A null says that queries have no small vector.

    Where nothing is said they have transformers' 1536.
    """
    says_none = "q_lora_rank" in f.values and not f.has("q_lora_rank")
    return None if says_none else f.count("q_lora_rank", default=1536)


def with_further_layers(model: Model, num: int) -> Model:
    """The model with layers that predict further tokens, as DeepSeek-V3 has: a whole layer, three
    norms and a matrix 2h x h.

    Embedding and head are the model's own.
    """
    attention_and_norms = (
        model.attention_params
        + model.norm_params
        + 2 * model.hidden**2
        + 3 * model.hidden * model.norm_size
    )
    every = active = attention_and_norms + model.dense_mlp_params
    if model.experts is not None:
        shared = attention_and_norms + model.router_and_shared_params
        every = shared + model.experts.num * model.expert_params
        active = shared + model.experts.top_k * model.expert_params
    return replace(model, extra_layer_params=num * every, extra_layer_active_params=num * active)


def _llama4(f: Fields) -> Model:
    """Llama 4's text part: every nth layer a mixture with one shared expert.

    Three layers of four look back on a chunk.
    """
    expert = f.count("intermediate_size")
    model = replace(
        llama(f, head_dim=128),
        ffn_hidden=f.count("intermediate_size_mlp", default=16384),
        has_mlp_bias=False,
    )
    step, listed = f.count("interleave_moe_layer_step", default=1), f.counts("moe_layers")
    num_mixtures = model.layers // step
    if listed:
        num_mixtures = len({layer for layer in listed if 0 <= layer < model.layers})
    experts = Experts(
        num=f.count("num_local_experts", default=16),
        top_k=f.count("num_experts_per_tok", default=1),
        ffn_hidden=expert,
        shared_ffn_hidden=expert,
        num_dense_layers=model.layers - num_mixtures,
    )
    window = f.count("attention_chunk_size", default=8192)
    model = replace(model, window=window, num_window_layers=model.layers - model.layers // 4)
    return _mixture(f, model, experts)


def _glm4_moe(f: Fields) -> Model:
    """GLM-4.5: plain attention, DeepSeek-V3's mixtures."""
    model = replace(_glm(f), has_qk_norm=f.flag("use_qk_norm", default=False))
    expert = f.count("moe_intermediate_size")
    experts = Experts(
        num=f.count("n_routed_experts", "num_local_experts"),
        top_k=f.count("num_experts_per_tok"),
        ffn_hidden=expert,
        shared_ffn_hidden=expert * f.count("n_shared_experts", default=1, at_least=0),
        num_dense_layers=min(f.count("first_k_dense_replace", default=1, at_least=0), model.layers),
        has_router_bias=True,
    )
    return _mixture(f, model, experts)


def _balances(f: Fields) -> bool:
    """Whether each expert has a bias that balances the load.

    V3's way of choosing experts, and the only one of its type.
    """
    method = f.word("topk_method")
    return method == "noaux_tc" or (not method and f.word("model_type") == "deepseek_v3")


def _mixture(f: Fields, model: Model, experts: Experts) -> Model:
    if experts.top_k > experts.num:
        raise f.fault(
            f"a token cannot go to {experts.top_k} of {experts.num} experts: see "
            "num_experts_per_tok"
        )
    return replace(model, experts=experts)


FAMILIES: Mapping[str, Callable[[Fields], Model]] = {
    "llama": llama,
    "mistral": _mistral,
    "ministral": _mistral,
    "mixtral": _mixtral,
    "qwen": _qwen,
    # Nemotron-4 and Minitron: a plain MLP with squared ReLU, norms with a bias.
    "nemotron": _but(is_gated=False, norm_size=2),
    "qwen2": _qwen2,
    "qwen2_moe": _qwen2_moe,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "kimi_k2": _deepseek,
    "gpt_oss": _gpt_oss,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "phi3": _mistral,
    # Its norms have no weights.
    "olmo": _but(norm_size=0, has_mlp_bias=False),
    "olmo2": _olmo2,
    "olmo3": lambda f: _windowed(f, _olmo2(f)),
    "olmoe": _olmoe,
    "internlm": _internlm,
    "internlm2": _internlm,
    "baichuan": _but(has_qkv_bias=False, has_out_bias=False),
    "stablelm": _stablelm,
    "starcoder2": _starcoder2,
    "cohere": _cohere,
    "granite": llama,
    "smollm3": llama,
    "glm": _glm,
    "glm4": _glm4,
    "glm4_moe": _glm4_moe,
    "llama4_text": _llama4,
    **GPT_FAMILIES,
}
"""Readers of models by `model_type`."""
