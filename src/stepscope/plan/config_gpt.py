"""Models of GPT-2's shape: learned positions, LayerNorms, plain MLPs.

Encoders share it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from stepscope.plan.config_fields import MAX_LAYERS, Fields
from stepscope.plan.model import Model


def _gpt(f: Fields, **changes: object) -> Model:
    """GPT-2's shape under the names that its family uses."""
    hidden = f.count("n_embd", "hidden_size", "d_model", "n_embed")
    heads = f.count("n_head", "num_attention_heads", "n_heads", "num_heads")
    base = Model(
        name="",
        layers=f.count(
            "n_layer", "num_hidden_layers", "n_layers", "num_layers", at_most=MAX_LAYERS
        ),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=f.head_dim(hidden, heads),
        ffn_hidden=f.count(
            "n_inner", "ffn_dim", "ffn_hidden_size", "intermediate_size", default=4 * hidden
        ),
        vocab=f.count("vocab_size"),
        is_gated=False,
        is_tied=f.flag("tie_word_embeddings", default=True),
        has_qkv_bias=True,
        has_out_bias=True,
        has_mlp_bias=True,
        norm_size=2,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def _gpt2(f: Fields) -> Model:
    return _gpt(f, max_positions=f.count("n_positions", "max_position_embeddings", default=1024))


def _gpt_bigcode(f: Fields) -> Model:
    model = _gpt2(f)
    return replace(model, kv_heads=1) if f.flag("multi_query", default=True) else model


def _gpt_neo(f: Fields) -> Model:
    """Model whose attention has a bias on the way out alone; every second layer has a window."""
    model = _gpt(
        f, max_positions=f.count("max_position_embeddings", default=2048), has_qkv_bias=False
    )
    return replace(
        model, window=f.count("window_size", default=256), num_window_layers=model.layers // 2
    )


def _gptj(f: Fields) -> Model:
    tied = f.flag("tie_word_embeddings", default=False)
    changes = {
        "norms_per_layer": 1,
        "has_qkv_bias": False,
        "has_out_bias": False,
        "has_head_bias": True,
        "is_parallel": True,
    }
    return _gpt(f, is_tied=tied, **changes)


def _gpt_neox(f: Fields) -> Model:
    tied = f.flag("tie_word_embeddings", default=False)
    bias = f.flag("attention_bias", default=True)
    parallel = f.flag("use_parallel_residual", default=True)
    return _gpt(f, is_tied=tied, has_qkv_bias=bias, has_out_bias=bias, is_parallel=parallel)


def _bloom(f: Fields) -> Model:
    hidden = f.count("hidden_size", "n_embd", "n_embed")
    return _gpt(f, ffn_hidden=4 * hidden, num_outer_norms=2, is_rotated=False)


def _opt(f: Fields) -> Model:
    """OPT: two positions more than it says; its 350M has a narrower embedding and no last norm."""
    hidden, bias = f.count("hidden_size"), f.flag("enable_bias", default=True)
    width = f.count("word_embed_proj_dim", default=hidden)
    last = f.flag("do_layer_norm_before", default=True) and not f.flag(
        "_remove_final_layer_norm", default=False
    )
    model = _gpt(
        f,
        max_positions=f.count("max_position_embeddings", default=2048) + 2,
        num_outer_norms=int(last),
    )
    norm_size = 2 if f.flag("layer_norm_elementwise_affine", default=True) else 0
    model = replace(model, embedding_hidden=0 if width == hidden else width, norm_size=norm_size)
    return replace(model, has_qkv_bias=bias, has_out_bias=bias, has_mlp_bias=bias)


def _mpt(f: Fields) -> Model:
    """MPT as on the hub: biased scores in place of positions, no bias anywhere."""
    attention = f.inner("attn_config")
    hidden, ratio = f.count("d_model", "hidden_size"), f.count("expansion_ratio", default=4)
    model = _gpt(
        f,
        ffn_hidden=ratio * hidden,
        is_rotated=False,
        norm_size=1,
        has_qkv_bias=False,
        has_out_bias=False,
        has_mlp_bias=False,
    )
    if not attention.flag("alibi", default=True):
        model = replace(model, max_positions=f.count("max_seq_len", default=2048))
    if not f.flag("no_bias", default=True):
        model = replace(model, norm_size=2, has_qkv_bias=True, has_out_bias=True, has_mlp_bias=True)
    return model


def _falcon(f: Fields) -> Model:
    """Falcon: the 7B has one key for all heads and one norm per layer,
    the later ones groups and two."""
    bias = f.flag("bias", default=False)
    new = f.flag("new_decoder_architecture", default=f.has("n_head_kv"))
    parallel = f.flag("parallel_attn", default=True) or new
    model = _gpt(f, has_qkv_bias=bias, has_out_bias=bias, has_mlp_bias=bias, is_parallel=parallel)
    if new:
        kv_heads = f.count("num_kv_heads", "n_head_kv", default=model.heads)
    else:
        kv_heads = 1 if f.flag("multi_query", default=True) else model.heads
    two = f.count("num_ln_in_parallel_attn", default=2 if new else 1) == 2 if parallel else True
    return replace(model, kv_heads=kv_heads, norms_per_layer=2 if two else 1)


def _phi(f: Fields) -> Model:
    """Phi 1 and 2: one norm per layer, biases everywhere, the head's too."""
    model = _gpt(
        f,
        is_tied=f.flag("tie_word_embeddings", default=False),
        has_head_bias=True,
        norms_per_layer=1,
        is_parallel=True,
    )
    model = replace(model, kv_heads=f.count("num_key_value_heads", default=model.heads))
    if f.flag("qk_layernorm", default=False):
        model = replace(model, qk_norm_params=4 * model.head_dim)
    return model


# Encoders.


def _bert(f: Fields) -> Model:
    """BERT and RoBERTa with their pooler, as they are counted.

    The head that predicts masked words is the embedding.
    """
    hidden = f.count("hidden_size")
    return _gpt(
        f,
        is_tied=True,
        is_causal=False,
        max_positions=f.count("max_position_embeddings", default=512),
        num_token_types=f.count("type_vocab_size", default=2),
        pooler_params=hidden * hidden + hidden,
    )


GPT_FAMILIES: Mapping[str, Callable[[Fields], Model]] = {
    "phi": _phi,
    "gpt2": _gpt2,
    "gpt_bigcode": _gpt_bigcode,
    "gpt_neo": _gpt_neo,
    "gptj": _gptj,
    "gpt_neox": _gpt_neox,
    "bloom": _bloom,
    "opt": _opt,
    "mpt": _mpt,
    "falcon": _falcon,
    "RefinedWeb": _falcon,
    "RefinedWebModel": _falcon,
    "bert": _bert,
    "roberta": _bert,
    "xlm-roberta": _bert,
}
"""Readers of models by `model_type`."""
