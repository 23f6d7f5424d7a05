"""Small models of the eighth set of jobs that no library has as they are needed here."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


class WideTowers(nn.Module):
    """A recommender: tables summed over bags, all pairs of them multiplied, a wide tower."""

    def __init__(self, tables: int, rows: int, width: int, wide: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.EmbeddingBag(rows, width) for _ in range(tables)])
        self.dense = nn.Sequential(nn.Linear(13, wide), nn.ReLU(), nn.Linear(wide, width))
        pairs = (tables + 1) * tables // 2
        self.tower = nn.Sequential(
            nn.Linear(pairs + width, wide),
            nn.ReLU(),
            nn.Linear(wide, wide),
            nn.ReLU(),
            nn.Linear(wide, 1),
        )

    def forward(self, bags: Tensor, numbers: Tensor, clicked: Tensor) -> Tensor:
        dense = self.dense(numbers)
        each = [table(bags[:, i]).to(dense.dtype) for i, table in enumerate(self.tables)]
        stacked = torch.stack([dense, *each], dim=1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))
        row, column = torch.tril_indices(len(each) + 1, len(each) + 1, -1, device=bags.device)
        score = self.tower(torch.cat([dense, products[:, row, column]], dim=1))
        return F.binary_cross_entropy_with_logits(score.squeeze(-1).float(), clicked)


class FourierLayer(nn.Module):
    """Some frequencies of a field multiplied by weights of their own, beside a pointwise layer."""

    def __init__(self, width: int, modes: int) -> None:
        super().__init__()
        self.modes = modes
        scale = 1 / width
        self.weight = nn.Parameter(scale * torch.randn(2, width, width, modes, modes))
        self.beside = nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        waves = torch.fft.rfft2(x.float())
        kept = waves[:, :, : self.modes, : self.modes]
        real = torch.einsum("bixy,ioxy->boxy", kept.real, self.weight[0])
        imaginary = torch.einsum("bixy,ioxy->boxy", kept.imag, self.weight[1])
        out = torch.zeros_like(waves)
        out[:, :, : self.modes, : self.modes] = torch.complex(real.float(), imaginary.float())
        return F.gelu(torch.fft.irfft2(out, s=x.shape[-2:]) + self.beside(x))


class FourierOperator(nn.Module):
    def __init__(self, width: int, modes: int, depth: int) -> None:
        super().__init__()
        self.into = nn.Conv2d(3, width, 1)
        self.layers = nn.Sequential(*[FourierLayer(width, modes) for _ in range(depth)])
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.layers(self.into(x)))
        return out


class Surrogate(nn.Module):
    """A residual MLP over large batches of points, with a norm and a gate in each block."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.into = nn.Linear(32, width)
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(depth)])
        self.gates = nn.ModuleList([nn.Linear(width, 2 * width) for _ in range(depth)])
        self.outs = nn.ModuleList([nn.Linear(width, width) for _ in range(depth)])
        self.head = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.into(x)
        for norm, gate, out in zip(self.norms, self.gates, self.outs, strict=True):
            value, open_ = gate(norm(x)).chunk(2, dim=-1)
            x = x + out(value * torch.sigmoid(open_))
        made: Tensor = self.head(x)
        return made


class ConformerBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(3)])
        self.attend = nn.MultiheadAttention(width, heads, batch_first=True)
        self.widen = nn.Conv1d(width, 2 * width, 1)
        self.along = nn.Conv1d(width, width, 31, padding=15, groups=width)
        self.batch_norm, self.narrow = nn.BatchNorm1d(width), nn.Conv1d(width, width, 1)
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.norms[0](x)
        x = x + self.attend(y, y, y, need_weights=False)[0]
        z = F.glu(self.widen(self.norms[1](x).transpose(1, 2)), dim=1)
        z = self.narrow(F.silu(self.batch_norm(self.along(z))))
        x = x + z.transpose(1, 2)
        out: Tensor = x + self.feed(self.norms[2](x))
        return out


class Conformer(nn.Module):
    def __init__(self, width: int, heads: int, depth: int, classes: int) -> None:
        super().__init__()
        self.into = nn.Linear(80, width)
        self.blocks = nn.Sequential(*[ConformerBlock(width, heads) for _ in range(depth)])
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.blocks(self.into(x)).mean(1))
        return out


def _twice(wide: int, narrow: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv3d(wide, narrow, 3, padding=1),
        nn.InstanceNorm3d(narrow),
        nn.LeakyReLU(0.01),
        nn.Conv3d(narrow, narrow, 3, padding=1),
        nn.InstanceNorm3d(narrow),
        nn.LeakyReLU(0.01),
    )


class Volumes(nn.Module):
    """A U-net over volumes: two levels down, two up."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.first, self.second = _twice(1, width), _twice(width, 2 * width)
        self.middle = _twice(2 * width, 4 * width)
        self.ups = nn.ModuleList(
            [nn.ConvTranspose3d(n * width, n * width // 2, 2, 2) for n in (4, 2)]
        )
        self.joined = nn.ModuleList([_twice(4 * width, 2 * width), _twice(2 * width, width)])
        self.head = nn.Conv3d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.first(x)
        second = self.second(F.max_pool3d(first, 2))
        y = self.middle(F.max_pool3d(second, 2))
        for up, join, beside in zip(self.ups, self.joined, (second, first), strict=True):
            y = join(torch.cat([up(y), beside], dim=1))
        out: Tensor = self.head(y)
        return out
