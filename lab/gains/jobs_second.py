"""A second set of jobs, with other models and faults than the first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from lab.gains import models
from lab.gains.job import Job, Settings
from lab.gains.jobs import (
    BF16,
    CAPTURED,
    COMPILED,
    FUSED,
    TF32,
    of_class,
    of_square,
    of_tokens,
    pictures,
    text,
    transformer,
    vision,
)
from lab.loops.data import size


def of_pairs(forward: Callable[..., Any], batch: tuple[Tensor, ...]) -> Tensor:
    loss: Tensor = forward(input_ids=batch[0], labels=batch[0]).loss
    return loss


def of_next(forward: Callable[..., Any], batch: tuple[Tensor, ...]) -> Tensor:
    """Next-token loss of a model that returns logits."""
    logits = forward(batch[0])
    return F.cross_entropy(logits.view(-1, logits.shape[-1]), batch[0].flatten())


def of_pixels(forward: Callable[..., Any], batch: tuple[Tensor, ...]) -> Tensor:
    return F.cross_entropy(forward(batch[0])["out"], batch[1])


def of_segments(forward: Callable[..., Any], batch: tuple[Tensor, ...]) -> Tensor:
    loss: Tensor = forward(pixel_values=batch[0], labels=batch[1]).loss
    return loss


def scenes(side: int, classes: int) -> Callable[[int], tuple[Tensor, ...]]:
    side = size(side, 64)
    return lambda n: (torch.randn(n, 3, side, side), torch.randint(0, classes, (n, side, side)))


ALBERT = transformer(
    "AlbertForMaskedLM",
    hidden_size=size(768, 64),
    embedding_size=size(128, 16),
    num_hidden_layers=size(8, 2),
    num_attention_heads=size(12, 4),
    intermediate_size=size(3072, 128),
    vocab_size=size(30000, 256),
)
T5 = transformer(
    "T5ForConditionalGeneration",
    d_model=size(512, 64),
    d_kv=size(64, 16),
    d_ff=size(2048, 128),
    num_layers=size(6, 2),
    num_heads=size(8, 4),
    vocab_size=size(32128, 256),
    decoder_start_token_id=0,
    use_cache=False,
)
SEGFORMER = transformer("SegformerForSemanticSegmentation", num_labels=size(32, 4))
MISTRAL = transformer(
    "MistralForCausalLM",
    hidden_size=size(1024, 64),
    num_hidden_layers=size(6, 2),
    num_attention_heads=size(16, 4),
    num_key_value_heads=size(4, 2),
    intermediate_size=size(3584, 128),
    vocab_size=size(32000, 256),
    use_cache=False,
)
STABLELM = transformer(
    "StableLmForCausalLM",
    hidden_size=size(768, 64),
    num_hidden_layers=size(8, 2),
    num_attention_heads=size(12, 4),
    num_key_value_heads=size(12, 4),
    intermediate_size=size(2048, 128),
    vocab_size=size(50304, 256),
    use_cache=False,
)
BART = transformer(
    "BartForConditionalGeneration",
    d_model=size(512, 64),
    encoder_layers=size(4, 2),
    decoder_layers=size(4, 2),
    encoder_attention_heads=8,
    decoder_attention_heads=8,
    encoder_ffn_dim=size(2048, 128),
    decoder_ffn_dim=size(2048, 128),
    vocab_size=size(50265, 256),
    use_cache=False,
)

SECOND_JOBS = {
    "albert_fp32": Job(
        model=ALBERT,
        inputs=text(30000, 128),
        loss=of_tokens,
        base=Settings(batch=size(32, 2), precision="fp32", update="foreach"),
        changes={**BF16, **TF32, **COMPILED},
    ),
    "efficientnet_fp32": Job(
        model=vision("efficientnet_b0"),
        inputs=pictures(192),
        loss=of_class,
        base=Settings(batch=size(96, 2), precision="fp32", optimizer="sgd", update="foreach"),
        changes={**BF16, "nchw-layout": {"channels_last": True}, **COMPILED},
    ),
    "t5_loop": Job(
        model=T5,
        inputs=text(32128, 256),
        loss=of_pairs,
        base=Settings(batch=size(16, 2), update="loop"),
        changes={**FUSED, **COMPILED, **CAPTURED},
    ),
    "maxvit_reads": Job(
        model=vision("maxvit_t"),
        inputs=pictures(224),
        loss=of_class,
        base=Settings(batch=size(16, 2), read_loss=True, read_weights=20),
        changes={"device-sync": {"read_loss": False, "read_weights": 0}},
    ),
    "segformer_fp32": Job(
        model=SEGFORMER,
        inputs=scenes(256, size(32, 4)),
        loss=of_segments,
        base=Settings(batch=size(16, 2), precision="fp32"),
        changes={**BF16, **TF32, **COMPILED},
    ),
    "gru_fp32": Job(
        model=lambda _: models.Recurrent(size(8000, 256), size(768, 32), 2),
        inputs=text(8000, 128),
        loss=of_next,
        base=Settings(batch=size(64, 2), precision="fp32", clip="loop"),
        changes={**BF16, **TF32, "device-sync": {"clip": "fused"}},
    ),
    "wavenet_small": Job(
        model=lambda _: models.DilatedStack(size(64, 16), size(24, 4)),
        inputs=lambda n: (torch.randn(n, 1, size(4096, 64)),),
        loss=of_square,
        base=Settings(batch=size(4, 2)),
        changes={"small-batch": {"batch": size(16, 4)}, **COMPILED, **CAPTURED},
        samples={"small-batch": size(4, 2)},
    ),
    "dit_fp32": Job(
        model=lambda _: models.ConditionedTransformer(size(768, 64), size(8, 2), size(12, 4)),
        inputs=lambda n: (torch.randn(n, 256, size(768, 64)), torch.randn(n, size(768, 64))),
        loss=of_square,
        base=Settings(batch=size(16, 2), precision="fp32"),
        changes={**BF16, **TF32, **COMPILED},
    ),
    "mistral_eager": Job(
        model=MISTRAL,
        inputs=text(32000, 2048),
        loss=of_tokens,
        base=Settings(batch=size(4, 2), attention="eager", recompute=True),
        changes={
            "unfused-attention": {"attention": "sdpa"},
            "needless-recompute": {"recompute": False},
            **COMPILED,
        },
    ),
    "stablelm_accumulates": Job(
        model=STABLELM,
        inputs=text(50304, 256),
        loss=of_tokens,
        base=Settings(batch=1, accumulate=8),
        changes={"small-batch": {"batch": 8, "accumulate": 1}, **COMPILED},
    ),
    "vgg_storage": Job(
        model=vision("vgg11"),
        inputs=pictures(128),
        loss=of_class,
        base=Settings(batch=size(64, 2), optimizer="sgd", workers=3, read_ms=2.0),
        changes={"starved-loader": {"workers": 12}, "starved-loader#6": {"workers": 6}},
    ),
    "shufflenet_serial": Job(
        model=vision("shufflenet_v2_x1_0"),
        inputs=pictures(160),
        loss=of_class,
        base=Settings(batch=size(32, 2), workers=0, transform_units=1),
        changes={"serial-loader": {"workers": 8}, "serial-loader#4": {"workers": 4}, **COMPILED},
    ),
    "bart_saves": Job(
        model=BART,
        inputs=text(50265, 256),
        loss=of_pairs,
        base=Settings(batch=size(16, 2), save_every=1),
        changes={"checkpoint-stall": {"save_every": 0}, **COMPILED},
    ),
    "routed_loop": Job(
        model=lambda s: models.Routed(
            size(16000, 256), size(512, 32), size(1536, 64), 16, 6, grouped=s.variant == "grouped"
        ),
        inputs=text(16000, 512),
        loss=of_next,
        base=Settings(batch=size(8, 2), update="foreach"),
        changes={"expert-loop": {"variant": "grouped"}, **FUSED},
    ),
    "wide_bf16": Job(
        model=lambda s: models.WideBlocks(
            size(4096, 64), size(14336, 128), size(3, 2), fp8=s.variant == "fp8"
        ),
        inputs=lambda n: (torch.randn(n, size(4096, 64), dtype=torch.bfloat16),),
        loss=of_square,
        base=Settings(batch=size(8192, 32), compile="default"),
        changes={"bf16-matmul": {"variant": "fp8"}},
    ),
    "deeplab_pageable": Job(
        model=vision("segmentation.deeplabv3_resnet50", weights_backbone=None),
        inputs=scenes(320, 21),
        loss=of_pixels,
        base=Settings(batch=size(12, 2), precision="tf32", optimizer="sgd", source="pageable"),
        changes={
            **BF16,
            "nchw-layout": {"channels_last": True},
            "pageable-copy": {"source": "pinned"},
        },
    ),
}
