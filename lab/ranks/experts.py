"""Expert parallelism: each rank keeps some experts, tokens travel to them and back by
all-to-all."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from lab.measure import DEV, Run
from lab.ranks.models import pick


class Exchange(torch.autograd.Function):
    """all_to_all_single whose backward sends the gradients the other way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, sent: list[int], received: list[int]) -> Tensor:
        ctx.sizes = sent, received
        out = x.new_empty(sum(received), *x.shape[1:])
        dist.all_to_all_single(out, x.contiguous(), received, sent)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        sent, received = ctx.sizes
        out = grads[0].new_empty(sum(sent), *grads[0].shape[1:])
        dist.all_to_all_single(out, grads[0].contiguous(), sent, received)
        return out, None, None


class ExpertLayer(nn.Module):
    """Top-1 routing over all ranks' experts; this rank keeps one. `pull` draws tokens to rank
    0's."""

    def __init__(self, width: int, wide: int, pull: float) -> None:
        super().__init__()
        self.world = dist.get_world_size()
        self.norm, self.route = nn.LayerNorm(width), nn.Linear(width, self.world, bias=False)
        self.expert = nn.Sequential(nn.Linear(width, wide), nn.GELU(), nn.Linear(wide, width))
        self.pull: Tensor
        self.register_buffer("pull", torch.tensor([pull] + [0.0] * (self.world - 1)))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        weight, choice = (self.route(y) + self.pull).softmax(-1).max(-1)
        order = choice.argsort()
        counts = torch.bincount(choice, minlength=self.world)
        theirs = torch.empty_like(counts)
        dist.all_to_all_single(theirs, counts)
        sent, received = counts.tolist(), theirs.tolist()
        here = Exchange.apply(y[order], sent, received)
        back = Exchange.apply(self.expert(here), received, sent)
        return x + torch.empty_like(x).index_copy(0, order, back) * weight[:, None]


def expert_parallel(pull: float) -> Run:
    width = pick(256, 32)
    torch.manual_seed(0)  # the routers are one model
    model = nn.Sequential(*(ExpertLayer(width, pick(16384, 64), pull) for _ in range(3))).to(DEV)
    torch.manual_seed(1 + dist.get_rank())
    x = torch.randn(pick(4096, 64), width, device=DEV)
    shared = [p for name, p in model.named_parameters() if "expert" not in name]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

    def step() -> None:
        F.mse_loss(model(x), torch.zeros_like(x)).backward()
        flat = torch.cat([p.grad.flatten() for p in shared if p.grad is not None])
        dist.all_reduce(flat, dist.ReduceOp.AVG if DEV == "cuda" else dist.ReduceOp.SUM)
        sizes = [p.numel() for p in shared]
        for p, grad in zip(shared, flat.split(sizes), strict=True):
            p.grad = grad.view_as(p)
        optimizer.step()
        optimizer.zero_grad()

    return Run(step=step)
