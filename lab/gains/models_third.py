"""Small models of the third set of jobs that no library has as they are needed here."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


class SharedBlock(nn.Module):
    """A wide transformer block; autocast is entered anew in each call, with its cache or without.

    `spelled` writes attention out as products and a softmax.
    """

    def __init__(self, width: int, heads: int, *, cached: bool, spelled: bool) -> None:
        super().__init__()
        self.heads, self.cached, self.spelled = heads, cached, spelled
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16, cache_enabled=self.cached):
            batch, length, width = x.shape
            qkv = self.qkv(self.norms[0](x)).view(batch, length, 3, self.heads, -1)
            q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
            y = self._attend(q, k, v).transpose(1, 2).reshape(batch, length, width)
            x = x + self.out(y)
            return x + self.down(F.gelu(self.up(self.norms[1](x))))

    def _attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if not self.spelled:
            return F.scaled_dot_product_attention(q, k, v)
        scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        return scores.softmax(-1).to(v.dtype) @ v


class SharedDepth(nn.Module):
    """One block applied over and over, as models of recurrent depth do."""

    def __init__(self, width: int, heads: int, turns: int, *, cached: bool, spelled: bool) -> None:
        super().__init__()
        self.turns = turns
        self.block = SharedBlock(width, heads, cached=cached, spelled=spelled)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.turns):
            x = self.block(x)
        return x


class ScanLayer(nn.Module):
    """A selective state-space layer in plain operators, a chunk of the sequence at a time."""

    def __init__(self, width: int, states: int, chunk: int) -> None:
        super().__init__()
        self.chunk, self.states = chunk, states
        self.norm, self.into = nn.LayerNorm(width), nn.Linear(width, 2 * width)
        self.rates, self.pairs = nn.Linear(width, width), nn.Linear(width, 2 * states)
        self.decay = nn.Parameter(torch.linspace(-2.0, 0.0, states).repeat(width, 1))
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        inner, gate = self.into(self.norm(x)).chunk(2, dim=-1)
        inner = F.silu(inner)
        rates = F.softplus(self.rates(inner) - 2.0)
        into, out = self.pairs(inner).chunk(2, dim=-1)
        state = x.new_zeros(len(x), 1, x.shape[-1], self.states)
        parts = []
        pieces = [part.split(self.chunk, dim=1) for part in (inner, rates, into, out)]
        for value, rate, b, c in zip(*pieces, strict=True):
            passed = (rate.unsqueeze(-1) * -self.decay.exp()).cumsum(1).clamp(min=-30.0)
            given = (rate * value).unsqueeze(-1) * b.unsqueeze(2)
            states = passed.exp() * (state + (given * (-passed).exp()).cumsum(1))
            parts.append((states * c.unsqueeze(2)).sum(-1))
            state = states[:, -1:]
        out_: Tensor = x + self.out(torch.cat(parts, dim=1) * F.silu(gate))
        return out_


class Scans(nn.Module):
    def __init__(self, width: int, states: int, chunk: int, depth: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*[ScanLayer(width, states, chunk) for _ in range(depth)])

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out


class Translator(nn.Module):
    """LSTM encoder and decoder with dot-product attention between them."""

    def __init__(self, vocab: int, width: int, depth: int) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(vocab, width), nn.Embedding(vocab, width)
        self.encoder = nn.LSTM(width, width, depth, batch_first=True)
        self.decoder = nn.LSTM(width, width, depth, batch_first=True)
        self.mix, self.head = nn.Linear(2 * width, width), nn.Linear(width, vocab)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory, last = self.encoder(self.source(source))
        states, _ = self.decoder(self.target(target), last)
        weights = (states @ memory.transpose(1, 2)).softmax(-1).to(memory.dtype)
        mixed = torch.tanh(self.mix(torch.cat([states, weights @ memory], dim=-1)))
        out: Tensor = self.head(mixed)
        return out


def _points(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for i in range(len(widths) - 1):
        layers += [nn.Conv1d(widths[i], widths[i + 1], 1), nn.BatchNorm1d(widths[i + 1]), nn.ReLU()]
    return nn.Sequential(*layers)


class Turned(nn.Module):
    """Multiplies each cloud's features by a matrix made from the cloud itself."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width, self.points = width, _points(width, 64, 128, 1024)
        self.head = nn.Sequential(nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, width * width))

    def forward(self, x: Tensor) -> Tensor:
        turn = self.head(self.points(x).amax(2)).view(-1, self.width, self.width)
        turn = turn + torch.eye(self.width, device=x.device, dtype=turn.dtype)
        return torch.bmm(turn, x.to(turn.dtype))


class CloudClassifier(nn.Module):
    """PointNet: shared layers over each point, the largest of each feature, a small head."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            Turned(3), _points(3, 64, 64), Turned(64), _points(64, 64, 128, 1024)
        )
        self.head = nn.Sequential(
            nn.Linear(1024, 512), nn.ReLU(), nn.Dropout(0.3), nn.Linear(512, classes)
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x).amax(2))
        return out


def _head_loss(hidden: Tensor, weight: Tensor, tokens: Tensor) -> Tensor:
    logits = F.linear(hidden, weight).float()
    return F.cross_entropy(logits.view(-1, logits.shape[-1]), tokens.flatten())


class Headed(nn.Module):
    """A body of transformers, with head and loss in one function that can be compiled alone."""

    def __init__(self, body: nn.Module, width: int, vocab: int, *, compiled: bool) -> None:
        super().__init__()
        self.body, self.head = body, nn.Linear(width, vocab, bias=False)
        self.head_loss = torch.compile(_head_loss) if compiled else _head_loss

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.body(input_ids=tokens).last_hidden_state
        loss: Tensor = self.head_loss(hidden, self.head.weight, tokens)
        return loss
