"""Small models of the sixth set of jobs that no library has as they are needed here."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


class Detector(nn.Module):
    """DETR-like: a body of convolutions, an encoder, queries that each tell a class and a box.

    Queries are matched with the true boxes greedily on the host, the costs read a picture at a
    time or, `together`, all at once.
    """

    def __init__(
        self,
        body: nn.Module,
        channels: int,
        width: int,
        depth: int,
        queries: int,
        *,
        together: bool,
    ) -> None:
        super().__init__()
        self.body, self.together, self.classes = body, together, 91
        self.project = nn.Conv2d(channels, width, 1)
        self.transformer = nn.Transformer(
            width, 8, depth, depth, 4 * width, 0.0, batch_first=True, norm_first=True
        )
        self.queries = nn.Parameter(torch.randn(queries, width) * 0.1)
        self.kind, self.box = nn.Linear(width, self.classes + 1), nn.Linear(width, 4)

    def forward(self, pictures: Tensor, kinds: Tensor, boxes: Tensor) -> Tensor:
        seen = self.project(self.body(pictures).last_hidden_state).flatten(2).transpose(1, 2)
        asked = self.queries.to(seen.dtype).expand(len(seen), -1, -1)
        found = self.transformer(seen, asked)
        logits, places = self.kind(found).float(), self.box(found).float().sigmoid()
        matched = self._match(logits.detach(), places.detach(), kinds, boxes)
        targets = kinds.new_full(logits.shape[:2], self.classes).scatter(1, matched, kinds)
        chosen = places.gather(1, matched.unsqueeze(-1).expand(-1, -1, 4))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten()) + F.l1_loss(chosen, boxes)

    def _match(self, logits: Tensor, places: Tensor, kinds: Tensor, boxes: Tensor) -> Tensor:
        """The query of each true box, a picture a row."""
        likely = logits.softmax(-1).gather(2, kinds.unsqueeze(1).expand(-1, logits.shape[1], -1))
        far = (places.unsqueeze(2) - boxes.unsqueeze(1)).abs().sum(-1)
        costs = (far - likely).transpose(1, 2)
        on_host = costs.tolist() if self.together else [cost.tolist() for cost in costs]
        return torch.tensor([_greedy(rows) for rows in on_host], device=logits.device)


def _greedy(rows: list[list[float]]) -> list[int]:
    """For each row the cheapest column that no row before it has taken."""
    taken: list[int] = []
    for row in rows:
        for column in sorted(range(len(row)), key=row.__getitem__):
            if column not in taken:
                taken.append(column)
                break
    return taken


class NeighbourMean(nn.Module):
    """GraphSAGE: a node with the mean of its sampled neighbours, two hops deep."""

    def __init__(self, nodes: int, width: int, classes: int) -> None:
        super().__init__()
        self.register_buffer("features", torch.randn(nodes, width))
        self.near, self.far = nn.Linear(2 * width, width), nn.Linear(2 * width, width)
        self.head = nn.Linear(width, classes)

    def forward(self, seeds: Tensor, first: Tensor, second: Tensor) -> Tensor:
        features = self.get_buffer("features")
        node, near, far = features[seeds], features[first], features[second]
        near = F.relu(self.far(torch.cat([near, far.mean(2)], dim=-1)))
        node = F.relu(self.near(torch.cat([node, near.mean(1)], dim=-1)))
        out: Tensor = self.head(F.normalize(node, dim=-1))
        return out


def _items_loss(states: Tensor, items: Tensor, wanted: Tensor) -> Tensor:
    logits = F.linear(states, items).float()
    return F.cross_entropy(logits.view(-1, logits.shape[-1]), wanted.flatten())


class NextItem(nn.Module):
    """SASRec-like: causal attention over what a user bought, a softmax over all items."""

    def __init__(self, items: int, width: int, depth: int, length: int, *, compiled: bool) -> None:
        super().__init__()
        self.items, self.places = nn.Embedding(items, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(
            [
                nn.TransformerEncoderLayer(
                    width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
                )
                for _ in range(depth)
            ]
        )
        mask = nn.Transformer.generate_square_subsequent_mask(length - 1)
        self.register_buffer("mask", mask, persistent=False)
        self.loss = torch.compile(_items_loss) if compiled else _items_loss

    def forward(self, bought: Tensor) -> Tensor:
        x = self.items(bought[:, :-1]) + self.places.weight[: bought.shape[1] - 1]
        for block in self.blocks:
            x = block(x, src_mask=self.get_buffer("mask"), is_causal=True)
        return self.loss(x, self.items.weight, bought[:, 1:])


class LowRank(nn.Module):
    """A frozen linear layer with a trained product of two thin matrices beside it."""

    def __init__(self, frozen: nn.Linear, rank: int) -> None:
        super().__init__()
        self.frozen, self.scale = frozen.requires_grad_(requires_grad=False), 2.0
        self.down = nn.Linear(frozen.in_features, rank, bias=False)
        self.up = nn.Linear(rank, frozen.out_features, bias=False)
        self.dropout = nn.Dropout(0.05)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.frozen(x) + self.up(self.down(self.dropout(x))) * self.scale
        return out


def with_low_rank(model: nn.Module, names: set[str], rank: int) -> nn.Module:
    """The model frozen, but for thin matrices beside each linear layer of these names."""
    model.requires_grad_(requires_grad=False)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if name in names and isinstance(child, nn.Linear):
                setattr(module, name, LowRank(child, rank))
    return model


class ReadingBlock(nn.Module):
    """A residual block of convolutions told the time, then attention to the words of a prompt."""

    def __init__(self, channels: int, out: int, time: int, words: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.GroupNorm(8, channels), nn.GroupNorm(8, out)])
        self.convs = nn.ModuleList(
            [nn.Conv2d(channels, out, 3, padding=1), nn.Conv2d(out, out, 3, padding=1)]
        )
        self.time, self.skip = nn.Linear(time, out), nn.Conv2d(channels, out, 1)
        self.norm, self.q, self.kv = (
            nn.LayerNorm(out),
            nn.Linear(out, out),
            nn.Linear(words, 2 * out),
        )
        self.out = nn.Linear(out, out)

    def forward(self, x: Tensor, time: Tensor, words: Tensor) -> Tensor:
        y = self.convs[0](F.silu(self.norms[0](x))) + self.time(time)[:, :, None, None]
        y = self.convs[1](F.silu(self.norms[1](y))) + self.skip(x)
        n, channels, height, width = y.shape
        flat = y.flatten(2).transpose(1, 2)
        q = self.q(self.norm(flat)).view(n, -1, 4, channels // 4).transpose(1, 2)
        kv = self.kv(words).view(n, -1, 2, 4, channels // 4).permute(2, 0, 3, 1, 4)
        read = F.scaled_dot_product_attention(q, kv[0], kv[1]).transpose(1, 2).flatten(2)
        flat = flat + self.out(read)
        return flat.transpose(1, 2).reshape(n, channels, height, width)


class PromptedDenoiser(nn.Module):
    """The U-Net of latent diffusion, small: three levels, a prompt read at each."""

    def __init__(self, width: int, words: int) -> None:
        super().__init__()
        time, a, b, c = 4 * width, width, 2 * width, 4 * width
        self.time = nn.Sequential(nn.Linear(1, time), nn.SiLU(), nn.Linear(time, time))
        self.first, self.last = nn.Conv2d(4, a, 3, padding=1), nn.Conv2d(a, 4, 3, padding=1)
        self.down = nn.ModuleList(
            [ReadingBlock(i, o, time, words) for i, o in ((a, a), (a, b), (b, c))]
        )
        self.middle = ReadingBlock(c, c, time, words)
        self.up = nn.ModuleList(
            [ReadingBlock(i, o, time, words) for i, o in ((2 * c, b), (2 * b, a), (2 * a, a))]
        )

    def forward(self, x: Tensor, time: Tensor, words: Tensor) -> Tensor:
        told, y, skips = self.time(time), self.first(x), []
        for block in self.down:
            y = block(y, told, words)
            skips.append(y)
            y = F.avg_pool2d(y, 2)
        y = self.middle(y, told, words)
        for block in self.up:
            y = F.interpolate(y, scale_factor=2.0)
            y = block(torch.cat([y, skips.pop()], dim=1), told, words)
        out: Tensor = self.last(y)
        return out


class Experts(nn.Module):
    """Experts that all see the whole batch, one after the other or, `together`, in one product."""

    def __init__(self, experts: int, width: int, hidden: int, *, together: bool) -> None:
        super().__init__()
        self.together = together
        self.into = nn.Parameter(torch.randn(experts, width, hidden) * width**-0.5)
        self.out = nn.Parameter(torch.randn(experts, hidden, hidden) * hidden**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        if self.together:
            many = x.expand(len(self.into), -1, -1)
            return F.relu(torch.bmm(F.relu(torch.bmm(many, self.into)), self.out)).transpose(0, 1)
        pairs = zip(self.into.unbind(0), self.out.unbind(0), strict=True)
        return torch.stack([F.relu(F.relu(x @ into) @ out) for into, out in pairs], dim=1)


class ManyTasks(nn.Module):
    """A multi-gate mixture of experts over bags of features, with a tower for each task."""

    def __init__(self, tables: int, rows: int, tasks: int, experts: int, *, together: bool) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.EmbeddingBag(rows, 32) for _ in range(tables)])
        wide, hidden = 32 * tables, 256
        self.experts = Experts(experts, wide, hidden, together=together)
        self.gates = nn.ModuleList([nn.Linear(wide, experts) for _ in range(tasks)])
        self.towers = nn.ModuleList(
            [
                nn.Sequential(nn.Linear(hidden, 128), nn.ReLU(), nn.Linear(128, 1))
                for _ in range(tasks)
            ]
        )

    def forward(self, bags: Tensor, labels: Tensor) -> Tensor:
        x = torch.cat([table(bags[:, i]) for i, table in enumerate(self.tables)], dim=-1)
        seen = self.experts(x)
        scores = []
        for gate, tower in zip(self.gates, self.towers, strict=True):
            weights = gate(x).softmax(-1).to(seen.dtype)
            scores.append(tower((weights.unsqueeze(-1) * seen).sum(1)).squeeze(-1))
        return F.binary_cross_entropy_with_logits(torch.stack(scores, dim=1).float(), labels)


class Carts:
    """Many carts with a pole each, as numpy steps them: one row of four numbers for a cart."""

    force, gravity, dt = 10.0, 9.8, 0.02

    def __init__(self, states: Any) -> None:
        self.states = states

    def step(self, right: Any) -> tuple[Any, Any]:
        place, speed, angle, turn = self.states.T
        push = np.where(right, self.force, -self.force)
        sine, cosine = np.sin(angle), np.cos(angle)
        pull = (push + 0.05 * turn**2 * sine) / 1.1
        bend = (self.gravity * sine - cosine * pull) / (0.5 * (4 / 3 - 0.1 * cosine**2 / 1.1))
        move = pull - 0.05 * bend * cosine / 1.1
        parts = (
            place + self.dt * speed,
            speed + self.dt * move,
            angle + self.dt * turn,
            turn + self.dt * bend,
        )
        self.states = np.stack(parts, axis=1).astype(np.float32)
        fell = np.abs(self.states[:, 2]) > 0.2
        self.states[fell] = 0.0
        return self.states, np.where(fell, -1.0, 1.0).astype(np.float32)


class Player(nn.Module):
    """A policy that plays some steps of `Carts` on the host and returns its own loss.

    `in_turn` sends each action to the host by itself, a cart at a time.
    """

    def __init__(self, width: int, steps: int, *, in_turn: bool) -> None:
        super().__init__()
        self.steps, self.in_turn = steps, in_turn
        self.body = nn.Sequential(
            nn.Linear(4, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()
        )
        self.action, self.value = nn.Linear(width, 2), nn.Linear(width, 1)

    def forward(self, starts: Tensor) -> Tensor:
        carts, seen, done, gains = Carts(starts.cpu().numpy()), [starts], [], []
        for _ in range(self.steps):
            with torch.no_grad():
                logits = self.action(self.body(seen[-1])).float()
                right = torch.distributions.Categorical(logits=logits).sample()
            states, gain = carts.step(self._told(right))
            done.append(right)
            gains.append(torch.from_numpy(gain).to(starts.device))
            seen.append(torch.from_numpy(states).to(starts.device))
        return self._loss(torch.cat(seen[:-1]), torch.cat(done), torch.cat(gains))

    def _told(self, right: Tensor) -> Any:
        if self.in_turn:
            return np.array([bool(one.item()) for one in right])
        return right.cpu().numpy().astype(bool)

    def _loss(self, seen: Tensor, done: Tensor, gains: Tensor) -> Tensor:
        features = self.body(seen)
        chance = self.action(features).float().log_softmax(-1).gather(1, done.unsqueeze(1))
        value = self.value(features).float().squeeze(1)
        advantage = gains - value.detach()
        return F.mse_loss(value, gains) - (chance.squeeze(1) * advantage).mean()
