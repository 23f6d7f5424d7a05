"""An eighth set of jobs: kinds that no set before has, most of them held up by their device.

Convolutions in fp32, recommenders, operators over fields, points and volumes. Recorded with the
time around every change before any of them was diagnosed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from lab.gains import models_eighth as models
from lab.gains.job import Job, Settings
from lab.gains.jobs import (
    BF16,
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
from lab.gains.jobs_third import LAST, SDPA, TF32, TUNED, of_itself
from lab.loops.data import size


def of_scene(forward: Callable[..., Any], batch: tuple[Tensor, ...]) -> Tensor:
    return F.cross_entropy(forward(batch[0])["out"], batch[1])


def of_voxels(forward: Callable[..., Any], batch: tuple[Tensor, ...]) -> Tensor:
    return F.cross_entropy(forward(batch[0]), batch[1])


def of_field(forward: Callable[..., Any], batch: tuple[Tensor, ...]) -> Tensor:
    return F.mse_loss(forward(batch[0]).float(), batch[1])


def scenes(side: int) -> Callable[[int], tuple[Tensor, ...]]:
    side = size(side, 64)
    return lambda n: (torch.randn(n, 3, side, side), torch.randint(0, 21, (n, side, side)))


def clips(frames: int, side: int) -> Callable[[int], tuple[Tensor, ...]]:
    frames, side = size(frames, 8), size(side, 32)
    return lambda n: (torch.randn(n, 3, frames, side, side), torch.randint(0, 400, (n,)))


def voxels(side: int) -> Callable[[int], tuple[Tensor, ...]]:
    side = size(side, 8)
    return lambda n: (
        torch.randn(n, 1, side, side, side),
        torch.randint(0, 4, (n, side, side, side)),
    )


def fields(side: int) -> Callable[[int], tuple[Tensor, ...]]:
    side = size(side, 16)
    return lambda n: (torch.randn(n, 3, side, side), torch.randn(n, 1, side, side))


def bags(tables: int, rows: int) -> Callable[[int], tuple[Tensor, ...]]:
    return lambda n: (
        torch.randint(0, rows, (n, tables, 4)),
        torch.rand(n, 13),
        torch.randint(0, 2, (n,)).float(),
    )


def sounds(length: int) -> Callable[[int], tuple[Tensor, ...]]:
    return lambda n: (torch.randn(n, size(length, 16), 80), torch.randint(0, 100, (n,)))


def points(n: int) -> tuple[Tensor, ...]:
    return (torch.randn(n, 32),)


ROWS = size(100_000, 100)
CONVOLUTIONS = {**TF32, **BF16, **LAST}

EIGHTH_JOBS = {
    "resnet101_fp32": Job(
        model=vision("resnet101"),
        inputs=pictures(160),
        loss=of_class,
        base=Settings(batch=size(64, 2), precision="fp32", optimizer="sgd", update="loop"),
        changes={**CONVOLUTIONS, **FUSED},
    ),
    "efficientnet_v2_tf32": Job(
        model=vision("efficientnet_v2_s"),
        inputs=pictures(192),
        loss=of_class,
        base=Settings(batch=size(64, 2), precision="tf32"),
        changes={**BF16, **LAST},
    ),
    "vgg13_fp32": Job(
        model=vision("vgg13_bn"),
        inputs=pictures(144),
        loss=of_class,
        base=Settings(batch=size(48, 2), precision="fp32"),
        changes={**CONVOLUTIONS, **TUNED},
    ),
    "densenet201_bf16": Job(
        model=vision("densenet201"),
        inputs=pictures(160),
        loss=of_class,
        base=Settings(batch=size(96, 2)),
        changes={**LAST, **TUNED},
    ),
    "convnext_small_fp32": Job(
        model=vision("convnext_small"),
        inputs=pictures(160),
        loss=of_class,
        base=Settings(batch=size(48, 2), precision="fp32", update="loop"),
        changes={**CONVOLUTIONS, **FUSED},
    ),
    "mobilenet_v3_bf16": Job(
        model=vision("mobilenet_v3_large"),
        inputs=pictures(192),
        loss=of_class,
        base=Settings(batch=size(384, 2)),
        changes={**LAST, **TUNED},
    ),
    "fcn_fp32": Job(
        model=vision("segmentation.fcn_resnet50", weights_backbone=None, num_classes=21),
        inputs=scenes(224),
        loss=of_scene,
        base=Settings(batch=size(16, 2), precision="fp32"),
        changes=CONVOLUTIONS,
    ),
    "r2plus1d_fp32": Job(
        model=vision("video.r2plus1d_18"),
        inputs=clips(12, 96),
        loss=of_class,
        base=Settings(batch=size(12, 2), precision="fp32"),
        changes={**TF32, **BF16},
    ),
    "volumes_fp32": Job(
        model=lambda _: models.Volumes(size(32, 4), 4),
        inputs=voxels(64),
        loss=of_voxels,
        base=Settings(batch=size(4, 2), precision="fp32"),
        changes={**TF32, **BF16},
    ),
    "gptj_eager": Job(
        model=transformer(
            "GPTJForCausalLM",
            n_embd=size(1536, 64),
            n_layer=size(8, 2),
            n_head=size(12, 4),
            rotary_dim=size(64, 8),
            n_positions=1024,
            vocab_size=size(32000, 256),
            use_cache=False,
        ),
        inputs=text(32000, 512),
        loss=of_tokens,
        base=Settings(batch=size(8, 2), precision="fp32", attention="eager", update="loop"),
        changes={**TF32, **BF16, **FUSED},
    ),
    "bart_fp32": Job(
        model=transformer(
            "BartForConditionalGeneration",
            d_model=size(1024, 64),
            encoder_layers=size(6, 2),
            decoder_layers=size(6, 2),
            encoder_attention_heads=size(16, 4),
            decoder_attention_heads=size(16, 4),
            encoder_ffn_dim=size(4096, 128),
            decoder_ffn_dim=size(4096, 128),
            vocab_size=size(32000, 256),
            use_cache=False,
        ),
        inputs=text(32000, 384),
        loss=of_tokens,
        base=Settings(batch=size(16, 2), precision="fp32", attention="eager", update="loop"),
        changes={**TF32, **BF16, **SDPA, **FUSED},
    ),
    "cohere_eager": Job(
        model=transformer(
            "CohereForCausalLM",
            hidden_size=size(1536, 64),
            num_hidden_layers=size(6, 2),
            num_attention_heads=size(12, 4),
            num_key_value_heads=size(12, 4),
            intermediate_size=size(4096, 128),
            vocab_size=size(32000, 256),
            use_cache=False,
        ),
        inputs=text(32000, 1536),
        loss=of_tokens,
        base=Settings(batch=size(4, 2), attention="eager", update="loop"),
        changes={**SDPA, **FUSED},
    ),
    "towers_fp32": Job(
        model=lambda _: models.WideTowers(26, ROWS, size(128, 16), size(2048, 32)),
        inputs=bags(26, ROWS),
        loss=of_itself,
        base=Settings(batch=size(8192, 8), precision="fp32", optimizer="sgd", update="loop"),
        changes={**TF32, **BF16, **FUSED},
    ),
    "fourier_fp32": Job(
        model=lambda _: models.FourierOperator(size(64, 8), size(24, 4), size(6, 2)),
        inputs=fields(128),
        loss=of_field,
        base=Settings(batch=size(32, 2), precision="fp32", update="loop"),
        changes={**TF32, **BF16, **FUSED},
    ),
    "conformer_fp32": Job(
        model=lambda _: models.Conformer(size(512, 32), size(8, 4), size(8, 2), 100),
        inputs=sounds(600),
        loss=of_class,
        base=Settings(batch=size(24, 2), precision="fp32", update="loop"),
        changes={**TF32, **BF16, **FUSED},
    ),
    "surrogate_fp32": Job(
        model=lambda _: models.Surrogate(size(1024, 32), size(8, 2)),
        inputs=points,
        loss=of_square,
        base=Settings(batch=size(32768, 8), precision="fp32", update="loop"),
        changes={**TF32, **BF16, **FUSED, **COMPILED},
    ),
}
