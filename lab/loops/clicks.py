"""Recommenders: big tables, item histories."""

from __future__ import annotations

import itertools
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lab import models
from lab.loops.data import on_device, pinned, size, to_device
from lab.loops.steps import sgd, train
from lab.measure import DEV, Run


def recommender(*, matmul: str = "highest") -> Run:
    """Device memory is all: the gradients of the tables are dense."""
    tables, rows, batch = size(8, 2), size(2_000_000, 100), size(4096, 4)
    model = models.Recommender(tables, rows, size(64, 8)).to(DEV)

    def clicks() -> Any:
        return (
            torch.randn(batch, 13),
            torch.randint(0, rows, (tables, batch, 8)),
            torch.rand(batch).round(),
        )

    batches = on_device(clicks)

    def forward(part: Any) -> Tensor:
        dense, sparse, label = part
        return F.binary_cross_entropy_with_logits(model(dense, sparse), label)

    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    return Run(step=train(forward, batches, opt, amp=False), matmul=matmul)


def histories(*, pad_on_host: bool) -> Run:
    """Users' item lists of unequal length: moved one by one and padded there, or padded here and
    moved once."""
    users, items = size(192, 4), size(200_000, 50)
    model = models.HistoryModel(items, 64).to(DEV)
    ready = [
        [torch.randint(1, items, (20 + (i * 7) % 30,)) for i in range(users)] for _ in range(4)
    ]

    def deliver(lists: list[Tensor]) -> Tensor:
        if pad_on_host:
            moved: Tensor = to_device(pinned(pad_sequence(lists, batch_first=True)))
            return moved
        return pad_sequence([to_device(one) for one in lists], batch_first=True)

    batches = map(deliver, itertools.cycle(ready))
    return Run(step=train(lambda x: F.softplus(-model(x)).mean(), batches, sgd(model), amp=False))
