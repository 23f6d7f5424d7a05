"""DistributedDataParallel jobs: buckets, buffers, accumulation, late ranks and uneven work."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from lab.measure import BIG, DEV, Run
from lab.ranks.models import (
    Decoder,
    ResidualStack,
    convnext,
    llama,
    next_token_loss,
    pick,
    resnet,
    vit,
)

SHARES = (0.85, 0.25, 0.6, 0.1, 0.7, 0.4)
"""Rank 0's part of the tokens, step by step; rank 1 has the rest. The longer of the two changes."""


def train(
    model: nn.Module,
    loss_of: Callable[[nn.Module], Tensor],
    *,
    accum: int = 1,
    hold: bool = True,
    **ddp_options: Any,
) -> Run:
    """A DDP job; `hold` keeps gradients back until the last of `accum` micro-batches."""
    ddp = DistributedDataParallel(model, **ddp_options)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        for k in range(accum):
            with ddp.no_sync() if hold and k < accum - 1 else contextlib.nullcontext():
                with torch.autocast(DEV, torch.bfloat16, enabled=BIG):
                    loss = loss_of(ddp) / accum
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return Run(step=step)


def picture_loss(batch: int, image: int) -> Callable[[nn.Module], Tensor]:
    x, y = (
        torch.randn(batch, 3, image, image, device=DEV),
        torch.randint(0, 100, (batch,), device=DEV),
    )
    return lambda model: F.cross_entropy(model(x), y)


def text_loss(batch: int, length: int, vocab: int) -> Callable[[nn.Module], Tensor]:
    ids = torch.randint(0, vocab, (batch, length), device=DEV)
    return lambda model: next_token_loss(model(ids), ids)


def llama_loss(batch: int, length: int) -> Callable[[nn.Module], Tensor]:
    ids = torch.randint(0, 4096, (batch, length), device=DEV)
    return lambda model: next_token_loss(model(input_ids=ids).logits, ids)


def residual_stack(bucket_cap_mb: float) -> Run:
    width = pick(256, 64)
    x = torch.randn(pick(32768, 64), width, device=DEV)
    model = ResidualStack(width, pick(40, 8)).to(DEV)
    return train(model, lambda ddp: F.mse_loss(ddp(x), x), bucket_cap_mb=bucket_cap_mb)


def small_llama(**ddp_options: Any) -> Run:
    return train(
        llama(pick(384, 64), pick(3, 2)), llama_loss(pick(16, 1), pick(512, 32)), **ddp_options
    )


def bottleneck(*, broadcast_buffers: bool) -> Run:
    model = resnet((2, 2, 2, 2) if BIG else (1, 1, 1, 1), bottleneck=True)
    return train(
        model, picture_loss(pick(32, 2), pick(160, 32)), broadcast_buffers=broadcast_buffers
    )


def masked_decoder(*, broadcast_buffers: bool) -> Run:
    length = pick(2048, 32)
    model = Decoder(pick(256, 64), pick(4, 2), wide=pick(1024, 128), masked=length).to(DEV)
    return train(
        model, text_loss(pick(4, 1), length // 2, 1024), broadcast_buffers=broadcast_buffers
    )


def accumulated_vit(*, hold: bool) -> Run:
    return train(
        vit(pick(768, 64), 1, pick(128, 32)),
        picture_loss(pick(64, 2), pick(128, 32)),
        accum=4,
        hold=hold,
    )


class Pictures(Dataset[tuple[Tensor, int]]):
    """Pictures read and normalised one by one; a slow one waits for its storage, or is sharpened at
    length on the CPU."""

    def __init__(self, image: int, *, wait_s: float = 0.0, work_s: float = 0.0) -> None:
        self.raw = np.random.default_rng(0).integers(0, 255, (3, image, image), dtype=np.uint8)
        self.wait_s, self.work_s = wait_s, work_s

    def __len__(self) -> int:
        return 10**6

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        until = time.perf_counter() + self.work_s
        time.sleep(self.wait_s)
        while time.perf_counter() < until:
            np.sort(self.raw, axis=-1)
        return torch.from_numpy(self.raw).float().div_(255), index % 100


def read_from_loader(
    model: nn.Module, late_rank: int | None, *, wait_s: float = 0.0, work_s: float = 0.0
) -> Run:
    """Every rank reads its own batches in its own process; at `late_rank` a batch takes that much
    longer."""
    late, batch = dist.get_rank() == late_rank, pick(32, 4)
    pictures = Pictures(pick(96, 32), wait_s=late * wait_s / batch, work_s=late * work_s / batch)
    batches: Iterator[list[Tensor]] = iter(DataLoader(pictures, batch_size=batch, pin_memory=BIG))

    def loss_of(ddp: nn.Module) -> Tensor:
        x, y = (t.to(DEV, non_blocking=True) for t in next(batches))
        return F.cross_entropy(ddp(x), y)

    return train(model, loss_of)


def resnet_loader(late_rank: int | None) -> Run:
    return read_from_loader(resnet((1, 1, 1, 1)), late_rank, wait_s=0.06)


def convnext_loader(late_rank: int | None) -> Run:
    return read_from_loader(convnext(pick(64, 8)), late_rank, work_s=0.08)


def host_work(late_rank: int | None) -> Run:
    """At `late_rank` plain Python runs between the layers, 60 ms in all (checks of names, say)."""
    model = vit(pick(256, 64), pick(4, 2), pick(224, 32))
    layers = list(model.encoder.layers)  # type: ignore[union-attr, arg-type]

    def think(*_: object) -> None:
        until = time.perf_counter() + 0.06 / len(layers)
        while time.perf_counter() < until:
            sorted(str(n) for n in range(200))

    for layer in layers if dist.get_rank() == late_rank else ():
        layer.register_forward_pre_hook(think)
    return train(model, picture_loss(pick(64, 2), pick(224, 32)))


def lengths(*, even: bool) -> Run:
    """As many tokens a step in both jobs, cut in halves or at SHARES."""
    rank, chunks, unit = dist.get_rank(), pick(24, 8), pick(64, 8)
    batches = []
    for share in SHARES:
        first = chunks // 2 if even else max(1, round(share * chunks))
        batches.append(
            torch.randint(
                0, 4096, (pick(160, 1), (first if rank == 0 else chunks - first) * unit), device=DEV
            )
        )
    turn = count()

    def loss_of(ddp: nn.Module) -> Tensor:
        ids = batches[next(turn) % len(batches)]
        return next_token_loss(ddp(input_ids=ids).logits, ids)

    return train(llama(pick(256, 64), pick(3, 2)), loss_of)


def triple(*, even: bool) -> Run:
    """The last rank has three times the tokens of the others, or the same."""
    batch, last = pick(512, 1), dist.get_rank() == dist.get_world_size() - 1
    unit = pick(256, 16)
    model = Decoder(pick(256, 64), pick(4, 2), wide=pick(1024, 128)).to(DEV)
    return train(model, text_loss(batch, 2 * unit if even else 3 * unit if last else unit, 1024))


def documents(*, even: bool) -> Run:
    """Eight short documents a step, one forward and backward each, dealt four and four or by
    SHARES; the host sets the pace."""
    torch.manual_seed(dist.get_rank())
    ids = torch.randint(0, 1024, (1, pick(128, 16)), device=DEV)
    ddp = DistributedDataParallel(Decoder(pick(256, 64), 2, wide=pick(1024, 128)).to(DEV))
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-4, fused=True)
    turn = count()

    def step() -> None:
        first = 4 if even else max(1, round(8 * SHARES[next(turn) % len(SHARES)]))
        num = first if dist.get_rank() == 0 else 8 - first
        for k in range(num):
            with ddp.no_sync() if k < num - 1 else contextlib.nullcontext():
                next_token_loss(ddp(ids), ids).backward()
        optimizer.step()
        optimizer.zero_grad()

    return Run(step=step)


def even_convnext() -> Run:
    """Much to compute and few parameters: the all-reduce hides."""
    return train(convnext(pick(64, 8)), picture_loss(pick(256, 2), pick(224, 32)))


def even_resnet() -> Run:
    return train(resnet((1, 1, 1, 1)), picture_loss(pick(32, 2), pick(128, 32)))
