"""A training job of several ranks with faults at set times, for benchmarks.live.

    torchrun --nproc_per_node 4 -m benchmarks.live_job --truth DIR --faults late-sleep@20:45

An ordinary DDP loop with nothing of ours in it. A step sleeps where a device would compute, so
that several ranks fit a small machine; with --device cuda it computes, and several ranks share a
GPU. Each rank writes to DIR/rank-N.jsonl when a fault really began and ended, on the wall clock.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

STEP_S = 0.06
SLOW_S = 0.04
LOADER_S, SLOW_LOADER_S = 0.002, 0.06
LEAK_BYTES_S = {"cpu": 30 << 20, "cuda": 1 << 30}
ROOM_BYTES = 6 << 30
"""Address space above what the job holds when it has begun: the limit that the leak runs toward."""
ASK_STEPS = 20
SINGLE, GROUP = (1,), (2, 3)
FAULTS = {
    "late-sleep": SINGLE,
    "late-cpu": SINGLE,
    "loader-rank": SINGLE,
    "leak": SINGLE,
    "device-leak": SINGLE,
    "group-slow": GROUP,
    "all-slow": None,
    "loader-all": None,
    "bandwidth": None,
    "loss-spike": None,
    "loss-nan": None,
}
"""By name, the ranks that have it; None for all."""


class Schedule:
    """Which fault is on, by the wall clock."""

    def __init__(self, text: str, rank: int, truth: Path) -> None:
        self._spans = []
        self._origin_s = math.inf
        for word in filter(None, text.split(",")):
            name, _, span = word.partition("@")
            begin, _, end = span.partition(":")
            self._spans.append((name, float(begin), float(end)))
        self._rank = rank
        self._file = (truth / f"rank-{rank}.jsonl").open("a", encoding="utf-8")
        self._on: set[str] = set()

    def begin(self, device: torch.device) -> None:
        """Faults are counted from here on, the same moment on all ranks."""
        origin = torch.tensor([time.time()], dtype=torch.float64, device=device)
        dist.broadcast(origin, 0)
        self._origin_s = float(origin)

    def has(self, name: str) -> bool:
        ranks = FAULTS[name]
        now = time.time() - self._origin_s
        is_on = any(fault == name and begin <= now < end for fault, begin, end in self._spans)
        is_on = is_on and (ranks is None or self._rank in ranks)
        if is_on != (name in self._on):
            (self._on.add if is_on else self._on.discard)(name)
            self._file.write(json.dumps({"fault": name, "on": is_on, "wall_ns": time.time_ns()}))
            self._file.write("\n")
            self._file.flush()
        return is_on


class Rows(torch.utils.data.Dataset[torch.Tensor]):
    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, number: int) -> torch.Tensor:
        is_slow = self.schedule.has("loader-rank") or self.schedule.has("loader-all")
        time.sleep((LOADER_S + SLOW_LOADER_S * is_slow) / 4)
        return torch.randn(64)


def batches(loader: Any) -> Iterator[torch.Tensor]:
    while True:
        yield from loader


def compute(schedule: Schedule, work: torch.Tensor | None) -> None:
    """The forward pass' stand-in: it takes STEP_S, or longer."""
    if work is None:
        time.sleep(STEP_S)
    else:
        for _ in range(4):
            work = torch.tanh(work @ work)
    if schedule.has("late-sleep") or schedule.has("group-slow") or schedule.has("all-slow"):
        time.sleep(SLOW_S)
    if schedule.has("late-cpu"):
        end = time.thread_time() + SLOW_S
        while time.thread_time() < end:
            torch.randn(64, 64).square().sum()


def delayed(schedule: Schedule) -> Any:
    """A DDP hook whose collective takes longer while the fault is on."""

    def hook(group, bucket):  # type: ignore[no-untyped-def]
        if schedule.has("bandwidth"):
            time.sleep(SLOW_S)
        tensor = bucket.buffer().div_(dist.get_world_size())
        return (
            dist.all_reduce(tensor, group=group, async_op=True)
            .get_future()
            .then(lambda future: future.value()[0])
        )

    return hook


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--faults", default="")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--truth", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    if options.device == "cuda":
        # Ranks that share a device take each other for another host, else NCCL refuses.
        os.environ["NCCL_HOSTID"] = f"host{rank}"
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
        os.environ.setdefault("NCCL_IB_DISABLE", "1")
        torch.cuda.set_device(0)
        dist.init_process_group("nccl", device_id=torch.device("cuda", 0))
    else:
        dist.init_process_group("gloo")
    device = torch.device(options.device, 0) if options.device == "cuda" else torch.device("cpu")
    train(options, Schedule(options.faults, rank, options.truth), device)
    dist.destroy_process_group()


def train(options: argparse.Namespace, schedule: Schedule, device: torch.device) -> None:
    torch.manual_seed(dist.get_rank())
    plain = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1)).to(device)
    model = nn.parallel.DistributedDataParallel(plain)
    model.register_comm_hook(None, delayed(schedule))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.002)
    loader = batches(torch.utils.data.DataLoader(Rows(schedule), batch_size=4))
    work = torch.randn(4096, 4096, device=device) / 64 if device.type == "cuda" else None
    held: list[Any] = []
    begun, last = math.inf, time.time()
    is_limited = False
    stop, step = torch.zeros((), device=device), 0
    while step % ASK_STEPS or not stop.item():
        x = next(loader).to(device)
        compute(schedule, work)
        now = time.time()
        for name in ("leak", "device-leak"):
            if schedule.has(name):
                where = device if name == "device-leak" else torch.device("cpu")
                size = int((now - last) * LEAK_BYTES_S[where.type])
                held.append(torch.ones(size, dtype=torch.uint8, device=where))
        last = now
        if not is_limited and now - begun > 5 and device.type == "cpu":
            is_limited = True
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            limit = used + ROOM_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]
            resource.setrlimit(resource.RLIMIT_AS, limit)
        loss = (model(x) - 3 - x.sum(1, keepdim=True)).square().mean()
        if schedule.has("loss-spike"):
            loss = loss * 6
        if schedule.has("loss-nan"):
            loss = loss * float("nan")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step == 1:
            # On a machine that is full a job may take a minute to its first step.
            schedule.begin(device)
            begun = time.time()
        if step % ASK_STEPS == 0:
            # Ranks end with the same step.
            stop.fill_(now - begun >= options.seconds)
            dist.all_reduce(stop)


if __name__ == "__main__":
    main()
