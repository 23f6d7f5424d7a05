"""Runs of many small operations: differential equations, reinforcement learning, tables, graphs."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.data import Dataset

from lab import models_second as models
from lab.loops.data import loaded, on_device, pinned, size, to_device
from lab.loops.steps import adamw, captured, train
from lab.measure import BIG, DEV, Run


def fused_adam(model: nn.Module) -> torch.optim.Optimizer:
    """Whose step a CUDA graph can hold."""
    return torch.optim.Adam(model.parameters(), lr=1e-4, fused=True, capturable=BIG)


def maybe_captured(step: Callable[[], None], graph: bool) -> Callable[[], None]:
    return captured(step) if graph and BIG else step


def pinn(*, graph: bool) -> Run:
    model = models.PointNet(size(64, 8), size(6, 2)).to(DEV)
    opt, points = fused_adam(model), size(4096, 16)
    params = list(model.parameters())

    def step() -> None:
        x, t = (torch.rand(points, 1, device=DEV, requires_grad=True) for _ in range(2))
        loss = model(x, t).square().mean()
        loss.backward(inputs=params)  # type: ignore[no-untyped-call]
        opt.step()
        opt.zero_grad(set_to_none=True)

    return Run(step=maybe_captured(step, graph))


def neural_ode(*, amp: bool = False, graph: bool = False) -> Run:
    model = models.NeuralODE(size(64, 8), size(256, 16), size(8, 2)).to(DEV)
    start, end = (torch.randn(size(512, 4), size(64, 8), device=DEV) for _ in range(2))
    step = train(
        lambda y: F.mse_loss(model(y).float(), end),
        itertools.repeat(start),
        fused_adam(model),
        amp=amp,
    )
    return Run(step=maybe_captured(step, graph))


def ppo(*, read: bool, graph: bool = False) -> Run:
    """The update of PPO: mini-batches drawn from one rollout; `read` asks after each whether the
    policy has gone too far."""
    obs_dim, act_dim, rollout, batch = 48, 8, size(16384, 64), size(2048, 8)
    model = models.ActorCritic(obs_dim, act_dim, size(256, 16)).to(DEV)
    opt = fused_adam(model)
    obs, action = (
        torch.randn(rollout, obs_dim, device=DEV),
        torch.randn(rollout, act_dim, device=DEV),
    )
    advantage, returns = (torch.randn(rollout, device=DEV) for _ in range(2))
    with torch.no_grad():
        old = model(obs, action)[0]

    def step() -> None:
        for _ in range(size(5, 2)):
            rows = torch.randint(0, rollout, (batch,), device=DEV)
            log_prob, entropy, value = model(obs[rows], action[rows])
            change = log_prob - old[rows]
            ratio, gain = change.exp(), advantage[rows]
            policy = torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
            loss = 0.5 * F.mse_loss(value, returns[rows]) - policy - 0.01 * entropy.mean()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            opt.step()
            opt.zero_grad(set_to_none=True)
            far = (ratio.detach() - 1 - change.detach()).mean()
            if read and far.item() > 1e9:
                break

    return Run(step=maybe_captured(step, graph))


def tabular_transformer(*, foreach: bool) -> Run:
    features, batch = 24, size(512, 4)
    model = models.TabularTransformer(features, size(192, 16), size(6, 2)).to(DEV)
    batches = on_device(lambda: (torch.randn(batch, features), torch.rand(batch).round()))
    opt = torch.optim.NAdam(model.parameters(), lr=1e-4, foreach=foreach)

    def forward(part: Any) -> Tensor:
        row, label = part
        return F.binary_cross_entropy_with_logits(model(row).float(), label)

    return Run(step=train(forward, batches, opt))


class Rows(Dataset[Any]):
    """A table in memory: a whole batch is one indexing operation."""

    def __init__(self, rows: int, features: int) -> None:
        self.x, self.y = torch.randn(rows, features), torch.rand(rows).round()

    def __len__(self) -> int:
        return len(self.y)

    def __getitems__(self, rows: list[int]) -> list[Tensor]:
        return [self.x[rows], self.y[rows]]


def as_it_is(batch: list[Tensor]) -> list[Tensor]:
    return batch


def table(*, workers: int, graph: bool = False) -> Run:
    features, batch = 32, size(1024, 8)
    model = models.tabular_mlp(features, size(256, 16), size(10, 2)).to(DEV)
    batches = loaded(
        Rows(size(2_000_000, 4096), features), batch=batch, workers=workers, collate=as_it_is
    )
    x, y = torch.zeros(batch, features, device=DEV), torch.zeros(batch, device=DEV)

    def forward(part: Any) -> Tensor:
        row, label = part
        return F.binary_cross_entropy_with_logits(model(row), label)

    if not (graph and BIG):
        return Run(step=train(forward, batches, fused_adam(model), amp=False))
    update = captured(train(forward, itertools.repeat((x, y)), fused_adam(model), amp=False))

    def step() -> None:
        row, label = next(batches)
        x.copy_(row)
        y.copy_(label)
        update()

    return Run(step=step)


class Molecules(nn.Module):
    """GraphSAGE over many graphs at once, one number for each node."""

    def __init__(self, kinds: int, dim: int, layers: int) -> None:
        super().__init__()
        from torch_geometric.nn import SAGEConv

        self.emb, self.head = nn.Embedding(kinds, dim), nn.Linear(dim, 1)
        self.layers = nn.ModuleList([SAGEConv(dim, dim) for _ in range(layers)])

    def forward(self, kind: Tensor, edges: Tensor) -> Tensor:
        x = self.emb(kind)
        for layer in self.layers:
            x = F.relu(layer(x, edges))
        return self.head(x).squeeze(-1)  # type: ignore[no-any-return]


def graphs(*, packed: bool) -> Run:
    """Graphs moved one by one and joined on the device; or joined before (by whoever loads) and
    moved at once."""
    count, nodes, edges, kinds = size(48, 3), size(2000, 10), size(16_000, 20), 64
    model = Molecules(kinds, size(384, 8), 3).to(DEV)
    starts = torch.arange(count) * nodes

    def make() -> list[Tensor]:
        kind, pairs = (
            torch.randint(0, kinds, (count, nodes)),
            torch.randint(0, nodes, (count, 2, edges)),
        )
        if packed:
            return [
                kind.flatten(),
                (pairs + starts[:, None, None]).transpose(0, 1).flatten(1).contiguous(),
            ]
        return [*kind.unbind(), *(pairs + starts[:, None, None]).unbind()]

    def joined(parts: list[Tensor]) -> tuple[Tensor, Tensor]:
        there = to_device(parts)
        return (
            (there[0], there[1])
            if packed
            else (torch.cat(there[:count]), torch.cat(there[count:], 1))
        )

    batches = map(joined, itertools.cycle([pinned(make()) for _ in range(4)]))
    step = train(lambda part: model(*part).square().mean(), batches, adamw(model), amp=False)
    return Run(step=step, matmul="high")
