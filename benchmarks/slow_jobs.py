"""Training scripts with one fault each, for a machine with a GPU; without one they run on the CPU,
where those that a setting fixes show little.

    python -m benchmarks.slow_jobs NAME [slow|fixed] [--batch N] [--accum N] [--seconds N]
    torchrun --nproc_per_node 2 -m benchmarks.slow_jobs buckets

They are ordinary loops with nothing of ours in them; each runs until it is stopped, or its steps or
seconds are over. Those of HABITS do something beside the step, which `fixed` leaves out;
`disk` and `decode` load with NUM_WORKERS of the environment. `planted` takes 200 short steps, and
at its end prints how long each kind of PLANTS (`--plant A,B`) took, by its own clock.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import math
import os
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

STEPS = 4_000
FIRST, WHOLE = 20, 20
"""Steps that are not timed, and the number of which a timed run is a multiple: every habit comes
as often as in a long run."""
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


class Rows(torch.utils.data.Dataset[torch.Tensor]):
    """Rows that come from a slow disk, or take a core, for some milliseconds each."""

    def __init__(self, seconds: float, *, is_waiting: bool) -> None:
        self.seconds, self.is_waiting = seconds, is_waiting

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, number: int) -> torch.Tensor:
        if self.is_waiting:
            time.sleep(self.seconds)
        else:
            until = time.thread_time() + self.seconds
            while time.thread_time() < until:
                sum(range(200))
        return torch.full((256,), number / (1 << 20))


def rows(batch: int, is_waiting: bool) -> tuple[nn.Module, Iterator[torch.Tensor]]:
    model = nn.Sequential(*(Plain(256) for _ in range(2))).to(DEVICE)
    dataset = Rows(0.002, is_waiting=is_waiting)
    num_workers = int(os.environ.get("NUM_WORKERS", "0"))
    loader = torch.utils.data.DataLoader(dataset, batch_size=batch or 16, num_workers=num_workers)
    return model, (model(some.to(DEVICE)).square().mean() for some in loader)


def disk(batch: int) -> tuple[nn.Module, Iterator[torch.Tensor]]:
    return rows(batch, is_waiting=True)


def decode(batch: int) -> tuple[nn.Module, Iterator[torch.Tensor]]:
    return rows(batch, is_waiting=False)


def plain(batch: int) -> tuple[nn.Module, Iterator[torch.Tensor]]:
    """A model for the habits: a step of about 10 ms on one core."""
    model = nn.Sequential(*(Plain(256) for _ in range(4))).to(DEVICE)
    return model, drawn(model, batch or 128, 256)


AfterStep = Callable[[int], None]


def collect(_: nn.Module, __: torch.optim.Optimizer) -> AfterStep:
    """gc.collect() in every step, beside a large index."""
    index = [[number] for number in range(300_000)]

    def after(_: int) -> None:
        gc.collect()
        index[0][0] += 1

    return after


def garbage(_: nn.Module, __: torch.optim.Optimizer) -> AfterStep:
    """So many objects that live for a while that Python collects by itself all the time; without
    the fault its collector is off."""
    kept: deque[list[int]] = deque(maxlen=400_000)

    def after(step: int) -> None:
        kept.extend([[step, number] for number in range(10_000)])

    return after


def save(model: nn.Module, stepper: torch.optim.Optimizer, every: int = 1) -> AfterStep:
    path = Path(tempfile.mkdtemp()) / "checkpoint.pt"

    def after(step: int) -> None:
        if step % every == 0:
            torch.save({"model": model.state_dict(), "optimizer": stepper.state_dict()}, path)

    return after


def save_second(model: nn.Module, stepper: torch.optim.Optimizer) -> AfterStep:
    return save(model, stepper, 2)


def evaluate(model: nn.Module, _: torch.optim.Optimizer) -> AfterStep:
    """Every 20 steps over ten batches, with no loader."""
    held_out = torch.randn(10, 512, 256, device=DEVICE)

    def after(step: int) -> None:
        if step % 20:
            return
        model.eval()
        with torch.no_grad():
            total = sum(model(batch).square().mean() for batch in held_out)
        print("evaluated:", float(total))
        model.train()

    return after


def evaluate_loaded(model: nn.Module, _: torch.optim.Optimizer) -> AfterStep:
    """Every 20 steps over a loader's ten batches."""
    rows = torch.utils.data.TensorDataset(torch.randn(10 * 512, 256))
    held_out = torch.utils.data.DataLoader(rows, batch_size=512)

    def after(step: int) -> None:
        if step % 20:
            return
        model.eval()
        with torch.no_grad():
            total = sum(model(batch.to(DEVICE)).square().mean() for (batch,) in held_out)
        print("evaluated:", float(total))
        model.train()

    return after


def log(_: nn.Module, __: torch.optim.Optimizer) -> AfterStep:
    """Every step writes a table as JSON, and a log line for each of its rows."""
    path = Path(tempfile.mkdtemp()) / "log.txt"
    logging.basicConfig(filename=path, level=logging.INFO, force=True)
    logger = logging.getLogger("train")
    table = [{"name": f"parameter {row}", "norm": row / 7, "step": 0} for row in range(300)]

    def after(step: int) -> None:
        for row in table:
            row["step"] = step
            logger.info("%s", row)
        with path.with_suffix(".json").open("w") as file:
            json.dump(table, file)

    return after


def read(model: nn.Module, _: torch.optim.Optimizer) -> AfterStep:
    """The norm of every parameter and gradient, as a number, in every step."""

    def after(_: int) -> None:
        for value in model.parameters():
            float(value.detach().norm())
            if value.grad is not None:
                float(value.grad.norm())

    return after


HABITS: dict[str, Callable[[nn.Module, torch.optim.Optimizer], AfterStep]] = {
    each.__name__: each
    for each in (*(collect, garbage, save, save_second, evaluate, evaluate_loaded, log, read),)
}
CAUSES = {
    "collect": "gc-pause",
    "garbage": "gc-pause",
    "save": "checkpoint-stall",
    "save_second": "checkpoint-stall",
    "evaluate": "frequent-evaluation",
    "evaluate_loaded": "frequent-evaluation",
    "log": "python-overhead",
    "read": "device-sync" if DEVICE == "cuda" else "python-overhead",
}
"""What should be found of each."""
SPEED = "seconds a step:"
"""Before the mean of all steps after FIRST, as the loop itself sees it: by the wall's clock, and on
cores."""


PLANTS = ("stalls", "idle", "saves", "evaluation", "first_batch", "epoch_start", "compile")
PLANTED_STEPS, TRUTH = 200, "seconds planted:"
STALL_EVERY, SAVE_EVERY, EVALUATE_EVERY = 20, 25, 50
IDLE_FROM = 113
"""Of all steps one, in no turn with the others."""


class Planted:
    """A loop of short steps with stretches of known length in it."""

    def __init__(self, plants: set[str]) -> None:
        self.plants, self.truth = plants, dict.fromkeys(plants, 0.0)
        self.model: Any = nn.Sequential(*(Plain(128) for _ in range(2)))
        self.stepper = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.path = Path(tempfile.mkdtemp()) / "checkpoint.pt"
        self.extra = torch.randn(10_000_000)
        num_steps = PLANTED_STEPS // 4 if "epoch_start" in plants else PLANTED_STEPS
        self.loader = torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(torch.randn(16 * num_steps, 128)),
            batch_size=16,
            collate_fn=self.collate,
            num_workers=2 if "epoch_start" in plants else 0,
            worker_init_fn=lambda _: time.sleep(0.4),
        )
        self.is_first = True

    def collate(self, rows: list[tuple[torch.Tensor]]) -> torch.Tensor:
        if "first_batch" in self.plants and self.is_first:
            self.is_first = False
            time.sleep(1.5)
        return torch.stack([row for (row,) in rows])

    def run(self) -> dict[str, float]:
        forward = torch.compile(self.model) if "compile" in self.plants else self.model
        lengths: list[float] = []
        what = "first_batch"
        begun = time.perf_counter()
        while len(lengths) < PLANTED_STEPS:
            for batch in self.loader:
                if what in self.truth:
                    self.truth[what] += time.perf_counter() - begun
                what, begun = "", time.perf_counter()
                forward(batch).square().mean().backward()
                lengths.append(time.perf_counter() - begun)
                self.stepper.step()
                self.stepper.zero_grad()
                self.after(len(lengths) - 1)
                if len(lengths) == PLANTED_STEPS:
                    break
                if len(lengths) % len(self.loader) == 0:
                    what, begun = "epoch_start", time.perf_counter()
        if "compile" in self.truth:
            self.truth["compile"] = lengths[0] - sorted(lengths)[len(lengths) // 2]
        return self.truth

    def after(self, step: int) -> None:
        """What some steps hold, after them."""
        acts: tuple[tuple[str, bool, Callable[[], None]], ...] = (
            ("stalls", step % STALL_EVERY == 0, lambda: time.sleep(0.6)),
            ("idle", step == IDLE_FROM, lambda: time.sleep(6.0)),
            ("saves", step % SAVE_EVERY == 0, lambda: torch.save(self.extra, self.path)),
            ("evaluation", step % EVALUATE_EVERY == 0, self.evaluate),
        )
        for what, is_due, act in acts:
            if what in self.plants and is_due:
                begun = time.perf_counter()
                act()
                self.truth[what] += time.perf_counter() - begun

    def evaluate(self) -> None:
        self.model.eval()
        with torch.no_grad():
            for _ in range(10):
                self.model(self.extra[: 128 * 16].view(16, 128))
                time.sleep(0.03)
        self.model.train()


JOBS: dict[str, Callable[[int], tuple[nn.Module, Iterator[torch.Tensor]]]] = {
    each.__name__: each
    for each in (workers, optimizer, pointwise, launches, micro, pictures, buckets, disk, decode)
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.slow_jobs", description=__doc__)
    parser.add_argument("job", choices=sorted((*JOBS, *HABITS, "planted")))
    parser.add_argument("variant", nargs="?", choices=("slow", "fixed"), default="slow")
    parser.add_argument("--batch", type=int, default=0)
    parser.add_argument(
        "--accum", type=int, default=1, help="batches that one optimizer step takes"
    )
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--plant", default=",".join(PLANTS), help="of `planted`: which kinds")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    if arguments.job == "planted":
        torch.set_num_threads(1)
        print(TRUTH, json.dumps(Planted(set(arguments.plant.split(","))).run()))
        return
    model, losses = JOBS.get(arguments.job, plain)(arguments.batch)
    told: dict[str, Any] = {"foreach": False} if arguments.job == "optimizer" else {}
    stepper = torch.optim.AdamW(model.parameters(), lr=1e-4, **told)
    after: AfterStep | None = None
    is_slow = arguments.variant == "slow"
    if arguments.job in HABITS and (is_slow or arguments.job == "garbage"):
        after = HABITS[arguments.job](model, stepper)
    if not is_slow:
        gc.disable()
    train(stepper, losses, after, arguments.accum, arguments.seconds)


def train(
    stepper: torch.optim.Optimizer,
    losses: Iterator[torch.Tensor],
    after: AfterStep | None,
    accum: int,
    seconds: float,
) -> None:
    begun, until = clocks(), time.monotonic() + seconds
    for number, loss in zip(range(STEPS * accum), losses, strict=False):
        backward: Any = (loss / accum).backward
        backward()
        if (number + 1) % accum:
            continue
        stepper.step()
        stepper.zero_grad()
        step = number // accum
        if after is not None:
            after(step)
        if step == FIRST:
            begun = clocks()
        elif step > FIRST and (step - FIRST) % WHOLE == 0 and time.monotonic() > until:
            break
    wall, own = ((now - then) / (step - FIRST) for now, then in zip(clocks(), begun, strict=True))
    print(SPEED, wall, own)


def clocks() -> tuple[float, float]:
    """The wall's, and the process's own time on cores."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter(), time.process_time()


if __name__ == "__main__":
    main()
