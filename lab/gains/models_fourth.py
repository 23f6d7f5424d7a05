"""Small models of the fourth set of jobs that no library has as they are needed here."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


def _twice(channels: int, out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, out, 3, padding=1, bias=False),
        nn.BatchNorm2d(out),
        nn.ReLU(inplace=True),
        nn.Conv2d(out, out, 3, padding=1, bias=False),
        nn.BatchNorm2d(out),
        nn.ReLU(inplace=True),
    )


class Segmenter(nn.Module):
    """The U-Net of biomedical segmentation: pooled down, transposed convolutions up."""

    def __init__(self, width: int, depth: int, classes: int) -> None:
        super().__init__()
        widths = [width << i for i in range(depth + 1)]
        self.first = _twice(3, width)
        self.down = nn.ModuleList([_twice(a, 2 * a) for a in widths[:-1]])
        self.grow = nn.ModuleList([nn.ConvTranspose2d(2 * a, a, 2, 2) for a in widths[-2::-1]])
        self.up = nn.ModuleList([_twice(2 * a, a) for a in widths[-2::-1]])
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        skips = []
        for down in self.down:
            skips.append(x)
            x = down(F.max_pool2d(x, 2))
        for grow, up in zip(self.grow, self.up, strict=True):
            x = up(torch.cat([grow(x), skips.pop()], dim=1))
        out: Tensor = self.head(x)
        return out


class GraphAttentionLayer(nn.Module):
    """Scores each edge, and adds neighbours weighed by a softmax over a node's edges."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.project = heads, nn.Linear(width, width)
        self.source = nn.Parameter(torch.randn(heads, width // heads) * 0.1)
        self.target = nn.Parameter(torch.randn(heads, width // heads) * 0.1)

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        h = self.project(x).view(len(x), self.heads, -1)
        sent = (h * self.source).sum(-1).index_select(0, source)
        met = (h * self.target).sum(-1).index_select(0, target)
        weight = F.leaky_relu(sent + met, 0.2).float().clamp(max=20.0).exp()
        total = weight.new_zeros(len(x), self.heads).index_add(0, target, weight)
        share = weight / (total.index_select(0, target) + 1e-9)
        message = h.index_select(0, source) * share.unsqueeze(-1)
        out = torch.zeros_like(h, dtype=message.dtype).index_add(0, target, message)
        return x + F.elu(out.flatten(1))


class GraphAttention(nn.Module):
    """A graph attention network that tells the class of each node."""

    def __init__(self, width: int, heads: int, depth: int, classes: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([GraphAttentionLayer(width, heads) for _ in range(depth)])
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        source, target = ends
        for layer in self.layers:
            x = layer(x, source, target)
        out: Tensor = self.head(x)
        return out


def _tower(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, 512), nn.ReLU(), nn.Linear(512, 128))


class Towers(nn.Module):
    """Two-tower retrieval: a user with what was seen before, an item, a softmax over the batch."""

    def __init__(self, users: int, items: int, width: int) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(users, width), nn.Embedding(items, width)
        self.seen = nn.EmbeddingBag(items, width, mode="mean")
        self.user_tower, self.item_tower = _tower(2 * width), _tower(width)

    def forward(self, users: Tensor, seen: Tensor, items: Tensor) -> Tensor:
        user = self.user_tower(torch.cat([self.users(users), self.seen(seen)], dim=-1))
        item = self.item_tower(self.items(items))
        scores = F.normalize(user, dim=-1) @ F.normalize(item, dim=-1).t() / 0.07
        return F.cross_entropy(scores.float(), torch.arange(len(users), device=users.device))


class Listener(nn.Module):
    """A bidirectional LSTM over a spectrogram, pooled by learned weights."""

    def __init__(self, bins: int, width: int, depth: int, classes: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(bins)
        self.lstm = nn.LSTM(bins, width, depth, batch_first=True, bidirectional=True)
        self.weight, self.head = nn.Linear(2 * width, 1), nn.Linear(2 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.lstm(self.norm(x))
        pooled = (states * self.weight(states).softmax(1).to(states.dtype)).sum(1)
        out: Tensor = self.head(pooled)
        return out


class ForecastBlock(nn.Module):
    def __init__(self, past: int, future: int, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(past, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        )
        self.back, self.ahead = nn.Linear(width, past), nn.Linear(width, future)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.body(x)
        return self.back(y), self.ahead(y)


class Forecaster(nn.Module):
    """N-BEATS: each block explains a part of the past, and what it explains adds to the future."""

    def __init__(self, past: int, future: int, width: int, depth: int) -> None:
        super().__init__()
        blocks = [ForecastBlock(past, future, width) for _ in range(depth)]
        self.blocks, self.future = nn.ModuleList(blocks), future

    def forward(self, x: Tensor) -> Tensor:
        total = x.new_zeros(len(x), self.future)
        for block in self.blocks:
            back, ahead = block(x)
            x, total = x - back, total + ahead
        return total


class MixerBlock(nn.Module):
    """Mixes over patches, then over channels."""

    def __init__(self, patches: int, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.patches = nn.Sequential(
            nn.Linear(patches, width // 2), nn.GELU(), nn.Linear(width // 2, patches)
        )
        self.channels = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.patches(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        out: Tensor = x + self.channels(self.norms[1](x))
        return out


class Mixer(nn.Module):
    """MLP-Mixer over patches of 16 x 16 pixels."""

    def __init__(self, side: int, width: int, depth: int) -> None:
        super().__init__()
        self.patch, self.head = nn.Conv2d(3, width, 16, 16), nn.Linear(width, 1000)
        patches = (side // 16) ** 2
        self.blocks = nn.Sequential(*[MixerBlock(patches, width) for _ in range(depth)])

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.blocks(self.patch(x).flatten(2).transpose(1, 2)).mean(1))
        return out
