"""Small models of the fifth set of jobs that no library has as they are needed here."""

from __future__ import annotations

import itertools
import math

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


class RadianceField(nn.Module):
    """A coordinate network: sines and cosines of a position, a wide MLP with one skip, a colour."""

    def __init__(self, width: int, depth: int, octaves: int) -> None:
        super().__init__()
        self.octaves, coded = octaves, 3 + 6 * octaves
        widths = [coded] + [width] * depth
        self.layers = nn.ModuleList(
            [
                nn.Linear(wide + (coded if i == depth // 2 else 0), width)
                for i, wide in enumerate(widths[:-1])
            ]
        )
        self.skip, self.head = depth // 2, nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        parts = [x]
        for octave in range(self.octaves):
            angle = x * (math.pi * 2**octave)
            parts += [angle.sin(), angle.cos()]
        coded = torch.cat(parts, dim=-1)
        y = coded
        for i, layer in enumerate(self.layers):
            y = F.relu(layer(torch.cat([y, coded], dim=-1) if i == self.skip else y))
        out: Tensor = torch.sigmoid(self.head(y))
        return out


class CrossLayer(nn.Module):
    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(width, rank, bias=False), nn.Linear(rank, width)

    def forward(self, first: Tensor, x: Tensor) -> Tensor:
        return first * self.up(self.down(x)) + x


class CrossNetwork(nn.Module):
    """Deep and cross: one small table per feature, crossed features, a tower."""

    def __init__(self, tables: int, rows: int, width: int, depth: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(rows, width) for _ in range(tables)])
        wide = tables * width
        self.crosses = nn.ModuleList([CrossLayer(wide, wide // 4) for _ in range(depth)])
        self.tower = nn.Sequential(
            nn.Linear(wide, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 1)
        )

    def forward(self, features: Tensor, clicked: Tensor) -> Tensor:
        first = torch.cat([table(features[:, i]) for i, table in enumerate(self.tables)], dim=-1)
        x = first
        for cross in self.crosses:
            x = cross(first, x)
        score = self.tower(x).squeeze(-1).float()
        return F.binary_cross_entropy_with_logits(score, clicked)


class Painter(nn.Module):
    """A generator of pictures from noise: transposed convolutions, normalised, to tanh."""

    def __init__(self, noise: int, width: int, doublings: int) -> None:
        super().__init__()
        channels = [width << i for i in range(doublings, -1, -1)]
        layers: list[nn.Module] = [nn.ConvTranspose2d(noise, channels[0], 4, 1, 0, bias=False)]
        for wide, narrow in itertools.pairwise(channels):
            layers += [
                nn.BatchNorm2d(wide),
                nn.ReLU(),
                nn.ConvTranspose2d(wide, narrow, 4, 2, 1, bias=False),
            ]
        self.body = nn.Sequential(*layers, nn.Conv2d(width, 3, 3, padding=1), nn.Tanh())

    def forward(self, noise: Tensor) -> Tensor:
        out: Tensor = self.body(noise)
        return out


class LatentReader(nn.Module):
    """A few latent vectors read a long sequence by attention, then think among themselves."""

    def __init__(self, width: int, latents: int, depth: int, classes: int) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(latents, width) * 0.02)
        self.sent, self.read = (
            nn.Linear(64, width),
            nn.MultiheadAttention(width, 8, batch_first=True),
        )
        self.think = nn.ModuleList(
            [
                nn.TransformerEncoderLayer(
                    width, 8, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
                )
                for _ in range(depth)
            ]
        )
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        seen = self.sent(x)
        y = self.latents.to(seen.dtype).expand(len(x), -1, -1)
        y = y + self.read(y, seen, seen, need_weights=False)[0]
        for block in self.think:
            y = block(y)
        out: Tensor = self.head(y.mean(1))
        return out
