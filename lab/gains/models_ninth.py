"""Models of the ninth set: many small kernels, casts by hand, one-dimensional convolutions."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


class HeatEquation(nn.Module):
    """A network whose residual of a differential equation is its loss: second derivatives."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        widths = [2, *[width] * depth, 1]
        pairs = itertools.pairwise(widths)
        self.layers = nn.ModuleList([nn.Linear(one, two) for one, two in pairs])

    def forward(self, points: Tensor) -> Tensor:
        x, t = (points[:, i : i + 1].requires_grad_() for i in range(2))
        u = torch.cat((x, t), 1)
        for layer in self.layers[:-1]:
            u = torch.tanh(layer(u))
        u = self.layers[-1](u)
        ones = torch.ones_like(u)
        u_x, u_t = torch.autograd.grad(u, (x, t), ones, create_graph=True)
        (u_xx,) = torch.autograd.grad(u_x, x, ones, create_graph=True)
        return (u_t - 0.1 * u_xx).square().mean()


class CastLinear(nn.Linear):
    """Computes in 16 bits and gives back 32, by its own casts."""

    by_hand = True

    def forward(self, x: Tensor) -> Tensor:
        if not self.by_hand:
            return super().forward(x)
        bias = None if self.bias is None else self.bias.bfloat16()
        return F.linear(x.bfloat16(), self.weight.bfloat16(), bias).float()


class CastBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mixed, self.out = CastLinear(width, 3 * width), CastLinear(width, width)
        self.wide, self.narrow = CastLinear(width, 4 * width), CastLinear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        parts = self.mixed(self.first(x)).view(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = parts.bfloat16().unbind(0)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(n, length, width).to(x.dtype))
        out: Tensor = x + self.narrow(F.gelu(self.wide(self.second(x))))
        return out


class CastByHand(nn.Module):
    """A language model in which every product casts by itself; or that leaves it to autocast."""

    def __init__(self, vocab: int, width: int, depth: int, heads: int, *, by_hand: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(vocab, width)
        self.blocks = nn.Sequential(*[CastBlock(width, heads) for _ in range(depth)])
        self.head = CastLinear(width, vocab, bias=False)
        for module in self.modules():
            if isinstance(module, CastLinear):
                module.by_hand = by_hand

    def forward(self, tokens: Tensor) -> Tensor:
        logits = self.head(self.blocks(self.words(tokens)))
        return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())


class WaveBlock(nn.Module):
    def __init__(self, width: int, spread: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(8, width)
        self.wide = nn.Conv1d(width, 2 * width, 5, padding=2 * spread, dilation=spread)
        self.back = nn.Conv1d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.back(F.glu(self.wide(F.silu(self.norm(x))), dim=1))
        return out


class Waves(nn.Module):
    """Denoises raw sound with dilated convolutions over time."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, width, 16, stride=8, padding=4)
        self.blocks = nn.Sequential(*[WaveBlock(width, 2 ** (i % 6)) for i in range(depth)])
        self.last = nn.ConvTranspose1d(width, 1, 16, stride=8, padding=4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.blocks(self.first(x)))
        return out


class Words(nn.Module):
    """A language model of stacked LSTMs."""

    def __init__(self, vocab: int, width: int, depth: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocab, width)
        self.body = nn.LSTM(width, width, depth, batch_first=True, dropout=0.1)
        self.head = nn.Linear(width, vocab)

    def forward(self, tokens: Tensor) -> Tensor:
        logits = self.head(self.body(self.words(tokens))[0])
        return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())


def _two_layers(inputs: int, width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, width), nn.SiLU(), nn.Linear(width, width))


class Particles(nn.Module):
    """Forces among atoms: distances, smooth cutoffs, messages, a few small layers a round."""

    def __init__(self, width: int, rounds: int) -> None:
        super().__init__()
        self.first = nn.Embedding(20, width)
        self.filters = nn.ModuleList([_two_layers(16, width) for _ in range(rounds)])
        self.updates = nn.ModuleList([_two_layers(width, width) for _ in range(rounds)])
        self.out = nn.Linear(width, 1)
        self.register_buffer("centres", torch.linspace(0, 3, 16))

    def forward(self, kinds: Tensor, places: Tensor) -> Tensor:
        apart = places[:, :, None] - places[:, None]
        far = (apart.square().sum(-1) + 1e-6).sqrt()
        near = 0.5 * (torch.cos(far * torch.pi / 3) + 1) * (far < 3)
        basis = torch.exp(-4 * (far[..., None] - self.centres).square())
        x = self.first(kinds)
        for weigh, update in zip(self.filters, self.updates, strict=True):
            messages = weigh(basis) * near[..., None] * x[:, None]
            x = x + update(messages.sum(2))
        return self.out(x).sum((1, 2)).square().mean()
