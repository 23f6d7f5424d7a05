"""Training jobs that fill a device's memory, and the ways out of it that can be applied to them.

    python -m benchmarks.memory_job NAME [WAY] [--limit BYTES] [--steps N] [--small]

An ordinary loop with nothing of ours in it; `--limit` is what the process may have of the device,
and it dies of torch.OutOfMemoryError where that is too little. Several ranks are started with RANK,
WORLD_SIZE, MASTER_ADDR and MASTER_PORT set: data parallel, or sharded where that is the way.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
AS_IT_IS, FUSED, EIGHT_BITS, LOSS = "as-it-is", "fused", "eight-bits", "chunked-loss"
EXPANDABLE, SHARDED = "expandable", "sharded"
TENTHS, SPLITS = range(1, 11), (2, 4, 8, 16)
STEPS = 3
CHUNKS = 16
"""Of the loss that never holds all logits."""
PER_SCALE, PER_TURN = 256, 1 << 22
"""Elements that share a scale (as in bitsandbytes), and that are updated at once."""


def way_name(action: str) -> str | None:
    """By what the report calls it; None where it is no change to the job."""
    if match := re.search(r"checkpoint (?:(\d+) of (\d+)|every) block", action):
        return f"checkpoint-{10 * int(match[1]) / int(match[2]) if match[1] else 10:g}"
    if match := re.search(r"(\d+) accumulated to a step", action):
        return f"split-{match[1]}"
    named = {
        "fused=True": FUSED,
        "8 bits": EIGHT_BITS,
        "all logits": LOSS,
        "expandable_segments": EXPANDABLE,
        "fully_shard": SHARDED,
    }
    return next((name for word, name in named.items() if word in action), None)


@dataclass(frozen=True)
class Job:
    num_blocks: int
    width: int
    batch: int
    length: int = 0
    """Tokens of a sample; 0: pictures, in fp32 with SGD and momentum."""
    vocabulary: int = 2048
    side: int = 224
    """Of a picture."""
    is_ragged: bool = False
    """Whether samples of a step are as long as its longest."""

    @property
    def input_bytes(self) -> int:
        """Of what each block is given, in fp32."""
        positions = self.length or (self.side // 4) ** 2
        return 4 * self.batch * positions * self.width

    @property
    def head_weight_bytes(self) -> int:
        return 4 * self.width * (self.vocabulary if self.length else 1000)

    @property
    def ways(self) -> Iterator[str]:
        """That change the job on one rank."""
        yield from (f"checkpoint-{tenths}" for tenths in TENTHS)
        yield from (f"split-{split}" for split in SPLITS if split <= self.batch)
        if self.length:
            yield from (FUSED, EIGHT_BITS, LOSS)


JOBS = {
    "text": Job(num_blocks=10, width=1024, batch=8, length=1024, vocabulary=50304),
    "deep": Job(num_blocks=24, width=768, batch=32, length=512),
    "few": Job(num_blocks=4, width=2048, batch=16, length=1024),
    "wide": Job(num_blocks=6, width=3072, batch=2, length=256),
    "pictures": Job(num_blocks=12, width=256, batch=32),
    "ragged": Job(num_blocks=8, width=1024, batch=16, length=1024, is_ragged=True),
}


class Attends(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(width // 64, 1)
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.before(x)).view(batch, length, 3, self.heads, -1).transpose(1, 3)
        query, key, value = parts.unbind(2)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        inner: torch.Tensor = self.down(functional.gelu(self.up(self.between(x))))
        return x + inner


class Convolves(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = functional.relu(self.norms[0](self.first(x)))
        return functional.relu(x + self.norms[1](self.second(inner)))


class Model(nn.Module):
    """Blocks in a row, of which the first so many tenths are checkpointed."""

    def __init__(self, job: Job, tenths: int, has_chunks: bool) -> None:
        super().__init__()
        self.num_checkpointed = round(job.num_blocks * tenths / 10)
        self.has_chunks = has_chunks
        kind = Attends if job.length else Convolves
        self.first: nn.Module = nn.Conv2d(3, job.width, 7, stride=4, padding=3)
        if job.length:
            self.first = nn.Embedding(job.vocabulary, job.width)
        self.blocks = nn.ModuleList(kind(job.width) for _ in range(job.num_blocks))
        self.head = nn.Linear(job.width, job.vocabulary if job.length else 1000)

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for index, block in enumerate(self.blocks):
            if index < self.num_checkpointed:
                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x)
        x = x.mean((2, 3)) if x.dim() == 4 else x.flatten(0, 1)
        if not self.has_chunks:
            return functional.cross_entropy(self.head(x), targets)
        pairs = zip(x.chunk(CHUNKS), targets.chunk(CHUNKS), strict=True)
        sums = [checkpoint(self.chunk_loss, *pair, use_reentrant=False) for pair in pairs]
        return torch.stack(sums).sum() / len(targets)

    def chunk_loss(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(self.head(x), targets, reduction="sum")


class AdamW8bit(torch.optim.Optimizer):
    """Both moments in 8 bits, with a scale for each 256 elements: as small as bitsandbytes' are.
    Large weights are updated piece by piece, so that the update holds little more."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr, "betas": (0.9, 0.999), "eps": 1e-8})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        assert closure is None
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._update(weight, group)

    def _update(self, weight: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[weight]
        if not state:
            num_scales = -(-weight.numel() // PER_SCALE)
            for name in ("first", "second"):
                size = num_scales * PER_SCALE
                state[name] = torch.zeros(size, dtype=torch.uint8, device=weight.device)
                state[f"{name}_scale"] = torch.zeros(num_scales, 1, device=weight.device)
        flat, gradient = weight.view(-1), weight.grad.reshape(-1)  # type: ignore[union-attr]
        for begin in range(0, weight.numel(), PER_TURN):
            part = slice(begin, begin + PER_TURN)
            given = gradient[part]
            first = self._moved(state, "first", begin, given, group["betas"][0])
            second = self._moved(state, "second", begin, given.square(), group["betas"][1])
            flat[part].addcdiv_(first, second.sqrt_().add_(group["eps"]), value=-group["lr"])

    def _moved(
        self, state: dict[str, torch.Tensor], name: str, begin: int, to: torch.Tensor, beta: float
    ) -> torch.Tensor:
        """The moment with the step's share, as it is without rounding."""
        rows = slice(begin // PER_SCALE, -(-(begin + to.numel()) // PER_SCALE))
        kept = state[name].view(-1, PER_SCALE)[rows]
        scale = state[f"{name}_scale"][rows]
        value = kept.to(torch.float32).sub_(128).mul_(scale)
        value.view(-1)[: to.numel()].lerp_(to.to(torch.float32), 1 - beta)
        scale.copy_(value.abs().amax(1, keepdim=True).div_(127).clamp_(min=1e-30))
        kept.copy_((value / scale).round_().add_(128))
        return value.view(-1)[: to.numel()]


def optimizer_of(job: Job, way: str, model: nn.Module) -> torch.optim.Optimizer:
    if way == EIGHT_BITS:
        return AdamW8bit(model.parameters(), lr=1e-4)
    if not job.length:
        return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    return torch.optim.AdamW(model.parameters(), lr=1e-4, fused=way == FUSED or None)


def number_in(way: str, name: str, otherwise: int) -> int:
    return int(way.removeprefix(name)) if way.startswith(name) else otherwise


def batches(job: Job) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    drawn = torch.Generator().manual_seed(1)
    while True:
        if not job.length:
            x = torch.randn(job.batch, 3, job.side, job.side, generator=drawn)
            targets = torch.randint(1000, (job.batch,), generator=drawn)
        else:
            length = job.length
            if job.is_ragged:
                length = int(torch.randint(length // 4, length + 1, (1,), generator=drawn))
            x = torch.randint(job.vocabulary, (job.batch, length), generator=drawn)
            targets = x.roll(-1, 1)
        yield x.to(DEVICE), targets.to(DEVICE)


def begin_ranks() -> None:
    """Ranks that share a device take each other for another host, else NCCL refuses."""
    os.environ["NCCL_HOSTID"] = f"host{os.environ['RANK']}"
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    os.environ.setdefault("NCCL_IB_DISABLE", "1")
    if DEVICE == "cuda":
        torch.distributed.init_process_group("nccl", device_id=torch.device("cuda", 0))
    else:
        torch.distributed.init_process_group("gloo")


def model_of(job: Job, way: str) -> nn.Module:
    model = Model(job, number_in(way, "checkpoint-", 0), way == LOSS).to(DEVICE)
    if "RANK" not in os.environ:
        return model
    begin_ranks()
    if way != SHARDED:
        return nn.parallel.DistributedDataParallel(model)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    return model


def train(job: Job, way: str, steps: int) -> list[float]:
    """Seconds of each step."""
    torch.manual_seed(0)
    model, split = model_of(job, way), number_in(way, "split-", 1)
    stepper, times = optimizer_of(job, way, model), []
    is_cast = job.length > 0 and DEVICE == "cuda"
    for _, (x, targets) in zip(range(steps), batches(job), strict=False):
        begun = time.perf_counter()
        parts = zip(x.chunk(split), targets.chunk(split), strict=True)
        for some, wanted in parts:
            with torch.autocast(DEVICE, torch.bfloat16, enabled=is_cast):
                loss = model(some, wanted.flatten()) / split
            loss.backward()
            del loss
        stepper.step()
        stepper.zero_grad()
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begun)
    return times


def measured(job: Job, way: str, limit: int | None, steps: int) -> dict[str, Any]:
    """Peaks in bytes and the median step; null without a device."""
    if DEVICE == "cuda":
        if way == EXPANDABLE:
            torch.cuda.memory._set_allocator_settings("expandable_segments:True")  # noqa: SLF001
        if limit is not None:
            total = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(limit / total)
        torch.cuda.reset_peak_memory_stats()
    times = train(job, way, steps)
    found = {"step_ms": 1e3 * sorted(times)[len(times) // 2], "allocated": None, "reserved": None}
    if DEVICE == "cuda":
        found["allocated"] = torch.cuda.max_memory_allocated()
        found["reserved"] = torch.cuda.max_memory_reserved()
    return found


def small(job: Job) -> Job:
    """For a machine without a device."""
    length, vocabulary = min(job.length, 16), min(job.vocabulary, 512)
    return replace(
        job, num_blocks=4, width=64, batch=4, length=length, vocabulary=vocabulary, side=16
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory_job", description=__doc__)
    parser.add_argument("job", choices=JOBS)
    parser.add_argument("way", nargs="?", default=AS_IT_IS)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--small", action="store_true")
    arguments = parser.parse_args()
    job = JOBS[arguments.job]
    if arguments.small:
        job = small(job)
    print(json.dumps(measured(job, arguments.way, arguments.limit, arguments.steps)))
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
