"""The models of the lab that no library has: a diffusion U-Net, a recommender, a mixture of
experts, a GAN and small nets.

Sizes are the caller's: nothing here knows whether it runs on a GPU.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class ResBlock(nn.Module):
    """GroupNorm, SiLU, convolution, twice, with the time embedding added between."""

    def __init__(self, c_in: int, c_out: int, emb: int) -> None:
        super().__init__()
        self.n1, self.c1 = nn.GroupNorm(8, c_in), nn.Conv2d(c_in, c_out, 3, 1, 1)
        self.n2, self.c2 = nn.GroupNorm(8, c_out), nn.Conv2d(c_out, c_out, 3, 1, 1)
        self.emb = nn.Linear(emb, c_out)
        self.skip = nn.Conv2d(c_in, c_out, 1) if c_in != c_out else nn.Identity()

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        y = self.c1(F.silu(self.n1(x))) + self.emb(t)[:, :, None, None]
        return self.c2(F.silu(self.n2(y))) + self.skip(x)  # type: ignore[no-any-return]


class UNet(nn.Module):
    """A small denoiser: two levels down, a middle, two levels up."""

    def __init__(self, width: int = 64, recompute: bool = False) -> None:
        super().__init__()
        w, emb = width, 4 * width
        self.time = nn.Sequential(nn.Linear(width, emb), nn.SiLU(), nn.Linear(emb, emb))
        self.stem, self.head = nn.Conv2d(3, w, 3, 1, 1), nn.Conv2d(w, 3, 3, 1, 1)
        self.down = nn.ModuleList([ResBlock(w, w, emb), ResBlock(w, 2 * w, emb)])
        self.mid = ResBlock(2 * w, 2 * w, emb)
        self.up = nn.ModuleList([ResBlock(4 * w, w, emb), ResBlock(2 * w, w, emb)])
        self.width, self.recompute = width, recompute

    def block(self, block: nn.Module, x: Tensor, t: Tensor) -> Tensor:
        out: Tensor = (
            checkpoint(block, x, t, use_reentrant=False) if self.recompute else block(x, t)
        )
        return out

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        freq = torch.exp(
            torch.arange(self.width // 2, device=x.device) * (-9.2 / (self.width // 2))
        )
        phase = t[:, None] * freq
        emb = self.time(torch.cat([phase.sin(), phase.cos()], 1))
        y, skips = self.stem(x), []
        for block in self.down:
            y = self.block(block, y, emb)
            skips.append(y)
            y = F.avg_pool2d(y, 2)
        y = self.block(self.mid, y, emb)
        for block in self.up:
            y = F.interpolate(y, scale_factor=2.0)
            y = self.block(block, torch.cat([y, skips.pop()], 1), emb)
        return self.head(y)  # type: ignore[no-any-return]


class Recommender(nn.Module):
    """DLRM-like: bags of categories from big tables, pairwise products, two small MLPs."""

    def __init__(self, tables: int, rows: int, dim: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.EmbeddingBag(rows, dim, mode="sum") for _ in range(tables)])
        self.bottom = nn.Sequential(nn.Linear(13, 256), nn.ReLU(), nn.Linear(256, dim), nn.ReLU())
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(nn.Linear(dim + pairs, 256), nn.ReLU(), nn.Linear(256, 1))
        self.register_buffer(
            "pairs", torch.triu_indices(tables + 1, tables + 1, 1), persistent=False
        )

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        x = self.bottom(dense)
        z = torch.stack([x, *(table(sparse[i]) for i, table in enumerate(self.tables))], 1)
        i, j = self.get_buffer("pairs")
        products = torch.bmm(z, z.transpose(1, 2)).flatten(1).index_select(1, i * z.shape[1] + j)
        return self.top(torch.cat([x, products], 1)).squeeze(1)  # type: ignore[no-any-return]


class HistoryModel(nn.Module):
    """Scores a user by the mean of the items met so far."""

    def __init__(self, items: int, dim: int) -> None:
        super().__init__()
        self.items = nn.Embedding(items, dim)
        self.score = nn.Sequential(
            nn.Linear(dim, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1)
        )

    def forward(self, history: Tensor) -> Tensor:
        x, seen = self.items(history), (history != 0).unsqueeze(-1)
        return self.score((x * seen).sum(1) / seen.sum(1).clamp(min=1)).squeeze(1)  # type: ignore[no-any-return]


class Experts(nn.Module):
    """Top-1 routing, a loop over the experts.

    `capacity` None asks the device which tokens came to each expert (nonzero: the host waits); a
    number takes that many of the best-scoring tokens instead, whose shape the host knows.
    """

    def __init__(self, dim: int, hidden: int, experts: int, capacity: int | None) -> None:
        super().__init__()
        self.gate, self.capacity, self.norm = nn.Linear(dim, experts), capacity, nn.LayerNorm(dim)
        self.experts = nn.ModuleList(
            [
                nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim))
                for _ in range(experts)
            ]
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        prob = self.gate(y).float().softmax(-1)
        best, out = prob.argmax(-1), x
        for e, expert in enumerate(self.experts):
            if self.capacity is None:
                rows = (best == e).nonzero().squeeze(1)
            else:
                rows = (prob[:, e] + (best == e)).topk(self.capacity, sorted=False).indices
            weight = prob[:, e].index_select(0, rows).unsqueeze(1)
            out = out.index_add(0, rows, (expert(y.index_select(0, rows)) * weight).to(out.dtype))
        return out


class MixtureModel(nn.Module):
    """Embedding, layers of experts, head."""

    def __init__(
        self, dim: int, hidden: int, experts: int, layers: int, vocab: int, capacity: int | None
    ) -> None:
        super().__init__()
        self.emb, self.head = nn.Embedding(vocab, dim), nn.Linear(dim, vocab)
        self.layers = nn.Sequential(
            *[Experts(dim, hidden, experts, capacity) for _ in range(layers)]
        )

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.layers(self.emb(ids)))  # type: ignore[no-any-return]


class CellLoop(nn.Module):
    """A language model over an LSTM: a Python loop over LSTMCell, or one nn.LSTM."""

    def __init__(self, vocab: int, dim: int, layers: int, cells: bool) -> None:
        super().__init__()
        self.emb, self.head, self.dim = nn.Embedding(vocab, dim), nn.Linear(dim, vocab), dim
        self.cells = (
            nn.ModuleList([nn.LSTMCell(dim, dim) for _ in range(layers)]) if cells else None
        )
        self.rnn = None if cells else nn.LSTM(dim, dim, layers, batch_first=True)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.emb(ids)
        if self.rnn is not None:
            return self.head(self.rnn(x)[0])  # type: ignore[no-any-return]
        assert self.cells is not None
        for cell in self.cells:
            h = c = x.new_zeros(x.shape[0], self.dim)
            outs = []
            for xt in x.unbind(1):
                h, c = cell(xt, (h, c))
                outs.append(h)
            x = torch.stack(outs, 1)
        return self.head(x)  # type: ignore[no-any-return]


def gan_pair(depth: int, width: int) -> tuple[nn.Module, nn.Module]:
    """Generator and discriminator: deep, narrow, hundreds of small parameters."""

    def trunk(act: type[nn.Module]) -> list[nn.Module]:
        return [
            m
            for _ in range(depth)
            for m in (nn.Conv2d(width, width, 3, 1, 1), nn.BatchNorm2d(width), act())
        ]

    gen = nn.Sequential(
        nn.Conv2d(8, width, 3, 1, 1), *trunk(nn.ReLU), nn.Conv2d(width, 3, 3, 1, 1), nn.Tanh()
    )
    dis = nn.Sequential(
        nn.Conv2d(3, width, 3, 1, 1),
        *trunk(nn.SiLU),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(width, 1),
    )
    return gen, dis


class SharedLayers(nn.Module):
    """ALBERT-like: one wide layer applied many times, its fp32 weights cast at every use unless
    autocast keeps the cast."""

    def __init__(self, dim: int, hidden: int, repeats: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = (
            nn.LayerNorm(dim),
            nn.Linear(dim, hidden),
            nn.Linear(hidden, dim),
        )
        self.repeats = repeats

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.repeats):
            x = x + self.down(F.relu(self.up(self.norm(x))))
        return x


class MishNet(nn.Module):
    """Convolutions between long hand-written pointwise chains (Mish, scale, shift, gate)."""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, 1, 1)
        self.convs = nn.ModuleList([nn.Conv2d(width, width, 3, 1, 1) for _ in range(blocks)])
        self.scale = nn.Parameter(torch.ones(blocks, width, 1, 1))
        self.shift = nn.Parameter(torch.zeros(blocks, width, 1, 1))
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for i, conv in enumerate(self.convs):
            y = conv(x)
            y = y * torch.tanh(torch.log1p(torch.exp(y.clamp(max=20.0))))
            y = y * self.scale[i] + self.shift[i]
            x = x + torch.sigmoid(y) * y * 0.5
        return self.head(x.mean((2, 3)))  # type: ignore[no-any-return]


def upscaler(width: int, blocks: int) -> nn.Module:
    """A super-resolution net: few channels, large images."""
    body = [m for _ in range(blocks) for m in (nn.Conv2d(width, width, 3, 1, 1), nn.PReLU())]
    return nn.Sequential(
        nn.Conv2d(3, width, 5, 1, 2), *body, nn.Conv2d(width, 12, 3, 1, 1), nn.PixelShuffle(2)
    )


def vision(name: str, **kw: Any) -> nn.Module:
    """A torchvision model by name; where torchvision is missing (a rehearsal on the CPU), a
    stand-in."""
    if importlib.util.find_spec("torchvision") is None:
        return nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8, 1000),
        )
    import torchvision

    model: nn.Module = getattr(torchvision.models, name)(**kw)
    return model
