"""The jobs: models, their data, how a user would run them, and the single changes worth timing."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from lab import models
from lab.gains.job import Job, Settings
from lab.loops.data import size

COMPILED = {"unfused-pointwise": {"compile": "default"}}
CAPTURED = {"launch-overhead": {"compile": "reduce-overhead"}}
BF16 = {"fp32-matmul": {"precision": "bf16"}}
TF32 = {"fp32-matmul#tf32": {"precision": "tf32"}}
FUSED = {"looped-optimizer": {"update": "fused"}}


def vision(name: str, **options: Any) -> Callable[[Settings], nn.Module]:
    def make(_: Settings) -> nn.Module:
        import torchvision

        model: nn.Module = attrgetter(name)(torchvision.models)(weights=None, **options)
        return model

    return make


def transformer(
    name: str, prefix: str | None = None, **sizes: Any
) -> Callable[[Settings], nn.Module]:
    """A model of transformers by its class name; the config's is what stands before `For`."""

    def make(settings: Settings) -> nn.Module:
        import transformers

        family = prefix or name.split("For", maxsplit=1)[0]
        config = getattr(transformers, f"{family}Config")(**sizes)
        config._attn_implementation = settings.attention  # noqa: SLF001
        model: Any = getattr(transformers, name)(config)
        if settings.recompute:
            model.gradient_checkpointing_enable(
                gradient_checkpointing_kwargs={"use_reentrant": False}
            )
        made: nn.Module = model
        return made

    return make


def pictures(side: int) -> Callable[[int], tuple[Tensor, ...]]:
    side = size(side, 64)
    return lambda n: (torch.randn(n, 3, side, side), torch.randint(0, 1000, (n,)))


def text(vocab: int, length: int) -> Callable[[int], tuple[Tensor, ...]]:
    return lambda n: (torch.randint(0, size(vocab, 256), (n, size(length, 16))),)


def of_class(forward: Callable[..., Any], batch: tuple[Tensor, ...]) -> Tensor:
    return F.cross_entropy(forward(batch[0]), batch[1])


def of_tokens(forward: Callable[..., Any], batch: tuple[Tensor, ...]) -> Tensor:
    loss: Tensor = forward(input_ids=batch[0], labels=batch[0]).loss
    return loss


def of_square(forward: Callable[..., Any], batch: tuple[Tensor, ...]) -> Tensor:
    loss: Tensor = forward(*batch).float().square().mean()
    return loss


class CellChain(nn.Module):
    """An LSTM cell stepped in Python over a short sequence."""

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.cell, self.out, self.length = nn.LSTMCell(width, width), nn.Linear(width, 1), length

    def forward(self, x: Tensor) -> Tensor:
        state: tuple[Tensor, Tensor] | None = None
        for i in range(self.length):
            state = self.cell(x[:, i], state)
        assert state is not None
        out: Tensor = self.out(state[0])
        return out


class Messages(nn.Module):
    """Attention-like messages over random edges: gather, weigh, scatter-add."""

    def __init__(self, width: int, depth: int, nodes: int, edges: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(depth)])
        self.gates = nn.ModuleList([nn.Linear(2 * width, 1) for _ in range(depth)])
        self.register_buffer("ends", torch.randint(0, nodes, (2, edges)))

    def forward(self, x: Tensor) -> Tensor:
        source, target = self.ends
        for layer, gate in zip(self.layers, self.gates, strict=True):
            pair = torch.cat([x[source], x[target]], dim=-1)
            message = x[source] * torch.sigmoid(gate(pair))
            total = torch.zeros_like(x).index_add_(0, target, message.to(x.dtype))
            x = x + F.gelu(layer(F.layer_norm(total, total.shape[-1:])))
        return x


class Clips(nn.Module):
    """Factored 3-d convolutions over short clips."""

    def __init__(self, width: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for out, stride in ((width, 2), (2 * width, 2), (4 * width, 1)):
            layers += [
                nn.Conv3d(channels, out, (1, 3, 3), (1, stride, stride), (0, 1, 1)),
                nn.Conv3d(out, out, (3, 1, 1), 1, (1, 0, 0)),
                nn.BatchNorm3d(out),
                nn.ReLU(),
            ]
            channels = out
        self.body, self.head = nn.Sequential(*layers), nn.Linear(channels, 400)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x).mean((2, 3, 4)))
        return out


GPT_NEOX = transformer(
    "GPTNeoXForCausalLM",
    hidden_size=size(1024, 64),
    num_hidden_layers=size(6, 2),
    num_attention_heads=size(16, 4),
    intermediate_size=size(4096, 128),
    vocab_size=size(50304, 256),
    use_cache=False,
)
OPT = transformer(
    "OPTForCausalLM",
    hidden_size=size(768, 64),
    num_hidden_layers=size(6, 2),
    num_attention_heads=size(12, 4),
    ffn_dim=size(3072, 128),
    word_embed_proj_dim=size(768, 64),
    vocab_size=size(50272, 256),
    use_cache=False,
)
GEMMA = transformer(
    "GemmaForCausalLM",
    hidden_size=size(1536, 64),
    num_hidden_layers=size(4, 2),
    num_attention_heads=size(8, 4),
    num_key_value_heads=1,
    head_dim=size(192, 16),
    intermediate_size=size(6144, 128),
    vocab_size=size(128000, 256),
    use_cache=False,
)
PHI = transformer(
    "PhiForCausalLM",
    hidden_size=size(1024, 64),
    num_hidden_layers=size(8, 2),
    num_attention_heads=size(16, 4),
    intermediate_size=size(4096, 128),
    vocab_size=size(32000, 256),
    use_cache=False,
)
ROBERTA = transformer(
    "RobertaForMaskedLM",
    hidden_size=size(768, 64),
    num_hidden_layers=size(8, 2),
    num_attention_heads=size(12, 4),
    intermediate_size=size(3072, 128),
    vocab_size=size(50265, 256),
)
DISTIL = transformer(
    "DistilBertForMaskedLM",
    dim=size(768, 64),
    n_layers=size(6, 2),
    n_heads=size(12, 4),
    hidden_dim=size(3072, 128),
    vocab_size=size(30522, 256),
)

JOBS = {
    "vit_fp32": Job(
        model=vision("vit_b_16"),
        inputs=pictures(224),
        loss=of_class,
        base=Settings(batch=size(32, 2), precision="fp32"),
        changes={**BF16, **TF32, **COMPILED},
    ),
    "swin_loop": Job(
        model=vision("swin_t"),
        inputs=pictures(224),
        loss=of_class,
        base=Settings(batch=size(32, 2), update="loop"),
        changes={**FUSED, **COMPILED, **CAPTURED},
    ),
    "convnext_fp32": Job(
        model=vision("convnext_tiny"),
        inputs=pictures(192),
        loss=of_class,
        base=Settings(batch=size(64, 2), precision="fp32"),
        changes={**BF16, "nchw-layout": {"channels_last": True}, **COMPILED},
    ),
    "regnet_loader": Job(
        model=vision("regnet_y_800mf"),
        inputs=pictures(160),
        loss=of_class,
        base=Settings(
            batch=size(128, 2), optimizer="sgd", channels_last=True, workers=2, transform_units=1
        ),
        changes={"starved-loader": {"workers": 12}, "starved-loader#4": {"workers": 4}, **COMPILED},
    ),
    "densenet_nchw": Job(
        model=vision("densenet121"),
        inputs=pictures(192),
        loss=of_class,
        base=Settings(batch=size(64, 2), optimizer="sgd", cudnn_benchmark=True),
        changes={"nchw-layout": {"channels_last": True}, **COMPILED, **CAPTURED},
    ),
    "neox_eager": Job(
        model=GPT_NEOX,
        inputs=text(50304, 1024),
        loss=of_tokens,
        base=Settings(batch=size(8, 2), attention="eager"),
        changes={"unfused-attention": {"attention": "sdpa"}, **COMPILED},
    ),
    "opt_clip": Job(
        model=OPT,
        inputs=text(50272, 512),
        loss=of_tokens,
        base=Settings(batch=size(8, 2), clip="loop", update="foreach"),
        changes={"device-sync": {"clip": "fused"}, **COMPILED, **CAPTURED},
    ),
    "gemma_recompute": Job(
        model=GEMMA,
        inputs=text(128000, 1024),
        loss=of_tokens,
        base=Settings(batch=size(8, 2), recompute=True),
        changes={"needless-recompute": {"recompute": False}, **COMPILED},
    ),
    "phi_anomaly": Job(
        model=PHI,
        inputs=text(32000, 512),
        loss=of_tokens,
        base=Settings(batch=size(8, 2), anomaly=True),
        changes={"debug-mode": {"anomaly": False}},
    ),
    "roberta_fp16": Job(
        model=ROBERTA,
        inputs=text(50265, 256),
        loss=of_tokens,
        base=Settings(batch=size(16, 2), precision="fp16", update="loop"),
        changes={**FUSED, **COMPILED, **CAPTURED},
    ),
    "distil_small": Job(
        model=DISTIL,
        inputs=text(30522, 128),
        loss=of_tokens,
        base=Settings(batch=size(8, 2), read_loss=True),
        changes={
            "small-batch": {"batch": size(32, 4)},
            "device-sync": {"read_loss": False},
            **COMPILED,
            **CAPTURED,
        },
        samples={"small-batch": size(4, 2)},
    ),
    "cells_bf16": Job(
        model=lambda _: CellChain(size(256, 32), size(80, 8)),
        inputs=lambda n: (torch.randn(n, size(80, 8), size(256, 32)),),
        loss=of_square,
        base=Settings(batch=size(64, 2)),
        changes={**COMPILED, **CAPTURED},
    ),
    "messages_fp32": Job(
        model=lambda _: Messages(size(256, 32), 4, size(20_000, 64), size(200_000, 256)),
        inputs=lambda n: (torch.randn(n, size(256, 32)),),
        loss=of_square,
        base=Settings(batch=size(20_000, 64), precision="fp32"),
        changes={**BF16, **COMPILED},
    ),
    "clips_fp32": Job(
        model=lambda _: Clips(size(48, 8)),
        inputs=lambda n: (
            torch.randn(n, 3, 16, size(96, 16), size(96, 16)),
            torch.randint(0, 400, (n,)),
        ),
        loss=of_class,
        base=Settings(batch=size(16, 2), precision="fp32", optimizer="sgd", source="pageable"),
        changes={**BF16, **TF32, "pageable-copy": {"source": "pinned"}, **COMPILED},
    ),
    "unet_cache": Job(
        model=lambda _: models.UNet(size(96, 32)),
        inputs=lambda n: (torch.randn(n, 3, size(128, 32), size(128, 32)), torch.rand(n)),
        loss=of_square,
        base=Settings(batch=size(16, 2), empty_cache=True),
        changes={
            "allocator-churn": {"empty_cache": False},
            "nchw-layout": {"channels_last": True},
            **COMPILED,
        },
    ),
    "phi_heavy_loop": Job(
        model=PHI,
        inputs=text(32000, 512),
        loss=of_tokens,
        base=Settings(batch=size(4, 2), python_ms=12.0, read_weights=30),
        changes={
            "python-overhead": {"python_ms": 0.0},
            "device-sync": {"read_weights": 0},
            **COMPILED,
            **CAPTURED,
        },
    ),
}
