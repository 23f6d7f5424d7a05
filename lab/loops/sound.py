"""Runs on sound: speech recognition, separation."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.utils.data import Dataset

from lab import models_second as models
from lab.loops.data import loaded, on_device, size
from lab.loops.steps import adamw, train
from lab.measure import DEV, Run


class Recordings(Dataset[Tensor]):
    """Spectrograms behind slow storage."""

    def __init__(self, frames: int, mels: int, read_ms: float) -> None:
        self.raw, self.read_ms = torch.randn(32, frames, mels), read_ms

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, i: int) -> Tensor:
        time.sleep(self.read_ms / 1e3)
        return self.raw[i % 32]


def whisper(*, attn: str) -> Run:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    frames, dim = size(1500, 32), size(512, 32)
    config = WhisperConfig(
        d_model=dim,
        encoder_layers=2,
        decoder_layers=1,
        encoder_attention_heads=max(1, dim // 64),
        decoder_attention_heads=max(1, dim // 64),
        encoder_ffn_dim=4 * dim,
        decoder_ffn_dim=4 * dim,
        max_source_positions=frames,
        max_target_positions=64,
        vocab_size=8192,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        dropout=0.0,
        attn_implementation=attn,
        use_cache=False,
    )
    model: Any = WhisperForConditionalGeneration(config).to(DEV).train()  # type: ignore[arg-type]
    batch = size(16, 2)
    batches = on_device(
        lambda: (torch.randn(batch, 80, 2 * frames), torch.randint(3, 8192, (batch, 32)))
    )

    def forward(part: Any) -> Tensor:
        sound, text = part
        loss: Tensor = model(input_features=sound, labels=text).loss
        return loss

    return Run(step=train(forward, batches, adamw(model)))


def tasnet(*, compiled: bool) -> Run:
    model: Any = models.TasNet(size(256, 8), size(5, 2)).to(DEV)
    net = torch.compile(model) if compiled else model
    batch, samples = size(32, 2), size(64_000, 256)
    batches = on_device(lambda: torch.randn(batch, 2, samples))

    def forward(voices: Tensor) -> Tensor:
        return F.l1_loss(net(voices.sum(1)).float(), voices)

    return Run(step=train(forward, batches, adamw(model)))


def speller(*, workers: int, looped: bool) -> Run:
    frames, mels, batch = size(400, 16), 80, size(16, 2)
    model = models.Speller(mels, size(256, 16), size(4, 1)).to(DEV)
    batches = loaded(Recordings(frames, mels, size(7, 1)), batch=batch, workers=workers)
    letters = torch.randint(0, 32, (batch * frames,), device=DEV)

    def forward(x: Tensor) -> Tensor:
        return F.cross_entropy(model(x).flatten(0, 1), letters)

    opt_kw = {"foreach": False, "fused": False} if looped else {"fused": True}
    return Run(step=train(forward, batches, adamw(model, **opt_kw)))
