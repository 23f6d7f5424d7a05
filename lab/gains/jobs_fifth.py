"""A fifth set of jobs, with other pairs of model and fault than the first four."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from lab.gains import models_fifth as models
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
from lab.gains.jobs_third import LAST, SDPA, TF32, TUNED, of_itself, of_sound
from lab.gains.models_third import Headed
from lab.loops.data import size


def of_map(forward: Callable[..., Any], batch: tuple[Tensor, ...]) -> Tensor:
    """For torchvision's segmentation models."""
    return F.cross_entropy(forward(batch[0])["out"], batch[1])


def clips(frames: int, side: int) -> Callable[[int], tuple[Tensor, ...]]:
    return lambda n: (torch.randn(n, 3, frames, side, side), torch.randint(0, 400, (n,)))


def sounds(samples: int) -> Callable[[int], tuple[Tensor, ...]]:
    return lambda n: (torch.randn(n, size(samples, 4000)), torch.randint(0, 2, (n,)))


def clicks(tables: int, rows: int) -> Callable[[int], tuple[Tensor, ...]]:
    return lambda n: (torch.randint(0, rows, (n, tables)), torch.randint(0, 2, (n,)).float())


def qwen3(settings: Settings) -> nn.Module:
    width, vocab = size(1024, 64), size(151936, 256)
    body = transformer(
        "Qwen3Model",
        "Qwen3",
        hidden_size=width,
        num_hidden_layers=size(4, 2),
        num_attention_heads=size(16, 4),
        num_key_value_heads=size(8, 2),
        head_dim=size(64, 16),
        intermediate_size=size(3072, 128),
        vocab_size=vocab,
        use_cache=False,
    )
    return Headed(body(settings), width, vocab, compiled=settings.variant == "compiled")


PEGASUS = transformer(
    "PegasusForConditionalGeneration",
    d_model=size(768, 64),
    encoder_layers=size(4, 2),
    decoder_layers=size(4, 2),
    encoder_attention_heads=size(12, 4),
    decoder_attention_heads=size(12, 4),
    encoder_ffn_dim=size(3072, 128),
    decoder_ffn_dim=size(3072, 128),
    vocab_size=size(32128, 256),
    use_cache=False,
)
MIXTRAL = transformer(
    "MixtralForCausalLM",
    hidden_size=size(768, 64),
    num_hidden_layers=size(4, 2),
    num_attention_heads=size(12, 4),
    num_key_value_heads=size(4, 2),
    intermediate_size=size(2048, 128),
    num_local_experts=8,
    num_experts_per_tok=2,
    vocab_size=size(32000, 256),
    use_cache=False,
)
GRANITE = transformer(
    "GraniteForCausalLM",
    hidden_size=size(1024, 64),
    num_hidden_layers=size(6, 2),
    num_attention_heads=size(16, 4),
    num_key_value_heads=size(4, 2),
    intermediate_size=size(4096, 128),
    vocab_size=size(49152, 256),
    use_cache=False,
)
BLOOM = transformer(
    "BloomForCausalLM",
    hidden_size=size(1024, 64),
    n_layer=size(8, 2),
    n_head=size(16, 4),
    vocab_size=size(64000, 256),
    use_cache=False,
)
BERT = transformer(
    "BertForMaskedLM",
    hidden_size=size(512, 64),
    num_hidden_layers=size(8, 2),
    num_attention_heads=size(8, 4),
    intermediate_size=size(2048, 128),
    vocab_size=size(30522, 258),
)
HUBERT = transformer(
    "HubertForSequenceClassification",
    hidden_size=size(512, 64),
    num_hidden_layers=size(6, 2),
    num_attention_heads=size(8, 4),
    intermediate_size=size(2048, 128),
    num_conv_pos_embeddings=size(128, 16),
    num_conv_pos_embedding_groups=size(16, 4),
    apply_spec_augment=False,
    num_labels=2,
)

FIFTH_JOBS = {
    "qwen3_logits": Job(
        model=qwen3,
        inputs=text(151936, 512),
        loss=of_itself,
        base=Settings(batch=size(8, 2), update="foreach"),
        changes={
            "wide-logits": {"variant": "compiled"},
            "activation-casts": {"precision": "weights"},
            **COMPILED,
        },
    ),
    "pegasus_fp32": Job(
        model=PEGASUS,
        inputs=text(32128, 512),
        loss=of_tokens,
        base=Settings(batch=size(8, 2), precision="fp32", attention="eager"),
        changes={**BF16, **TF32, **SDPA},
    ),
    "mixtral_reads": Job(
        model=MIXTRAL,
        inputs=text(32000, 256),
        loss=of_tokens,
        base=Settings(batch=size(4, 2), update="loop", read_loss=True, clip="loop"),
        changes={
            **FUSED,
            "device-sync": {"clip": "fused"},
            "small-batch": {"batch": size(16, 8)},
        },
        samples={"small-batch": 4},
    ),
    "bloom_accumulates": Job(
        model=BLOOM,
        inputs=text(64000, 256),
        loss=of_tokens,
        base=Settings(batch=size(2, 2), accumulate=4, attention="eager", update="foreach"),
        changes={"small-batch": {"batch": size(8, 8), "accumulate": 1}, **COMPILED},
    ),
    "inception_fp32": Job(
        model=vision("inception_v3", aux_logits=False, init_weights=False),
        inputs=pictures(299),
        loss=of_class,
        base=Settings(batch=size(48, 2), precision="fp32", optimizer="sgd", update="foreach"),
        changes={**BF16, **LAST, **TUNED, **COMPILED},
    ),
    "wide_resnet_copies": Job(
        model=vision("wide_resnet50_2"),
        inputs=pictures(224),
        loss=of_class,
        base=Settings(batch=size(64, 2), optimizer="sgd", update="loop", source="pageable"),
        changes={
            "pageable-copy": {"source": "pinned"},
            "unoverlapped-copy": {"source": "ahead"},
            **LAST,
            **FUSED,
        },
    ),
    "googlenet_small": Job(
        model=vision("googlenet", aux_logits=False, init_weights=False),
        inputs=pictures(128),
        loss=of_class,
        base=Settings(batch=size(16, 2), precision="fp32", update="loop"),
        changes={**CAPTURED, **FUSED, "small-batch": {"batch": size(64, 8)}},
        samples={"small-batch": 4},
    ),
    "lraspp_serial": Job(
        model=vision("segmentation.lraspp_mobilenet_v3_large", weights_backbone=None),
        inputs=scenes(224, 21),
        loss=of_map,
        base=Settings(batch=size(24, 2), precision="fp32", workers=0, transform_units=2),
        changes={
            "serial-loader": {"workers": size(8, 2)},
            "serial-loader#2": {"workers": 2},
            **BF16,
        },
    ),
    "s3d_fp32": Job(
        model=vision("video.s3d"),
        inputs=clips(16, 224),
        loss=of_class,
        base=Settings(batch=size(8, 2), precision="fp32", optimizer="sgd", update="fused"),
        changes={**BF16, **TF32, **COMPILED},
    ),
    "hubert_storage": Job(
        model=HUBERT,
        inputs=sounds(32000),
        loss=of_sound,
        base=Settings(batch=size(16, 2), update="foreach", workers=3, read_ms=12.0),
        changes={
            "starved-loader": {"workers": size(12, 4)},
            "starved-loader#6": {"workers": size(6, 3)},
            **FUSED,
        },
    ),
    "painter_reads": Job(
        model=lambda _: models.Painter(128, size(64, 8), size(4, 2)),
        inputs=lambda n: (torch.randn(n, 128, 1, 1),),
        loss=of_square,
        base=Settings(batch=size(64, 2), precision="fp32", update="loop", read_weights=14),
        changes={"device-sync": {"read_weights": 0}, **BF16, **LAST, **FUSED},
    ),
    "granite_collects": Job(
        model=GRANITE,
        inputs=text(49152, 512),
        loss=of_tokens,
        base=Settings(batch=size(4, 2), update="foreach", heap=30_000),
        changes={"gc-pause": {"heap": 0}, **COMPILED, **FUSED},
    ),
    "radiance_fp32": Job(
        model=lambda _: models.RadianceField(size(256, 32), 8, 10),
        inputs=lambda n: (torch.randn(n, 3),),
        loss=of_square,
        base=Settings(batch=size(131_072, 64), precision="fp32", update="foreach"),
        changes={**BF16, **TF32, **COMPILED, **FUSED},
    ),
    "crosses_loop": Job(
        model=lambda _: models.CrossNetwork(26, size(20_000, 100), 32, 3),
        inputs=clicks(26, size(20_000, 100)),
        loss=of_itself,
        base=Settings(batch=size(4096, 8), precision="fp32", update="loop"),
        changes={**FUSED, **COMPILED, **CAPTURED, "small-batch": {"batch": size(16384, 32)}},
        samples={"small-batch": 4},
    ),
    "bert_saves": Job(
        model=BERT,
        inputs=text(30522, 128),
        loss=of_tokens,
        base=Settings(batch=size(64, 2), precision="fp32", update="loop", save_every=3),
        changes={"checkpoint-stall": {"save_every": 0}, **BF16, **FUSED},
    ),
    "latents_think": Job(
        model=lambda _: models.LatentReader(size(512, 64), size(128, 16), size(6, 2), 100),
        inputs=lambda n: (torch.randn(n, size(2048, 64), 64), torch.randint(0, 100, (n,))),
        loss=of_class,
        base=Settings(batch=size(16, 2), precision="fp32", update="foreach", python_ms=6.0),
        changes={"python-overhead": {"python_ms": 0.0}, **BF16, **CAPTURED},
    ),
}
