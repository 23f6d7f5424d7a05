"""Parameters shared out over ranks: FSDP of both generations, and tensor parallelism."""

from __future__ import annotations

import itertools

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    BackwardPrefetch,
    FSDPModule,
    FullyShardedDataParallel,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from lab.measure import BIG, DEV, Run
from lab.ranks.models import Block, Decoder, RoutedBlock, llama, next_token_loss, pick


def stepped(model: nn.Module, batch: int, length: int, vocab: int) -> Run:
    ids = torch.randint(0, vocab, (batch, length), device=DEV)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)

    def step() -> None:
        with torch.autocast(DEV, torch.bfloat16, enabled=BIG):
            out = model(ids)
            loss = next_token_loss(getattr(out, "logits", out), ids)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return Run(step=step)


def sharded_llama(*, reshard: bool) -> Run:
    model = llama(pick(512, 64), pick(3, 2))
    for layer in model.model.layers:
        fully_shard(layer, reshard_after_forward=reshard)
    fully_shard(model, reshard_after_forward=reshard)
    return stepped(model, pick(8, 1), pick(512, 32), 4096)


def routed(*, prefetch: bool) -> Run:
    """A mixture of experts under fully_shard; with `prefetch` each block gathers the next one's
    parameters first."""
    width = pick(256, 32)
    blocks = [RoutedBlock(width, 4 * width, 4) for _ in range(3)]
    model = nn.Sequential(*blocks).to(DEV)
    for block in blocks:
        fully_shard(block)
    fully_shard(model)
    if prefetch:
        for block, after in itertools.pairwise(blocks):
            assert isinstance(block, FSDPModule)
            block.set_modules_to_forward_prefetch([after])  # type: ignore[list-item]
    x = torch.randn(pick(65536, 64), width, device=DEV)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

    def step() -> None:
        F.mse_loss(model(x), x).backward()
        optimizer.step()
        optimizer.zero_grad()

    return Run(step=step)


def first_fsdp(*, prefetch: bool) -> Run:
    """FSDP of the first generation; needs an accelerator."""
    model = FullyShardedDataParallel(
        Decoder(pick(384, 64), pick(5, 2), wide=pick(1536, 128)).to(DEV),
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        forward_prefetch=prefetch,
        backward_prefetch=BackwardPrefetch.BACKWARD_PRE if prefetch else None,
        device_id=torch.device(DEV, 0) if BIG else torch.device(DEV),
        use_orig_params=True,
    )
    return stepped(model, pick(32, 1), pick(512, 32), 1024)


def tensor_parallel() -> Run:
    """Blocks split over ranks by columns, then rows: one all-reduce of activations per half block
    and direction."""
    mesh = init_device_mesh(DEV, (dist.get_world_size(),))
    width = pick(512, 64)
    model = Decoder(width, pick(4, 2), wide=4 * width).to(
        DEV, torch.bfloat16 if BIG else torch.float32
    )
    columns, rows = (
        dict.fromkeys("qkv", ColwiseParallel()),
        {"o": RowwiseParallel(), "down": RowwiseParallel()},
    )
    for block in model.blocks:
        parallelize_module(block, mesh, {**columns, **rows, "up": ColwiseParallel()})
    split = [p for p in model.parameters() if isinstance(p, DTensor)]
    whole = [p for p in model.parameters() if not isinstance(p, DTensor)]
    # One list may not hold both kinds.
    optimizer = torch.optim.AdamW([{"params": split}, {"params": whole}], lr=1e-4, foreach=True)
    torch.manual_seed(0)  # ranks that share a model read the same batch
    ids = torch.randint(0, 1024, (pick(8, 1), pick(512, 32)), device=DEV)

    def step() -> None:
        next_token_loss(model(ids).float(), ids).backward()
        optimizer.step()
        optimizer.zero_grad()

    return Run(step=step)
