"""A sixth set of jobs, with other pairs of model and fault than the first five.

About a third wait for the host, a third for the device, and the rest for their input or for more
than one of these. In some a change that textbooks name gives nothing or makes the step slower.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from lab.gains import models_sixth as models
from lab.gains.job import Job, Settings
from lab.gains.jobs import (
    BF16,
    CAPTURED,
    COMPILED,
    FUSED,
    of_square,
    of_tokens,
    pictures,
    text,
    transformer,
)
from lab.gains.jobs_fourth import RECOMPUTED, captions, of_captions
from lab.gains.jobs_second import SEGFORMER, of_segments, scenes
from lab.gains.jobs_third import LAST, SDPA, TF32, TUNED, WHISPER, of_itself, of_pictures, of_speech
from lab.loops.data import size

NODES, DEGREE = size(200_000, 200), size(32, 4)
TASKS = 6


def without_attention(name: str, prefix: str, **sizes: Any) -> Callable[[Settings], nn.Module]:
    """A model of transformers that has no attention, and so no other way to compute it."""
    make = transformer(name, prefix, **sizes)
    return lambda settings: make(replace(settings, attention="eager"))


def of_patches(forward: Callable[..., Any], batch: tuple[Tensor, ...]) -> Tensor:
    """For a model that is given pictures alone and returns its loss."""
    loss: Tensor = forward(pixel_values=batch[0]).loss
    return loss


def of_sampled(forward: Callable[..., Any], batch: tuple[Tensor, ...]) -> Tensor:
    return F.cross_entropy(forward(*batch[:3]), batch[3])


def speech(n: int) -> tuple[Tensor, ...]:
    words = torch.randint(3, size(51864, 256), (n, size(48, 16)))
    return torch.randn(n, 80, 2 * size(1500, 50)), words


def boxed(side: int, boxes: int) -> Callable[[int], tuple[Tensor, ...]]:
    side = size(side, 64)
    return lambda n: (
        torch.randn(n, 3, side, side),
        torch.randint(0, 91, (n, boxes)),
        torch.rand(n, boxes, 4),
    )


def neighbourhoods() -> Callable[[int], tuple[Tensor, ...]]:
    """Seeds of a random graph with neighbours sampled on the host, two hops of ten."""
    neighbours = torch.randint(0, NODES, (NODES, DEGREE))

    def sample(n: int) -> tuple[Tensor, ...]:
        seeds = torch.randint(0, NODES, (n,))
        first = neighbours[seeds][:, torch.randperm(DEGREE)[:10]]
        second = neighbours[first][:, :, torch.randperm(DEGREE)[:10]]
        return seeds, first, second, torch.randint(0, 40, (n,))

    return sample


def purchases(items: int, length: int) -> Callable[[int], tuple[Tensor, ...]]:
    return lambda n: (torch.randint(0, items, (n, length)),)


def prompts(side: int, words: int) -> Callable[[int], tuple[Tensor, ...]]:
    return lambda n: (torch.randn(n, 4, side, side), torch.rand(n, 1), torch.randn(n, 77, words))


def frames(count: int, side: int) -> Callable[[int], tuple[Tensor, ...]]:
    side = size(side, 32)
    return lambda n: (torch.randn(n, count, 3, side, side), torch.randint(0, 400, (n,)))


def bags(tables: int, rows: int, tasks: int) -> Callable[[int], tuple[Tensor, ...]]:
    return lambda n: (
        torch.randint(0, rows, (n, tables, 5)),
        torch.randint(0, 2, (n, tasks)).float(),
    )


def detector(settings: Settings) -> nn.Module:
    body = without_attention(
        "ResNetModel",
        "ResNet",
        embedding_size=size(64, 16),
        hidden_sizes=[size(256, 16), size(512, 32), size(1024, 64), size(2048, 64)],
        depths=[size(3, 1), size(4, 1), size(6, 1), size(3, 1)],
    )
    return models.Detector(
        body(settings),
        size(2048, 64),
        size(256, 32),
        size(4, 1),
        size(100, 16),
        together=settings.variant == "together",
    )


def qwen2_adapted(settings: Settings) -> nn.Module:
    make = transformer(
        "Qwen2ForCausalLM",
        hidden_size=size(1536, 64),
        num_hidden_layers=size(8, 2),
        num_attention_heads=size(12, 4),
        num_key_value_heads=size(2, 2),
        intermediate_size=size(8960, 128),
        vocab_size=size(32000, 256),
        use_cache=False,
    )
    adapted = {"q_proj", "k_proj", "v_proj", "o_proj"}
    return models.with_low_rank(make(settings), adapted, size(16, 4))


def player(settings: Settings) -> nn.Module:
    return models.Player(size(256, 32), size(16, 4), in_turn=settings.variant != "together")


def many_tasks(settings: Settings) -> nn.Module:
    together = settings.variant == "together"
    return models.ManyTasks(20, size(50_000, 100), TASKS, size(32, 4), together=together)


def next_item(settings: Settings) -> nn.Module:
    return models.NextItem(
        size(60_000, 200),
        size(128, 32),
        2,
        size(101, 9),
        compiled=settings.variant == "compiled",
    )


CONVNEXT2 = without_attention(
    "ConvNextV2ForImageClassification",
    "ConvNextV2",
    hidden_sizes=[size(64, 16), size(128, 16), size(256, 32), size(512, 32)],
    depths=[2, 2, size(6, 2), 2],
    num_labels=1000,
)
MAMBA = without_attention(
    "MambaForCausalLM",
    "Mamba",
    hidden_size=size(256, 32),
    num_hidden_layers=2,
    state_size=size(16, 4),
    vocab_size=size(16000, 256),
    use_cache=False,
)
MAE = transformer(
    "ViTMAEForPreTraining",
    "ViTMAE",
    hidden_size=size(768, 64),
    num_hidden_layers=size(8, 2),
    num_attention_heads=size(12, 4),
    intermediate_size=size(3072, 128),
    decoder_hidden_size=size(512, 64),
    decoder_num_hidden_layers=size(4, 1),
    decoder_num_attention_heads=size(16, 4),
    decoder_intermediate_size=size(2048, 128),
    image_size=size(224, 64),
)
MT5 = transformer(
    "MT5ForConditionalGeneration",
    d_model=size(512, 64),
    d_kv=size(64, 16),
    d_ff=size(1024, 128),
    num_layers=size(4, 2),
    num_heads=size(6, 4),
    vocab_size=size(32128, 256),
    decoder_start_token_id=0,
    use_cache=False,
)
SIGLIP = transformer(
    "SiglipModel",
    "Siglip",
    text_config={
        "hidden_size": size(768, 64),
        "num_hidden_layers": size(4, 2),
        "num_attention_heads": size(12, 4),
        "intermediate_size": size(3072, 128),
        "vocab_size": size(32000, 256),
        "projection_size": size(768, 64),
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    vision_config={
        "hidden_size": size(768, 64),
        "num_hidden_layers": size(8, 2),
        "num_attention_heads": size(12, 4),
        "intermediate_size": size(3072, 128),
        "image_size": size(224, 64),
        "patch_size": 16,
    },
)
VIDEOMAE = transformer(
    "VideoMAEForVideoClassification",
    hidden_size=size(384, 64),
    num_hidden_layers=size(6, 2),
    num_attention_heads=size(6, 4),
    intermediate_size=size(1536, 128),
    image_size=size(224, 32),
    num_frames=size(16, 4),
    num_labels=400,
)

SIXTH_JOBS = {
    "whisper_accumulates": Job(
        model=WHISPER,
        inputs=speech,
        loss=of_speech,
        base=Settings(batch=2, accumulate=4, update="loop", read_loss=True),
        changes={
            "small-batch": {"batch": 8, "accumulate": 1},
            **FUSED,
            "device-sync": {"read_loss": False},
            "activation-casts": {"precision": "weights"},
        },
    ),
    "detector_cache": Job(
        model=detector,
        inputs=boxed(320, size(8, 3)),
        loss=of_itself,
        base=Settings(batch=size(16, 2), precision="fp32", update="foreach", empty_cache=True),
        changes={
            "allocator-churn": {"empty_cache": False},
            "device-sync": {"variant": "together"},
            **BF16,
            **LAST,
        },
    ),
    "segformer_one_worker": Job(
        model=SEGFORMER,
        inputs=scenes(256, size(32, 4)),
        loss=of_segments,
        base=Settings(batch=size(8, 2), update="loop", workers=1, transform_units=4),
        changes={
            "starved-loader": {"workers": size(10, 3)},
            "starved-loader#3": {"workers": size(3, 2)},
            **FUSED,
        },
    ),
    "convnext2_anomaly": Job(
        model=CONVNEXT2,
        inputs=pictures(128),
        loss=of_pictures,
        base=Settings(batch=size(16, 2), update="loop", clip="loop", anomaly=True),
        changes={
            "debug-mode": {"anomaly": False},
            "device-sync": {"clip": "fused"},
            **FUSED,
            "small-batch": {"batch": size(64, 8)},
        },
        samples={"small-batch": 4},
    ),
    "mamba_collects": Job(
        model=MAMBA,
        inputs=text(16000, 96),
        loss=of_tokens,
        base=Settings(batch=size(4, 2), precision="fp32", update="foreach", heap=20_000),
        changes={
            "gc-pause": {"heap": 0},
            **BF16,
            **FUSED,
            "small-batch": {"batch": size(16, 8)},
        },
        samples={"small-batch": 4},
    ),
    "sage_serial": Job(
        model=lambda _: models.NeighbourMean(NODES, size(256, 32), 40),
        inputs=neighbourhoods(),
        loss=of_sampled,
        base=Settings(batch=size(512, 8), precision="fp32", update="loop", workers=0),
        changes={
            "serial-loader": {"workers": size(8, 2)},
            "serial-loader#2": {"workers": 2},
            **BF16,
        },
    ),
    "mae_recompute": Job(
        model=MAE,
        inputs=pictures(224),
        loss=of_patches,
        base=Settings(batch=size(192, 2), precision="tf32", attention="eager", recompute=True),
        changes={**RECOMPUTED, **BF16, **SDPA, **COMPILED},
    ),
    "sasrec_logits": Job(
        model=next_item,
        inputs=purchases(size(60_000, 200), size(101, 9)),
        loss=of_itself,
        base=Settings(batch=size(96, 2), precision="fp32", update="loop", source="pageable"),
        changes={
            "wide-logits": {"variant": "compiled"},
            **TF32,
            **FUSED,
            "pageable-copy": {"source": "pinned"},
        },
    ),
    "qwen2_adapters": Job(
        model=qwen2_adapted,
        inputs=text(32000, 1024),
        loss=of_tokens,
        base=Settings(batch=size(8, 2), update="loop", recompute=True),
        changes={
            **RECOMPUTED,
            "activation-casts": {"precision": "weights"},
            **FUSED,
            **COMPILED,
        },
    ),
    "mt5_saves": Job(
        model=MT5,
        inputs=text(32128, 256),
        loss=of_tokens,
        base=Settings(batch=size(16, 2), precision="fp32", update="loop", save_every=4),
        changes={"checkpoint-stall": {"save_every": 0}, **BF16, **FUSED},
    ),
    "denoiser_nchw": Job(
        model=lambda _: models.PromptedDenoiser(size(128, 16), size(512, 32)),
        inputs=prompts(size(64, 16), size(512, 32)),
        loss=of_square,
        base=Settings(batch=size(16, 2), precision="fp16", update="loop"),
        changes={**LAST, **TUNED, **FUSED, **COMPILED},
    ),
    "siglip_pageable": Job(
        model=SIGLIP,
        inputs=captions(32000, 64, 224),
        loss=of_captions,
        base=Settings(batch=size(128, 2), update="foreach", source="pageable"),
        changes={
            "pageable-copy": {"source": "pinned"},
            "unoverlapped-copy": {"source": "ahead"},
            "activation-casts": {"precision": "weights"},
            **COMPILED,
        },
    ),
    "videomae_fp32": Job(
        model=VIDEOMAE,
        inputs=frames(size(16, 4), 224),
        loss=of_pictures,
        base=Settings(batch=size(8, 2), precision="fp32", attention="eager", update="fused"),
        changes={**BF16, **TF32, **SDPA},
    ),
    "policy_plays": Job(
        model=player,
        inputs=lambda n: (torch.randn(n, 4) * 0.05,),
        loss=of_itself,
        base=Settings(batch=size(64, 4), precision="fp32", update="loop", python_ms=8.0),
        changes={
            "device-sync": {"variant": "together"},
            "python-overhead": {"python_ms": 0.0},
            **BF16,
            **FUSED,
        },
    ),
    "tasks_loop": Job(
        model=many_tasks,
        inputs=bags(20, size(50_000, 100), TASKS),
        loss=of_itself,
        base=Settings(batch=size(2048, 8), precision="fp32", update="loop"),
        changes={
            "expert-loop": {"variant": "together"},
            **FUSED,
            **CAPTURED,
            "small-batch": {"batch": size(8192, 32)},
        },
        samples={"small-batch": 4},
    ),
}
