"""Training scripts with one fault each that a setting fixes, for a machine with a GPU; without one
they run on the CPU, where they show little.

    python -m benchmarks.slow_jobs NAME [--batch N] [--accum N]
    torchrun --nproc_per_node 2 -m benchmarks.slow_jobs buckets

They are ordinary loops with nothing of ours in them; each runs until it is stopped or STEPS are
over.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional

STEPS = 4_000
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Pictures(torch.utils.data.Dataset[tuple[torch.Tensor, int]]):
    """Pictures whose making takes a host thread some milliseconds each."""

    def __init__(self, size: int, work: int) -> None:
        self.size, self.work = size, work

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        drawn = torch.Generator().manual_seed(number)
        picture = torch.rand(3, self.size, self.size, generator=drawn)
        for _ in range(self.work):
            picture = functional.avg_pool2d(picture, 3, stride=1, padding=1)
        return picture, number % 100


def convolutions(width: int, depth: int, classes: int = 100) -> nn.Sequential:
    layers: list[nn.Module] = [
        nn.Conv2d(3, width, 7, stride=4, padding=3),
        nn.BatchNorm2d(width),
        nn.ReLU(),
    ]
    for _ in range(depth):
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))


class Plain(nn.Module):
    """A block whose norms and activations are written out, one small operator after the other."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normal = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.scale
        up = self.up(normal)
        rounded = 0.5 * up * (1.0 + torch.tanh(0.79788456 * (up + 0.044715 * up.pow(3))))
        down: torch.Tensor = self.down(rounded)
        return x + down


def fed(model: nn.Module, batch: int, size: int, work: int) -> Iterator[torch.Tensor]:
    loader = torch.utils.data.DataLoader(Pictures(size, work), batch_size=batch)
    for pictures, labels in loader:
        yield functional.cross_entropy(model(pictures.to(DEVICE)), labels.to(DEVICE))


def drawn(model: nn.Module, *shape: int) -> Iterator[torch.Tensor]:
    made = torch.Generator(DEVICE).manual_seed(1)
    while True:
        yield model(torch.randn(*shape, device=DEVICE, generator=made)).square().mean()


def workers(batch: int) -> tuple[nn.Module, Iterator[torch.Tensor]]:
    model = convolutions(64, 4).to(DEVICE)
    return model, fed(model, batch or 64, 96, 6)


def optimizer(batch: int) -> tuple[nn.Module, Iterator[torch.Tensor]]:
    model = nn.Sequential(
        *(nn.Sequential(nn.Linear(256, 256), nn.LayerNorm(256)) for _ in range(100))
    ).to(DEVICE)
    return model, drawn(model, batch or 4096, 256)


def pointwise(batch: int) -> tuple[nn.Module, Iterator[torch.Tensor]]:
    model = nn.Sequential(*(Plain(1024) for _ in range(6))).to(DEVICE)
    return model, drawn(model, batch or 16384, 1024)


def launches(batch: int) -> tuple[nn.Module, Iterator[torch.Tensor]]:
    model = nn.Sequential(*(Plain(128) for _ in range(24))).to(DEVICE)
    return model, drawn(model, batch or 64, 128)


def micro(batch: int) -> tuple[nn.Module, Iterator[torch.Tensor]]:
    """Sentences of 128 tokens, few at a time: --batch 4 --accum 16 sees what --batch 64 --accum 1
    does."""
    model = nn.Sequential(
        nn.Embedding(4096, 512),
        *(
            nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.0, batch_first=True)
            for _ in range(6)
        ),
        nn.Linear(512, 4096),
    ).to(DEVICE)
    tokens = torch.randint(4096, (1 << 14, 129), generator=torch.Generator().manual_seed(1))
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(tokens), batch_size=batch or 4
    )

    def losses() -> Iterator[torch.Tensor]:
        while True:
            for (some,) in loader:
                told = some.to(DEVICE)
                with torch.autocast(DEVICE, torch.bfloat16):
                    yield functional.cross_entropy(
                        model(told[:, :-1]).flatten(0, 1), told[:, 1:].flatten()
                    )

    return model, losses()


def pictures(batch: int) -> tuple[nn.Module, Iterator[torch.Tensor]]:
    model = convolutions(128, 8).to(DEVICE)
    autocast = torch.autocast(DEVICE, torch.bfloat16)
    forward: Any = model.forward

    def cast(x: torch.Tensor) -> Any:
        with autocast:
            return forward(x)

    model.forward = cast  # type: ignore[method-assign]
    return model, drawn(model, batch or 64, 3, 224, 224)


def buckets(batch: int) -> tuple[nn.Module, Iterator[torch.Tensor]]:
    """Ranks that share a device take each other for another host, else NCCL refuses."""
    os.environ["NCCL_HOSTID"] = f"host{os.environ['RANK']}"
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    os.environ.setdefault("NCCL_IB_DISABLE", "1")
    torch.cuda.set_device(0)
    torch.distributed.init_process_group("nccl", device_id=torch.device("cuda", 0))
    plain = nn.Sequential(*(Plain(256) for _ in range(16))).to(DEVICE)
    model = nn.parallel.DistributedDataParallel(plain, device_ids=[0], bucket_cap_mb=0.1)
    return model, drawn(model, batch or 1024, 256)


JOBS: dict[str, Callable[[int], tuple[nn.Module, Iterator[torch.Tensor]]]] = {
    each.__name__: each
    for each in (workers, optimizer, pointwise, launches, micro, pictures, buckets)
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.slow_jobs", description=__doc__)
    parser.add_argument("job", choices=sorted(JOBS))
    parser.add_argument("--batch", type=int, default=0)
    parser.add_argument(
        "--accum", type=int, default=1, help="batches that one optimizer step takes"
    )
    arguments = parser.parse_args()
    torch.manual_seed(0)
    model, losses = JOBS[arguments.job](arguments.batch)
    told: dict[str, Any] = {"foreach": False} if arguments.job == "optimizer" else {}
    stepper = torch.optim.AdamW(model.parameters(), lr=1e-4, **told)
    for number, loss in zip(range(STEPS * arguments.accum), losses, strict=False):
        (loss / arguments.accum).backward()
        if (number + 1) % arguments.accum == 0:
            stepper.step()
            stepper.zero_grad()


if __name__ == "__main__":
    main()
