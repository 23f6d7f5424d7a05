"""Floating-point operations of a model, by the conventions that people publish with."""

from __future__ import annotations

from stepscope.planner.model import Model


def attention_flops_per_token(model: Model, seq_len: int) -> float:
    """Of scores and their use, forward, every pair of tokens counted."""
    latent = model.latent
    width = 2 * model.head_dim if latent is None else latent.nope_dim + latent.rope_dim + latent.v_dim
    return 2.0 * seq_len * model.heads * width * model.layers


def product_flops_per_token(model: Model) -> float:
    """Of all matrix products, forward: two for each weight that a token meets, the head's included and the embedding's not."""
    mixtures = model.num_mixture_layers
    layers = model.layers * model.attention_params + (model.layers - mixtures) * model.dense_mlp_params
    if model.experts is not None:
        layers += mixtures * (model.beside_experts_params + model.experts.top_k * model.expert_params)
    return 2.0 * (layers + model.vocab * model.hidden)


def model_flops_per_token(model: Model, seq_len: int, *, halves_causal: bool = False) -> float:
    """Forward and backward; nothing that is recomputed."""
    attention = attention_flops_per_token(model, seq_len) * (0.5 if halves_causal and model.is_causal else 1.0)
    return 3.0 * (product_flops_per_token(model) + attention)
