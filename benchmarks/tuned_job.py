"""A small training on the CPU whose best settings are not plain: a loader that works, a model that
threads, an optimizer."""

from __future__ import annotations

import torch
from torch import nn

NUM_STEPS = 400
WIDTH = 768


class Rows(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Samples that take some arithmetic to make."""

    def __len__(self) -> int:
        return 1 << 16

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.full((256,), float(i % 13) / 13)
        for _ in range(16):
            x = torch.tanh(x * 1.01) + 0.01
        return x, x.sum()


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(256, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = torch.utils.data.DataLoader(Rows(), batch_size=48)
    for step, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        torch.autograd.backward(nn.functional.mse_loss(model(x)[:, 0], y))
        optimizer.step()
        if step >= NUM_STEPS:
            break


if __name__ == "__main__":
    main()
