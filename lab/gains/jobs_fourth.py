"""A fourth set of jobs, with other pairs of model and fault than the first three.

In some the change that textbooks name gives nothing or makes the step slower.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from lab.gains import models_fourth as models
from lab.gains.job import Job, Settings
from lab.gains.jobs import (
    BF16,
    CAPTURED,
    COMPILED,
    FUSED,
    of_class,
    of_square,
    of_tokens,
    pictures,
    text,
    transformer,
    vision,
)
from lab.gains.jobs_second import scenes
from lab.gains.jobs_third import LAST, SDPA, TF32, TUNED, of_itself, of_pictures, spectra
from lab.gains.models_third import Headed
from lab.loops.data import size

RECOMPUTED = {"needless-recompute": {"recompute": False}}


def of_captions(forward: Callable[..., Any], batch: tuple[Tensor, ...]) -> Tensor:
    loss: Tensor = forward(input_ids=batch[0], pixel_values=batch[1], return_loss=True).loss
    return loss


def of_nodes(forward: Callable[..., Any], batch: tuple[Tensor, ...]) -> Tensor:
    return F.cross_entropy(forward(batch[0], batch[1]), batch[2])


def captions(vocab: int, length: int, side: int) -> Callable[[int], tuple[Tensor, ...]]:
    words, seen = text(vocab, length), pictures(side)
    return lambda n: (*words(n), seen(n)[0])


def graphs(width: int, edges: int, classes: int) -> Callable[[int], tuple[Tensor, ...]]:
    """One graph of n nodes with `edges` random edges for each."""
    return lambda n: (
        torch.randn(n, width),
        torch.randint(0, n, (2, edges * n)),
        torch.randint(0, classes, (n,)),
    )


def visits(users: int, items: int, seen: int) -> Callable[[int], tuple[Tensor, ...]]:
    return lambda n: (
        torch.randint(0, users, (n,)),
        torch.randint(0, items, (n, seen)),
        torch.randint(0, items, (n,)),
    )


def xlm_roberta(settings: Settings) -> nn.Module:
    """The published vocabulary, or padded to the next multiple of 64."""
    width, vocab = size(768, 64), size(250002, 258)
    if settings.variant == "padded":
        vocab = -(-vocab // 64) * 64
    body = transformer(
        "XLMRobertaModel",
        "XLMRoberta",
        hidden_size=width,
        num_hidden_layers=size(4, 2),
        num_attention_heads=size(12, 4),
        intermediate_size=size(3072, 128),
        max_position_embeddings=514,
        type_vocab_size=1,
        vocab_size=vocab,
    )
    return Headed(body(settings), width, vocab, compiled=settings.variant == "compiled")


GEMMA2 = transformer(
    "Gemma2ForCausalLM",
    hidden_size=size(1024, 64),
    num_hidden_layers=size(3, 2),
    num_attention_heads=size(8, 4),
    num_key_value_heads=size(4, 2),
    head_dim=size(128, 16),
    query_pre_attn_scalar=size(128, 16),
    intermediate_size=size(4096, 128),
    sliding_window=size(512, 8),
    vocab_size=size(64000, 256),
    use_cache=False,
)
OLMO2 = transformer(
    "Olmo2ForCausalLM",
    hidden_size=size(2048, 64),
    num_hidden_layers=2,
    num_attention_heads=size(16, 4),
    num_key_value_heads=size(16, 4),
    intermediate_size=size(8192, 128),
    vocab_size=size(50304, 256),
    use_cache=False,
)
MARIAN = transformer(
    "MarianMTModel",
    "Marian",
    d_model=size(512, 64),
    encoder_layers=size(3, 2),
    decoder_layers=size(3, 2),
    encoder_attention_heads=8,
    decoder_attention_heads=8,
    encoder_ffn_dim=size(2048, 128),
    decoder_ffn_dim=size(2048, 128),
    vocab_size=size(32000, 256),
    pad_token_id=0,
    eos_token_id=1,
    forced_eos_token_id=1,
    decoder_start_token_id=0,
    use_cache=False,
)
CLIP = transformer(
    "CLIPModel",
    "CLIP",
    text_config={
        "hidden_size": size(512, 64),
        "num_hidden_layers": size(4, 2),
        "num_attention_heads": size(8, 4),
        "intermediate_size": size(2048, 128),
        "vocab_size": size(49408, 256),
    },
    vision_config={
        "hidden_size": size(768, 64),
        "num_hidden_layers": size(6, 2),
        "num_attention_heads": size(12, 4),
        "intermediate_size": size(3072, 128),
        "image_size": size(224, 64),
        "patch_size": 16,
    },
    projection_dim=size(512, 64),
)
DINOV2 = transformer(
    "Dinov2ForImageClassification",
    hidden_size=size(384, 64),
    num_hidden_layers=size(6, 2),
    num_attention_heads=size(6, 4),
    image_size=size(224, 64),
    patch_size=size(14, 16),
    num_labels=1000,
)

FOURTH_JOBS = {
    "olmo_compiled": Job(
        model=OLMO2,
        inputs=text(50304, 1024),
        loss=of_tokens,
        base=Settings(batch=size(8, 2), compile="default", source="pinned"),
        changes={
            "unoverlapped-copy": {"source": "ahead"},
            "activation-casts": {"precision": "weights"},
            **CAPTURED,
        },
    ),
    "gemma2_recompute": Job(
        model=GEMMA2,
        inputs=text(64000, 2048),
        loss=of_tokens,
        base=Settings(batch=size(4, 2), attention="eager", recompute=True),
        changes={**RECOMPUTED, **SDPA, **COMPILED},
    ),
    "segmenter_pageable": Job(
        model=lambda _: models.Segmenter(size(48, 8), size(4, 2), 8),
        inputs=scenes(384, 8),
        loss=of_class,
        base=Settings(batch=size(8, 2), source="pageable"),
        changes={**LAST, "pageable-copy": {"source": "pinned"}, **TUNED, **COMPILED},
    ),
    "xlmr_vocabulary": Job(
        model=xlm_roberta,
        inputs=text(250002, 256),
        loss=of_itself,
        base=Settings(batch=size(16, 2), update="loop"),
        changes={
            "wide-logits": {"variant": "compiled"},
            "misaligned-shapes": {"variant": "padded"},
            **FUSED,
        },
    ),
    "graph_attention": Job(
        model=lambda _: models.GraphAttention(size(256, 32), 4, 3, 40),
        inputs=graphs(size(256, 32), 10, 40),
        loss=of_nodes,
        base=Settings(batch=size(50_000, 64), precision="fp32", update="loop", read_loss=True),
        changes={**COMPILED, **BF16, **FUSED, "device-sync": {"read_loss": False}},
    ),
    "regnet_small": Job(
        model=vision("regnet_x_400mf"),
        inputs=pictures(128),
        loss=of_class,
        base=Settings(batch=size(16, 2), precision="fp32", optimizer="sgd", update="foreach"),
        changes={**BF16, **LAST, "small-batch": {"batch": size(64, 8)}},
        samples={"small-batch": 4},
    ),
    "swin_v2_fp32": Job(
        model=vision("swin_v2_t"),
        inputs=pictures(256),
        loss=of_class,
        base=Settings(batch=size(24, 2), precision="fp32", update="loop"),
        changes={**BF16, **TF32, **FUSED},
    ),
    "marian_accumulates": Job(
        model=MARIAN,
        inputs=text(32000, 64),
        loss=of_tokens,
        base=Settings(batch=size(8, 2), accumulate=4, clip="loop", python_ms=15.0),
        changes={
            "small-batch": {"batch": size(32, 8), "accumulate": 1},
            "device-sync": {"clip": "fused"},
            "python-overhead": {"python_ms": 0.0},
        },
        stacks=True,
    ),
    "clip_cache": Job(
        model=CLIP,
        inputs=captions(49408, 77, 224),
        loss=of_captions,
        base=Settings(batch=size(32, 2), precision="fp32", attention="eager", empty_cache=True),
        changes={"allocator-churn": {"empty_cache": False}, **TF32, **BF16, **SDPA},
    ),
    "dinov2_storage": Job(
        model=DINOV2,
        inputs=pictures(224),
        loss=of_pictures,
        base=Settings(batch=size(32, 2), attention="eager", workers=2, read_ms=3.0),
        changes={
            "starved-loader": {"workers": size(12, 4)},
            "starved-loader#4": {"workers": size(4, 3)},
            **SDPA,
        },
    ),
    "listener_loader": Job(
        model=lambda _: models.Listener(80, size(384, 32), 2, 35),
        inputs=spectra(80, size(200, 16)),
        loss=of_class,
        base=Settings(batch=size(32, 2), precision="fp32", workers=3, transform_units=4),
        changes={
            "starved-loader": {"workers": size(12, 4)},
            "starved-loader#6": {"workers": size(6, 3)},
            **BF16,
        },
    ),
    "mnasnet_serial": Job(
        model=vision("mnasnet1_0"),
        inputs=pictures(128),
        loss=of_class,
        base=Settings(batch=size(64, 2), optimizer="sgd", workers=0),
        changes={
            "serial-loader": {"workers": size(6, 2)},
            "serial-loader#1": {"workers": 1},
            **LAST,
        },
    ),
    "forecaster_sends": Job(
        model=lambda _: models.Forecaster(size(96, 16), size(24, 4), size(256, 32), size(16, 3)),
        inputs=lambda n: (torch.randn(n, size(96, 16)),),
        loss=of_square,
        base=Settings(batch=size(1024, 8), precision="fp32", update="loop", small_copies=80),
        changes={**FUSED, "many-small-copies": {"sent_together": True}, **BF16, **CAPTURED},
    ),
    "towers_collects": Job(
        model=lambda _: models.Towers(size(500_000, 100), size(200_000, 100), 128),
        inputs=visits(size(500_000, 100), size(200_000, 100), 20),
        loss=of_itself,
        base=Settings(batch=size(2048, 8), update="foreach", heap=1000),
        changes={"gc-pause": {"heap": 0}, **FUSED, "small-batch": {"batch": size(8192, 32)}},
        samples={"small-batch": 4},
        stacks=True,
    ),
    "mixer_anomaly": Job(
        model=lambda _: models.Mixer(size(224, 64), size(512, 64), size(6, 2)),
        inputs=pictures(224),
        loss=of_class,
        base=Settings(batch=size(64, 2), update="loop", anomaly=True, read_weights=12),
        changes={
            "debug-mode": {"anomaly": False},
            "device-sync": {"read_weights": 0},
            **FUSED,
        },
    ),
}
