"""Floating-point operations of a model, by the conventions that people publish with."""

from __future__ import annotations

from stepscope.plan.model import Model


def windowed_share(model: Model, seq_len: int) -> float:
    """Of all pairs of tokens that attention looks at,
    where some layers see only a window before each token."""
    if not model.num_window_layers or not model.window or model.window >= seq_len:
        return 1.0
    share = model.window / seq_len
    windowed = share * (2 - share) if model.is_causal else share
    return 1 - model.num_window_layers / model.layers * (1 - windowed)


def attention_flops_per_token(model: Model, seq_len: int) -> float:
    """Of scores and their use, forward, every pair of tokens in sight counted."""
    latent = model.latent
    width = (
        2 * model.head_dim if latent is None else latent.nope_dim + latent.rope_dim + latent.v_dim
    )
    return 2.0 * seq_len * model.heads * width * model.layers * windowed_share(model, seq_len)


def product_flops_per_token(model: Model) -> float:
    """Of all matrix products, forward.

    Two for each weight that a token meets, the head's included and the embedding's not.
    """
    mixtures = model.num_mixture_layers
    layers = (
        model.layers * model.attention_params + (model.layers - mixtures) * model.dense_mlp_params
    )
    if model.experts is not None:
        layers += mixtures * (
            model.router_and_shared_params + model.experts.top_k * model.expert_params
        )
    return 2.0 * (layers + model.vocab * model.hidden)


def model_flops_per_token(model: Model, seq_len: int, *, halves_causal: bool = False) -> float:
    """Forward and backward; nothing that is recomputed."""
    attention = attention_flops_per_token(model, seq_len) * (
        0.5 if halves_causal and model.is_causal else 1.0
    )
    return 3.0 * (product_flops_per_token(model) + attention)
