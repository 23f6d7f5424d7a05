"""Where batches come from: datasets, loaders, copies from the host."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lab.measure import BIG, DEV

Batches = Iterator[Any]


def size(big: int, tiny: int) -> int:
    return big if BIG else tiny


class Photos(Dataset[tuple[Tensor, int]]):
    """Decoded photos, augmented on the CPU: crop, resize, flip, jitter, normalise."""

    def __init__(self, side: int) -> None:
        self.side = side
        self.raw = torch.randint(0, 255, (32, 3, 256, 256), dtype=torch.uint8)
        self.mean, self.std = (
            torch.tensor([0.485, 0.456, 0.406])[:, None, None],
            torch.tensor([0.23, 0.22, 0.22])[:, None, None],
        )

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        top, left = i * 7 % 30, i * 13 % 30
        x = self.raw[i % 32, :, top : top + 220, left : left + 220].float()[None]
        x = F.interpolate(
            x, size=(self.side, self.side), mode="bicubic", antialias=True, align_corners=False
        )[0]
        x = x.flip(-1) if i % 2 else x
        x = (x * (0.8 + 0.4 * (i % 5) / 4)).clamp(0, 255) / 255
        return (x - self.mean) / self.std, i % 1000


class StoredImages(Dataset[Tensor]):
    """Small images behind slow storage: the read waits, the processor does not work."""

    def __init__(self, side: int, read_ms: float) -> None:
        self.raw, self.read_ms = torch.randn(64, 3, side, side), read_ms

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, i: int) -> Tensor:
        time.sleep(self.read_ms / 1e3)
        return self.raw[i % 64]


def on_device(make: Callable[[], Any]) -> Batches:
    """Four batches that are already where they are needed, over and over."""
    return itertools.cycle([to_device(make()) for _ in range(4)])


def to_device(batch: Any) -> Any:
    if isinstance(batch, Tensor):
        return batch.to(DEV, non_blocking=True)
    return [to_device(part) for part in batch]


def pinned(batch: Any) -> Any:
    if isinstance(batch, Tensor):
        return batch.pin_memory() if BIG else batch
    return [pinned(part) for part in batch]


def from_host(make: Callable[[], Any], *, pin: bool) -> Batches:
    """Four host batches, copied to the device as each is asked for."""
    ready = [pinned(make()) if pin else make() for _ in range(4)]
    return map(to_device, itertools.cycle(ready))


def ahead(host: Iterable[Any]) -> Batches:
    """Copies the next batch on a side stream while the current one trains."""
    if not BIG:
        yield from map(to_device, host)
        return
    side = torch.cuda.Stream()
    coming = None
    for batch in host:
        with torch.cuda.stream(side):
            moved = to_device(batch)
        if coming is not None:
            yield coming
        torch.cuda.current_stream().wait_stream(side)
        for part in moved:
            part.record_stream(torch.cuda.current_stream())
        coming = moved


def loaded(
    data: Dataset[Any],
    *,
    batch: int,
    workers: int,
    prefetch: int = 2,
    pin: bool = True,
    collate: Callable[[list[Any]], Any] | None = None,
) -> Batches:
    loader = DataLoader(
        data,
        batch_size=batch,
        num_workers=workers,
        collate_fn=collate,
        pin_memory=pin and BIG,
        persistent_workers=workers > 0,
        prefetch_factor=prefetch if workers else None,
    )
    return map(to_device, itertools.chain.from_iterable(itertools.repeat(loader)))


def tokens(batch: int, seq: int, vocab: int) -> Callable[[], Tensor]:
    return lambda: torch.randint(0, vocab, (batch, seq))
