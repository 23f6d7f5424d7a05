"""Pipelines: a stack of layers cut into stages, one per rank, fed micro-batches."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from lab.measure import DEV, Run
from lab.ranks.models import pick


class FeedForward(nn.Module):
    """A narrow residual stream through a wide layer: much to compute for each byte that goes to the
    next stage."""

    def __init__(self, width: int, wide: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = (
            nn.LayerNorm(width),
            nn.Linear(width, wide),
            nn.Linear(wide, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))  # type: ignore[no-any-return]


def loss_of(out: Tensor, target: Tensor) -> Tensor:
    return F.mse_loss(out, target)


def pipeline(micro_batches: int, *, gpipe: bool = False, batch: int = 32, depth: int = 2) -> Run:
    """`depth` layers a stage, in fp32; every stage has the same work, so what ranks wait for is the
    pipeline itself."""
    rank, world, width = dist.get_rank(), dist.get_world_size(), pick(128, 32)
    device = torch.device(DEV, 0) if DEV == "cuda" else torch.device(DEV)
    module = nn.Sequential(*(FeedForward(width, pick(32768, 64)) for _ in range(depth))).to(device)
    stage = PipelineStage(module, rank, world, device)
    kind = ScheduleGPipe if gpipe else Schedule1F1B
    schedule = kind(stage, n_microbatches=micro_batches, loss_fn=loss_of)
    x = torch.randn(batch, pick(512, 16), width, device=device)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-5)

    def step() -> None:
        if rank == 0:
            schedule.step(x)
        elif rank == world - 1:
            schedule.step(target=x)
        else:
            schedule.step()
        optimizer.step()
        optimizer.zero_grad()

    return Run(step=step)
