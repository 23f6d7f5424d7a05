"""A transformer as numbers: its shape, its parameters by part, its floating-point operations."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """A mixture: each token goes to `top_k` of `num` routed experts,
    and through the shared ones."""

    num: int
    top_k: int
    ffn_hidden: int
    """One routed expert's."""
    shared_ffn_hidden: int = 0
    """The width of all shared experts together."""
    num_dense_layers: int = 0
    """Layers without a mixture, whose MLP is the model's `ffn_hidden`."""
    num_groups: int = 1
    top_groups: int = 1
    """Groups that the experts of one token lie in, of `num_groups` in their order."""
    has_router_bias: bool = False
    """One number per expert beside the router's weights: a bias or what balances the load."""
    has_shared_gate: bool = False
    """A gate of `hidden` numbers on the shared experts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent:
    """Multi-head latent attention: keys and values come out of one small vector per token."""

    kv_rank: int
    q_rank: int | None
    nope_dim: int
    rope_dim: int
    v_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One transformer. What a model does not have is 0, None or False."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn_hidden: int
    vocab: int
    is_gated: bool = True
    """Whether the MLP has three matrices (SwiGLU) instead of two."""
    is_tied: bool = False
    """Whether the head uses the embedding's weights."""
    is_causal: bool = True
    max_positions: int = 0
    """Learned positions; 0 where they are rotated or biased, which has no weights."""
    is_rotated: bool = True
    """Whether positions turn queries and keys (RoPE), where none are learned; else they are biases
    of the scores (ALiBi)."""
    num_token_types: int = 0
    has_qkv_bias: bool = False
    has_out_bias: bool = False
    has_mlp_bias: bool = False
    has_head_bias: bool = False
    norm_size: int = 1
    """Numbers per channel of a norm: 1 (RMS) or 2 (with a bias)."""
    norms_per_layer: int = 2
    num_outer_norms: int = 1
    """Norms of the model's width, before the first and after the last layer."""
    has_qk_norm: bool = False
    """A norm of `head_dim` on queries and on keys."""
    num_sinks: int = 0
    """Learned numbers per layer of attention beside its matrices, such as one sink per head."""
    pooler_params: int = 0
    """Parameters of an encoder's pooler and head transform."""
    extra_layer_params: int = 0
    """Parameters of one more layer after the last that predicts further tokens, all of it."""
    extra_layer_active_params: int = 0
    """Parameters of these that one token meets; 0 for all."""
    experts: Experts | None = None
    latent: Latent | None = None
    qk_norm_params: int = 0
    """Parameters of one layer's norms on queries and keys where these are not of `head_dim`
    each."""
    embedding_hidden: int = 0
    """The embedding's width where it is not the model's; a matrix leads in, another out."""
    is_parallel: bool = False
    """Whether attention and MLP of a layer start from the same input."""
    window: int = 0
    """Tokens that a windowed layer looks back on; 0 where every layer sees all."""
    num_window_layers: int = 0
    source: str = ""
    """Where the shape was read."""
    notes: tuple[str, ...] = ()
    """What had to be assumed or was left out."""

    # Parameters.

    @property
    def attention_params(self) -> int:
        """Parameters of one layer's attention, its norms on queries and keys and its biases
        included."""
        h, a = self.hidden, self.heads
        if self.latent is not None:
            return self._latent_params(self.latent)
        q, kv = a * self.head_dim, self.kv_heads * self.head_dim
        params = h * (q + 2 * kv) + q * h
        params += (q + 2 * kv) * self.has_qkv_bias + h * self.has_out_bias
        return (
            params
            + 2 * self.head_dim * self.norm_size * self.has_qk_norm
            + self.qk_norm_params
            + self.num_sinks
        )

    def _latent_params(self, latent: Latent) -> int:
        h, a = self.hidden, self.heads
        qk_dim = latent.nope_dim + latent.rope_dim
        q = h * a * qk_dim if latent.q_rank is None else latent.q_rank * (h + 1 + a * qk_dim)
        kv = h * (latent.kv_rank + latent.rope_dim) + latent.kv_rank * (
            1 + a * (latent.nope_dim + latent.v_dim)
        )
        return q + kv + a * latent.v_dim * h

    @property
    def dense_mlp_params(self) -> int:
        """Parameters of one layer's MLP where it has no mixture."""
        matrices = 3 if self.is_gated else 2
        biases = (self.ffn_hidden * (matrices - 1) + self.hidden) * self.has_mlp_bias
        return matrices * self.hidden * self.ffn_hidden + biases

    @property
    def expert_params(self) -> int:
        """One routed expert's."""
        if self.experts is None:
            return 0
        matrices = 3 if self.is_gated else 2
        biases = (self.experts.ffn_hidden * (matrices - 1) + self.hidden) * self.has_mlp_bias
        return matrices * self.hidden * self.experts.ffn_hidden + biases

    @property
    def router_and_shared_params(self) -> int:
        """Parameters of a mixture layer's router and shared experts."""
        if self.experts is None:
            return 0
        matrices = 3 if self.is_gated else 2
        router = self.hidden * self.experts.num + self.experts.num * self.experts.has_router_bias
        shared = (
            matrices * self.hidden * self.experts.shared_ffn_hidden
            + self.hidden * self.experts.has_shared_gate
        )
        return router + shared

    @property
    def norm_params(self) -> int:
        """Parameters of one layer's norms."""
        return self.norms_per_layer * self.hidden * self.norm_size

    @property
    def num_mixture_layers(self) -> int:
        return 0 if self.experts is None else self.layers - self.experts.num_dense_layers

    @property
    def embedding_params(self) -> int:
        """Parameters of tokens, positions and token types, with the way in from a narrower
        embedding."""
        outer = (self.max_positions + self.num_token_types) * self.hidden
        if not self.embedding_hidden:
            return self.vocab * self.hidden + outer
        return (self.vocab + self.hidden) * self.embedding_hidden + outer

    @property
    def head_params(self) -> int:
        """Parameters of the output head that are not the embedding's."""
        untied = 0 if self.is_tied else self.vocab * (self.embedding_hidden or self.hidden)
        return (
            untied
            + self.hidden * self.embedding_hidden
            + self.vocab * self.has_head_bias
            + self.pooler_params
        )

    @property
    def num_params(self) -> int:
        """All of them."""
        return self._params(experts_of_each=None if self.experts is None else self.experts.num)

    @property
    def active_params(self) -> int:
        """Parameters that one token meets."""
        idle = self.extra_layer_params - (self.extra_layer_active_params or self.extra_layer_params)
        return (
            self._params(experts_of_each=None if self.experts is None else self.experts.top_k)
            - idle
        )

    def _params(self, experts_of_each: int | None) -> int:
        mixtures = self.num_mixture_layers
        layers = (
            self.layers * (self.attention_params + self.norm_params)
            + (self.layers - mixtures) * self.dense_mlp_params
        )
        layers += mixtures * (
            self.router_and_shared_params + (experts_of_each or 0) * self.expert_params
        )
        outer = (
            self.embedding_params
            + self.head_params
            + self.num_outer_norms * self.hidden * self.norm_size
        )
        return layers + outer + self.extra_layer_params


def has_windows(model: Model, seq_len: int) -> bool:
    """Whether some layers see less of a sequence than all that is before a token."""
    return bool(model.num_window_layers and 0 < model.window < seq_len)


def windowed_share(model: Model, seq_len: int) -> float:
    """Share of all pairs of tokens that attention looks at, where some layers see only a window
    before each token."""
    if not has_windows(model, seq_len):
        return 1.0
    share = model.window / seq_len
    windowed = share * (2 - share) if model.is_causal else share
    return 1 - model.num_window_layers / model.layers * (1 - windowed)


def attention_flops_per_token(model: Model, seq_len: int) -> float:
    """FLOPs of scores and their use, forward, every pair of tokens in sight counted."""
    latent = model.latent
    width = (
        2 * model.head_dim if latent is None else latent.nope_dim + latent.rope_dim + latent.v_dim
    )
    return 2.0 * seq_len * model.heads * width * model.layers * windowed_share(model, seq_len)


def product_flops_per_token(model: Model) -> float:
    """FLOPs of all matrix products, forward.

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
