"""Small models of the second set of jobs that no library has as they are needed here."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


class Recurrent(nn.Module):
    """A GRU over tokens, and a head over its states."""

    def __init__(self, vocab: int, width: int, depth: int) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(vocab, width), nn.Linear(width, vocab)
        self.gru = nn.GRU(width, width, depth, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.gru(self.embedding(tokens))
        out: Tensor = self.head(states)
        return out


class DilatedStack(nn.Module):
    """Gated dilated convolutions over sound, as WaveNet has them."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.first, self.last = nn.Conv1d(1, width, 1), nn.Conv1d(width, 1, 1)
        self.gates = nn.ModuleList(
            [
                nn.Conv1d(width, 2 * width, 3, dilation=2 ** (i % 8), padding=2 ** (i % 8))
                for i in range(depth)
            ]
        )
        self.mixes = nn.ModuleList([nn.Conv1d(width, width, 1) for _ in range(depth)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for gate, mix in zip(self.gates, self.mixes, strict=True):
            left, right = gate(x).chunk(2, dim=1)
            x = x + mix(torch.tanh(left) * torch.sigmoid(right))
        out: Tensor = self.last(F.relu(x))
        return out


class ConditionedBlock(nn.Module):
    """A transformer block whose norms are scaled and shifted by a condition, as DiT has them."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.condition = nn.Linear(width, 6 * width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        parts = self.condition(F.silu(condition)).unsqueeze(1).chunk(6, dim=-1)
        y = F.layer_norm(x, x.shape[-1:]) * (1 + parts[1]) + parts[0]
        batch, length, width = y.shape
        qkv = self.qkv(y).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, width)
        x = x + parts[2] * self.out(y)
        y = F.layer_norm(x, x.shape[-1:]) * (1 + parts[4]) + parts[3]
        return x + parts[5] * self.down(F.gelu(self.up(y), approximate="tanh"))


class ConditionedTransformer(nn.Module):
    def __init__(self, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([ConditionedBlock(width, heads) for _ in range(depth)])

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x, condition)
        return x


class RoutedLayer(nn.Module):
    """Top-1 experts: in a loop with `nonzero`, or sorted by expert with grouped products."""

    def __init__(self, width: int, hidden: int, experts: int, *, grouped: bool) -> None:
        super().__init__()
        self.grouped, self.gate = grouped, nn.Linear(width, experts)
        self.up = nn.Parameter(torch.randn(experts, width, hidden) * width**-0.5)
        self.down = nn.Parameter(torch.randn(experts, hidden, width) * hidden**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        y = F.layer_norm(x, x.shape[-1:])
        weight, expert = self.gate(y).float().softmax(-1).max(-1)
        if self.grouped:
            order = expert.argsort()
            ends = torch.bincount(expert, minlength=len(self.up)).cumsum(0).to(torch.int32)
            z = y[order].to(torch.bfloat16)
            z = F.gelu(torch._grouped_mm(z, self.up.to(torch.bfloat16), offs=ends))  # noqa: SLF001
            z = torch._grouped_mm(z, self.down.to(torch.bfloat16), offs=ends)  # noqa: SLF001
            z = z * weight[order, None].to(z.dtype)
            return x.index_add(0, order, z.to(x.dtype))
        for i in range(len(self.up)):
            rows = (expert == i).nonzero().squeeze(1)
            z = F.gelu(y[rows] @ self.up[i]) @ self.down[i]
            x = x.index_add(0, rows, (z * weight[rows, None]).to(x.dtype))
        return x


class Routed(nn.Module):
    def __init__(
        self, vocab: int, width: int, hidden: int, experts: int, depth: int, *, grouped: bool
    ) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(vocab, width), nn.Linear(width, vocab)
        self.layers = nn.Sequential(
            *[RoutedLayer(width, hidden, experts, grouped=grouped) for _ in range(depth)]
        )

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.head(self.layers(self.embedding(tokens.flatten())))
        return out


def _scaled(x: Tensor, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    """In 8 bits, and what to multiply by to have it back."""
    scale = torch.finfo(kind).max / x.abs().amax().float().clamp(min=1e-12)
    return (x.float() * scale).to(kind), scale.reciprocal()


class Fp8Product(torch.autograd.Function):
    """x @ weight.T with all three products in fp8, one scale for each matrix."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        a, scale_a = _scaled(x, torch.float8_e4m3fn)
        b, scale_b = _scaled(weight, torch.float8_e4m3fn)
        return torch._scaled_mm(a, b.t(), scale_a, scale_b, out_dtype=x.dtype)  # noqa: SLF001

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        g, scale_g = _scaled(grad, torch.float8_e5m2)
        a, scale_a = _scaled(x, torch.float8_e4m3fn)
        b, scale_b = _scaled(weight, torch.float8_e4m3fn)
        to_x = torch._scaled_mm(  # noqa: SLF001
            g, b.t().contiguous().t(), scale_g, scale_b, out_dtype=grad.dtype
        )
        to_weight = torch._scaled_mm(  # noqa: SLF001
            g.t().contiguous(), a.t().contiguous().t(), scale_g, scale_a, out_dtype=grad.dtype
        )
        return to_x, to_weight


class WideBlocks(nn.Module):
    """Gated MLPs wide enough for fp8, weights kept in bf16."""

    def __init__(self, width: int, hidden: int, depth: int, *, fp8: bool) -> None:
        super().__init__()
        self.fp8 = fp8
        shapes = [(hidden, width), (hidden, width), (width, hidden)] * depth
        self.weights = nn.ParameterList(
            [nn.Parameter(torch.randn(s, dtype=torch.bfloat16) * s[1] ** -0.5) for s in shapes]
        )

    def forward(self, x: Tensor) -> Tensor:
        product = Fp8Product.apply if self.fp8 else F.linear
        for i in range(0, len(self.weights), 3):
            gate, up, down = self.weights[i : i + 3]
            y = F.rms_norm(x, x.shape[-1:])
            x = x + product(F.silu(product(y, gate)) * product(y, up), down)
        return x
