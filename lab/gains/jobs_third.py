"""A third set of jobs, with other models and faults than the first two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from lab.gains import models_third as models
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
from lab.loops.data import size
from lab.models import Recommender
from lab.models_second import Ddpm

TF32 = {"tf32-off": {"precision": "tf32"}}
SDPA = {"unfused-attention": {"attention": "sdpa"}}
LAST = {"nchw-layout": {"channels_last": True}}
TUNED = {"untuned-convolution": {"cudnn_benchmark": True}}


def of_itself(forward: Callable[..., Any], batch: tuple[Tensor, ...]) -> Tensor:
    """For a model that returns its loss."""
    loss: Tensor = forward(*batch)
    return loss


def of_pictures(forward: Callable[..., Any], batch: tuple[Tensor, ...]) -> Tensor:
    loss: Tensor = forward(pixel_values=batch[0], labels=batch[1]).loss
    return loss


def of_speech(forward: Callable[..., Any], batch: tuple[Tensor, ...]) -> Tensor:
    loss: Tensor = forward(input_features=batch[0], labels=batch[1]).loss
    return loss


def of_sound(forward: Callable[..., Any], batch: tuple[Tensor, ...]) -> Tensor:
    loss: Tensor = forward(input_values=batch[0], labels=batch[1]).loss
    return loss


def of_translation(forward: Callable[..., Any], batch: tuple[Tensor, ...]) -> Tensor:
    logits = forward(*batch)
    return F.cross_entropy(logits.view(-1, logits.shape[-1]), batch[1].flatten())


def sentences(vocab: int, length: int) -> Callable[[int], tuple[Tensor, ...]]:
    """Pairs of token sequences."""
    one = text(vocab, length)
    return lambda n: (*one(n), *one(n))


def spectra(bins: int, length: int) -> Callable[[int], tuple[Tensor, ...]]:
    return lambda n: (torch.randn(n, length, bins), torch.randint(0, 10, (n,)))


def gpt2(settings: Settings) -> nn.Module:
    """The published vocabulary, or padded to the next multiple of 64."""
    vocab = size(50257, 257)
    if settings.variant == "padded":
        vocab = -(-vocab // 64) * 64
    make = transformer(
        "GPT2LMHeadModel",
        "GPT2",
        n_embd=size(768, 64),
        n_layer=size(4, 2),
        n_head=size(12, 4),
        n_positions=size(1024, 16),
        vocab_size=vocab,
        use_cache=False,
    )
    return make(settings)


def llama_with_head(settings: Settings) -> nn.Module:
    width, vocab = size(1024, 64), size(128256, 256)
    body = transformer(
        "LlamaModel",
        "Llama",
        hidden_size=width,
        num_hidden_layers=2,
        num_attention_heads=size(16, 4),
        num_key_value_heads=size(8, 2),
        intermediate_size=size(3584, 128),
        vocab_size=vocab,
        use_cache=False,
    )
    return models.Headed(body(settings), width, vocab, compiled=settings.variant == "compiled")


def shared_depth(settings: Settings) -> nn.Module:
    return models.SharedDepth(
        size(2048, 64),
        16,
        size(10, 3),
        cached=settings.variant == "cached",
        spelled=settings.attention == "eager",
    )


WHISPER = transformer(
    "WhisperForConditionalGeneration",
    d_model=size(512, 64),
    encoder_layers=size(4, 2),
    decoder_layers=size(4, 2),
    encoder_attention_heads=8,
    decoder_attention_heads=8,
    encoder_ffn_dim=size(2048, 128),
    decoder_ffn_dim=size(2048, 128),
    max_source_positions=size(1500, 50),
    max_target_positions=size(448, 32),
    vocab_size=size(51864, 256),
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
    decoder_start_token_id=1,
    use_cache=False,
)
ELECTRA = transformer(
    "ElectraForMaskedLM",
    embedding_size=size(128, 32),
    hidden_size=size(256, 64),
    num_hidden_layers=size(6, 2),
    num_attention_heads=4,
    intermediate_size=size(1024, 128),
    vocab_size=size(30528, 256),
)
DEIT = transformer(
    "DeiTForImageClassification",
    hidden_size=size(384, 64),
    num_hidden_layers=size(6, 2),
    num_attention_heads=size(6, 4),
    intermediate_size=size(1536, 128),
    image_size=size(224, 64),
    num_labels=1000,
)
DEBERTA = transformer(
    "DebertaV2ForMaskedLM",
    hidden_size=size(512, 64),
    num_hidden_layers=size(4, 2),
    num_attention_heads=8,
    intermediate_size=size(2048, 128),
    vocab_size=size(32000, 256),
    relative_attention=True,
    position_buckets=size(256, 8),
    pos_att_type=["p2c", "c2p"],
    share_att_key=True,
    norm_rel_ebd="layer_norm",
    position_biased_input=False,
)
AST = transformer(
    "ASTForAudioClassification",
    hidden_size=size(512, 64),
    num_hidden_layers=size(4, 2),
    num_attention_heads=8,
    intermediate_size=size(2048, 128),
    max_length=size(1024, 64),
    num_mel_bins=size(128, 32),
    num_labels=10,
)

THIRD_JOBS = {
    "whisper_fp32": Job(
        model=WHISPER,
        inputs=lambda n: (
            torch.randn(n, 80, 2 * size(1500, 50)),
            torch.randint(3, size(51864, 256), (n, size(64, 16))),
        ),
        loss=of_speech,
        base=Settings(batch=size(16, 2), precision="fp32", attention="eager"),
        changes={**BF16, **TF32, **SDPA},
    ),
    "electra_loop": Job(
        model=ELECTRA,
        inputs=text(30528, 128),
        loss=of_tokens,
        base=Settings(batch=size(16, 2), update="loop", clip="loop"),
        changes={**FUSED, "device-sync": {"clip": "fused"}, **COMPILED, **CAPTURED},
    ),
    "llama_logits": Job(
        model=llama_with_head,
        inputs=text(128256, 1024),
        loss=of_itself,
        base=Settings(batch=size(4, 2), attention="eager", update="loop"),
        changes={"wide-logits": {"variant": "compiled"}, **SDPA, **FUSED},
    ),
    "squeezenet_copies": Job(
        model=vision("squeezenet1_1"),
        inputs=pictures(224),
        loss=of_class,
        base=Settings(batch=size(256, 2), optimizer="sgd", source="pinned"),
        changes={"unoverlapped-copy": {"source": "ahead"}, **LAST, **TUNED},
    ),
    "gpt2_vocabulary": Job(
        model=gpt2,
        inputs=text(50257, 1024),
        loss=of_tokens,
        base=Settings(batch=2, accumulate=4),
        changes={
            "misaligned-shapes": {"variant": "padded"},
            "small-batch": {"batch": 8, "accumulate": 1},
            **COMPILED,
        },
    ),
    "resnext_fp32": Job(
        model=vision("resnext50_32x4d"),
        inputs=pictures(176),
        loss=of_class,
        base=Settings(batch=size(48, 2), precision="fp32", optimizer="sgd", source="pageable"),
        changes={**BF16, **TF32, **LAST, "pageable-copy": {"source": "pinned"}},
    ),
    "deit_small": Job(
        model=DEIT,
        inputs=pictures(224),
        loss=of_pictures,
        base=Settings(batch=size(8, 2), update="foreach"),
        changes={
            "small-batch": {"batch": size(32, 4)},
            "activation-casts": {"precision": "weights"},
            **COMPILED,
            **CAPTURED,
        },
        samples={"small-batch": size(4, 2)},
    ),
    "shared_depth": Job(
        model=shared_depth,
        inputs=lambda n: (torch.randn(n, size(1024, 16), size(2048, 64)),),
        loss=of_square,
        base=Settings(batch=size(4, 2), attention="eager"),
        changes={"dtype-casts": {"variant": "cached"}, **SDPA, **COMPILED},
    ),
    "recommender_sends": Job(
        model=lambda _: Recommender(26, size(200_000, 100), 64),
        inputs=lambda n: (torch.randn(n, 13), torch.randint(0, size(200_000, 100), (26, n, 4))),
        loss=of_square,
        base=Settings(batch=size(8192, 8), update="loop", read_loss=True, small_copies=150),
        changes={
            **FUSED,
            "many-small-copies": {"sent_together": True},
            "device-sync": {"read_loss": False},
            **COMPILED,
        },
    ),
    "scan_fp32": Job(
        model=lambda _: models.Scans(size(1024, 32), 16, size(64, 8), 2),
        inputs=lambda n: (torch.randn(n, size(512, 32), size(1024, 32)),),
        loss=of_square,
        base=Settings(batch=size(12, 2), precision="fp32"),
        changes={**COMPILED, **BF16, **TF32},
    ),
    "translator_saves": Job(
        model=lambda _: models.Translator(size(8000, 256), size(512, 32), 2),
        inputs=sentences(8000, 64),
        loss=of_translation,
        base=Settings(batch=size(64, 2), precision="fp16", update="loop", save_every=2),
        changes={
            "checkpoint-stall": {"save_every": 0},
            **FUSED,
            "small-batch": {"batch": size(256, 8)},
        },
        samples={"small-batch": 4},
        stacks=True,
    ),
    "diffusion_anomaly": Job(
        model=lambda _: Ddpm(size(128, 16)),
        inputs=lambda n: (torch.randn(n, 3, size(64, 16), size(64, 16)), torch.rand(n)),
        loss=of_square,
        base=Settings(batch=size(32, 2), anomaly=True),
        changes={"debug-mode": {"anomaly": False}, **LAST, **TUNED},
    ),
    "pointnet_loader": Job(
        model=lambda _: models.CloudClassifier(40),
        inputs=lambda n: (torch.randn(n, 3, size(2048, 64)), torch.randint(0, 40, (n,))),
        loss=of_class,
        base=Settings(batch=size(64, 4), update="loop", workers=2, transform_units=1),
        changes={
            "starved-loader": {"workers": size(12, 4)},
            "starved-loader#6": {"workers": size(6, 3)},
            **FUSED,
        },
    ),
    "spectra_serial": Job(
        model=AST,
        inputs=spectra(size(128, 32), size(1024, 64)),
        loss=of_sound,
        base=Settings(batch=size(16, 2), attention="eager", workers=0, read_ms=1.0),
        changes={
            "serial-loader": {"workers": size(8, 2)},
            "serial-loader#2": {"workers": 2},
            **SDPA,
        },
    ),
    "deberta_collects": Job(
        model=DEBERTA,
        inputs=text(32000, 128),
        loss=of_tokens,
        base=Settings(batch=size(8, 2), attention="eager", update="loop", heap=1000),
        changes={
            "gc-pause": {"heap": 0},
            **FUSED,
            "small-batch": {"batch": size(32, 8)},
        },
        samples={"small-batch": 4},
        stacks=True,
    ),
}
