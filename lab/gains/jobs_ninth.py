"""A ninth set of jobs: what the eighth has none of. Compiling, captured graphs, larger batches,
casts by hand, workers.

Recorded with the time around every change before any of them was diagnosed.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from lab.gains import models_ninth as models
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
from lab.gains.jobs_third import LAST, SDPA, TF32, TUNED, of_itself, of_sound
from lab.loops.data import size


def cast_by_hand(settings: Settings) -> nn.Module:
    by_hand = settings.precision != "bf16"
    return models.CastByHand(
        size(32000, 256), size(1024, 64), size(8, 2), size(16, 4), by_hand=by_hand
    )


def molecules(atoms: int) -> Callable[[int], tuple[Tensor, ...]]:
    return lambda n: (torch.randint(0, 20, (n, atoms)), torch.rand(n, atoms, 3) * 4)


def waves(length: int) -> Callable[[int], tuple[Tensor, ...]]:
    return lambda n: (torch.randn(n, 1, size(length, 256)),)


def spoken(length: int) -> Callable[[int], tuple[Tensor, ...]]:
    length = size(length, 800)
    return lambda n: (torch.randn(n, length), torch.randint(0, 32, (n,)))


DEBERTA = transformer(
    "DebertaV2ForMaskedLM",
    hidden_size=size(768, 64),
    num_hidden_layers=size(6, 2),
    num_attention_heads=size(12, 4),
    intermediate_size=size(3072, 128),
    vocab_size=size(32000, 256),
    relative_attention=True,
    pos_att_type=["c2p", "p2c"],
    position_buckets=size(256, 16),
)
T5 = transformer(
    "T5ForConditionalGeneration",
    d_model=size(768, 64),
    d_kv=size(64, 16),
    d_ff=size(3072, 128),
    num_layers=size(6, 2),
    num_heads=size(12, 4),
    vocab_size=size(32128, 256),
    decoder_start_token_id=0,
    use_cache=False,
)
SMALL_LLAMA = transformer(
    "LlamaForCausalLM",
    hidden_size=size(512, 64),
    num_hidden_layers=size(12, 2),
    num_attention_heads=size(8, 4),
    num_key_value_heads=size(8, 4),
    intermediate_size=size(1408, 128),
    vocab_size=size(16000, 256),
    use_cache=False,
)
LONG_GPT = transformer(
    "GPTNeoXForCausalLM",
    hidden_size=size(768, 64),
    num_hidden_layers=size(6, 2),
    num_attention_heads=size(12, 4),
    intermediate_size=size(3072, 128),
    vocab_size=size(16000, 256),
    max_position_embeddings=size(4096, 64),
    use_cache=False,
)
SPEECH = transformer(
    "Wav2Vec2ForSequenceClassification",
    hidden_size=size(768, 64),
    num_hidden_layers=size(6, 2),
    num_attention_heads=size(12, 4),
    intermediate_size=size(3072, 128),
    num_labels=32,
    mask_time_prob=0.0,
)

NINTH_JOBS = {
    "heat_equation": Job(
        model=lambda _: models.HeatEquation(size(128, 16), size(8, 2)),
        inputs=lambda n: (torch.rand(n, 2),),
        loss=of_itself,
        base=Settings(batch=size(2048, 8), precision="fp32", update="loop"),
        changes={"small-batch": {"batch": size(8192, 32)}, **FUSED},
        samples={"small-batch": 4},
    ),
    "casts_by_hand": Job(
        model=cast_by_hand,
        inputs=text(32000, 512),
        loss=of_itself,
        base=Settings(batch=size(16, 2), precision="fp32"),
        changes={"dtype-casts": {"precision": "bf16"}, **COMPILED},
    ),
    "regnet_bf16": Job(
        model=vision("regnet_y_3_2gf"),
        inputs=pictures(192),
        loss=of_class,
        base=Settings(batch=size(128, 2), update="loop"),
        changes={**LAST, **COMPILED, **FUSED},
    ),
    "mnasnet_tf32": Job(
        model=vision("mnasnet1_0"),
        inputs=pictures(160),
        loss=of_class,
        base=Settings(batch=size(128, 2), precision="tf32", optimizer="sgd", update="foreach"),
        changes={**LAST, **TUNED, **COMPILED},
    ),
    "t5_bf16": Job(
        model=T5,
        inputs=text(32128, 512),
        loss=of_tokens,
        base=Settings(batch=size(16, 2), update="loop"),
        changes={**COMPILED, **FUSED},
    ),
    "deberta_fp32": Job(
        model=DEBERTA,
        inputs=text(32000, 256),
        loss=of_tokens,
        base=Settings(batch=size(16, 2), precision="fp32", attention="eager"),
        changes={**TF32, **BF16, **COMPILED},
    ),
    "waves_fp32": Job(
        model=lambda _: models.Waves(size(256, 16), size(12, 2)),
        inputs=waves(32768),
        loss=of_square,
        base=Settings(batch=size(16, 2), precision="fp32", update="loop"),
        changes={**TF32, **BF16, **COMPILED},
    ),
    "llama_narrow": Job(
        model=SMALL_LLAMA,
        inputs=text(16000, 256),
        loss=of_tokens,
        base=Settings(batch=size(8, 2)),
        changes={**CAPTURED, **COMPILED, "small-batch": {"batch": size(32, 8)}},
        samples={"small-batch": 4},
    ),
    "gpt_long_fp16": Job(
        model=LONG_GPT,
        inputs=text(16000, 4096),
        loss=of_tokens,
        base=Settings(batch=1, precision="fp16"),
        changes={"small-batch": {"batch": 4}, **COMPILED},
        samples={"small-batch": 4},
    ),
    "swin_tf32": Job(
        model=vision("swin_t"),
        inputs=pictures(224),
        loss=of_class,
        base=Settings(batch=size(64, 2), precision="tf32", update="loop"),
        changes={**BF16, **COMPILED, **FUSED},
    ),
    "words_lstm": Job(
        model=lambda _: models.Words(size(20000, 256), size(1024, 32), 2),
        inputs=text(20000, 128),
        loss=of_itself,
        base=Settings(batch=size(32, 2), precision="fp32", optimizer="sgd", clip="loop"),
        changes={**TF32, **BF16, "device-sync": {"clip": "fused"}},
    ),
    "particles": Job(
        model=lambda _: models.Particles(size(64, 8), size(6, 2)),
        inputs=molecules(size(32, 8)),
        loss=of_itself,
        base=Settings(batch=size(16, 2), precision="fp32", update="loop"),
        changes={**CAPTURED, **COMPILED, **FUSED, "small-batch": {"batch": size(64, 8)}},
        samples={"small-batch": 4},
    ),
    "resnet34_serial": Job(
        model=vision("resnet34"),
        inputs=pictures(128),
        loss=of_class,
        base=Settings(batch=size(32, 2), workers=0, transform_units=1),
        changes={"serial-loader": {"workers": size(8, 2)}, "serial-loader#4": {"workers": 4}},
    ),
    "shufflenet_starved": Job(
        model=vision("shufflenet_v2_x1_0"),
        inputs=pictures(128),
        loss=of_class,
        base=Settings(batch=size(64, 2), workers=2, transform_units=1, update="loop"),
        changes={"starved-loader": {"workers": size(12, 3)}, **LAST},
    ),
    "wav2vec2_fp32": Job(
        model=SPEECH,
        inputs=spoken(64000),
        loss=of_sound,
        base=Settings(batch=size(16, 2), precision="fp32", attention="eager", update="loop"),
        changes={**TF32, **BF16, **SDPA, **FUSED},
    ),
    "vit_accumulates": Job(
        model=vision("vit_b_32"),
        inputs=pictures(224),
        loss=of_class,
        base=Settings(batch=size(16, 2), accumulate=4, read_loss=True, update="loop"),
        changes={
            "small-batch": {"batch": size(64, 8), "accumulate": 1},
            "device-sync": {"read_loss": False},
            **COMPILED,
        },
    ),
}
