"""Parameters of a shape, against formulas and counts of others."""

from dataclasses import replace

import pytest

from stepscope.plan.catalog import find_model
from stepscope.plan.model import Experts, Model

TINY = Model(
    name="tiny", layers=3, hidden=8, heads=4, kv_heads=2, head_dim=2, ffn_hidden=20, vocab=50
)


@pytest.mark.parametrize(
    ("name", "layers", "hidden", "billions"),
    [
        ("megatron-gpt-1.7b", 24, 2304, 1.7),
        ("megatron-gpt-3.6b", 30, 3072, 3.6),
        ("megatron-gpt-7.5b", 36, 4096, 7.5),
        ("megatron-gpt-18.4b", 40, 6144, 18.4),
        ("megatron-gpt-39.1b", 48, 8192, 39.1),
        ("megatron-gpt-76.1b", 60, 10240, 76.1),
        ("megatron-gpt-145.6b", 80, 12288, 145.6),
        ("megatron-gpt-310.1b", 96, 16384, 310.1),
        ("megatron-gpt-529.6b", 105, 20480, 529.6),
        ("megatron-gpt-1t", 128, 25600, 1008.0),
    ],
)
def test_megatron_models_follow_the_formula_of_their_paper(
    name: str, layers: int, hidden: int, billions: float
) -> None:
    """Narayanan et al. 2021, equation 2: P = 12lh^2 (1 + 13/12h + (V + s)/12lh); it leaves the last
    norm (2h) out."""
    params = 12 * layers * hidden**2 + 13 * layers * hidden + (51200 + 2048) * hidden
    assert find_model(name).num_params == params + 2 * hidden
    assert round(params / 1e9, 1) == billions


def test_parts_add_up_to_the_whole() -> None:
    model = find_model("mixtral-8x7b")
    layer = (
        model.attention_params
        + model.norm_params
        + model.router_and_shared_params
        + 8 * model.expert_params
    )
    assert (
        model.num_params == 32 * layer + model.embedding_params + model.head_params + model.hidden
    )
    assert model.num_params - model.active_params == 32 * 6 * model.expert_params


def test_a_narrower_embedding_has_a_way_in_and_a_way_out() -> None:
    narrow = replace(TINY, embedding_hidden=6)
    assert TINY.num_params - narrow.num_params == 2 * 50 * 8 - (2 * 50 * 6 + 2 * 6 * 8)


def test_norms_on_all_queries_and_keys_are_counted_once_per_layer() -> None:
    assert replace(TINY, qk_norm_params=12).num_params - TINY.num_params == 3 * 12


def test_dense_layers_of_a_mixture_keep_their_own_mlp() -> None:
    mixture = replace(TINY, experts=Experts(num=4, top_k=1, ffn_hidden=5, num_dense_layers=1))
    assert mixture.num_mixture_layers == 2
    assert mixture.num_params - TINY.num_params == 2 * (8 * 4 + 4 * 3 * 8 * 5 - 3 * 8 * 20)


def test_a_layer_for_further_tokens_adds_what_deepseek_says_and_little_of_it_is_active() -> None:
    """The README of DeepSeek-V3: 14 B in its MTP module, of which embedding and head (1.85 B) are
    the model's own."""
    plain, further = find_model("deepseek-v3"), find_model("deepseek-v3-mtp")
    assert further.num_params - plain.num_params + 2 * 129280 * 7168 == pytest.approx(
        14e9, rel=0.05
    )
    # One mixture layer with 8 of its 256 experts, a matrix from 2h to h and three norms.
    active = (
        plain.attention_params
        + plain.norm_params
        + plain.router_and_shared_params
        + 8 * plain.expert_params
    )
    assert further.active_params - plain.active_params == active + 2 * 7168**2 + 3 * 7168
