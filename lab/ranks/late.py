"""More jobs of several ranks: somebody is late by sleep, by work of its own, by longer batches; or
nobody is."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from lab.measure import BIG, DEV, Run
from lab.ranks.data_parallel import picture_loss
from lab.ranks.models import Decoder, next_token_loss, pick, resnet

VOCAB = 8192


def looped(
    model: nn.Module,
    loss_of: Callable[[], Tensor],
    before_backward: Callable[[], None],
    barrier: bool = False,
) -> Run:
    """A plain loop in which something may happen between forward and backward."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        with torch.autocast(DEV, torch.bfloat16, enabled=BIG):
            loss = loss_of()
        before_backward()
        loss.backward()
        if barrier:
            dist.barrier()
        optimizer.step()
        optimizer.zero_grad()

    return Run(step=step)


def decoder(depth: int) -> Decoder:
    return Decoder(pick(512, 64), depth, vocab=VOCAB, wide=pick(2048, 128)).to(DEV)


def text(length: int, batch: int) -> Tensor:
    return torch.randint(0, 1024, (batch, length), device=DEV)


def sleeper(late_rank: int | None, *, sharded: bool = False, sleep_s: float) -> Run:
    """`late_rank` sleeps between forward and backward."""
    model: nn.Module = decoder(pick(4, 2))
    if sharded:
        for block in model.blocks:  # type: ignore[union-attr]
            fully_shard(block)
        fully_shard(model)
    else:
        model = DistributedDataParallel(model)
    ids, delay = text(pick(512, 32), pick(8, 1)), sleep_s if dist.get_rank() == late_rank else 0.0
    return looped(
        model,
        lambda: next_token_loss(model(ids).float(), ids),
        lambda: time.sleep(delay) if delay else None,
    )


def extra_work(late_rank: int | None) -> Run:
    """`late_rank` multiplies large matrices of its own in every step (statistics nobody asked the
    other ranks for)."""
    model = DistributedDataParallel(resnet((2, 2, 2, 2)))
    loss_of = picture_loss(pick(64, 2), pick(160, 32))
    weight = torch.randn(pick(4096, 32), pick(4096, 32), device=DEV)

    def more() -> None:
        for _ in range(pick(12, 2) if dist.get_rank() == late_rank else 0):
            torch.mm(weight, weight)

    return looped(model, lambda: loss_of(model), more)


def ragged(*, even: bool) -> Run:
    """The last rank's texts are four times as long as the others', or all have the mean length."""
    rank, world, unit = dist.get_rank(), dist.get_world_size(), pick(128, 8)
    length = unit * (4 + world - 1) // world if even else 4 * unit if rank == world - 1 else unit
    model, ids = DistributedDataParallel(decoder(pick(3, 2))), text(length, pick(96, 1))
    return looped(model, lambda: next_token_loss(model(ids).float(), ids), lambda: None)


def barred(*, barrier: bool) -> Run:
    """A barrier after every backward, or none: DDP has waited for everybody already."""
    model, ids = DistributedDataParallel(decoder(pick(4, 2))), text(pick(512, 32), pick(16, 1))
    return looped(model, lambda: next_token_loss(model(ids).float(), ids), lambda: None, barrier)


def accumulated_resnet(*, hold: bool) -> Run:
    """Eight micro-batches a step."""
    model = DistributedDataParallel(resnet((1, 1, 1, 1)))
    loss_of = picture_loss(pick(16, 2), pick(128, 32))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def step() -> None:
        for k in range(8):
            with model.no_sync() if hold and k < 7 else contextlib.nullcontext():
                (loss_of(model) / 8).backward()
        optimizer.step()
        optimizer.zero_grad()

    return Run(step=step)
