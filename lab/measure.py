"""Times a variant with no profiler in the process, and records one with it.

Two passes in two processes: once a profiler was started, its CUPTI callbacks may stay and cost host
time, so nothing is timed in a process that records.
"""

from __future__ import annotations

import gc
import gzip
import itertools
import os
import re
import socket
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

DEV = "cuda" if torch.cuda.is_available() else "cpu"
BIG = DEV == "cuda"


@dataclass(frozen=True, kw_only=True)
class Run:
    """One variant, ready to step. Process-wide switches stand here because variants are timed in
    turns."""

    step: Callable[[], None]
    matmul: str = "highest"
    cudnn_tf32: bool = True
    cudnn_benchmark: bool = True

    def enter(self) -> None:
        torch.set_float32_matmul_precision(self.matmul)
        torch.backends.cudnn.allow_tf32 = self.cudnn_tf32
        torch.backends.cudnn.benchmark = self.cudnn_benchmark


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a case is timed: `rounds` turns per variant, `warm` steps before `steps` timed ones in
    each turn.

    `mean` for runs whose steps differ by nature (a loader that delivers in bursts): there the
    median says nothing.
    """

    rounds: int = 3
    warm: int = 5
    steps: int = 10
    mean: bool = False


def settle() -> None:
    if BIG:
        torch.cuda.synchronize()


def clear() -> None:
    gc.collect()
    torch.compiler.reset()
    if BIG:
        torch.cuda.empty_cache()


def step_times_ms(run: Run, warm: int, steps: int) -> list[float]:
    """Time between the ends of consecutive steps, on the device where there is one: steps are never
    waited for."""
    run.enter()
    for _ in range(warm):
        run.step()
    if not BIG:
        marks = [time.perf_counter()]
        for _ in range(steps):
            run.step()
            marks.append(time.perf_counter())
        return [(b - a) * 1e3 for a, b in itertools.pairwise(marks)]
    events = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
    events[0].record()
    for event in events[1:]:
        run.step()
        event.record()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) for a, b in itertools.pairwise(events)]


def time_in_turns(runs: dict[str, Run], plan: Plan) -> dict[str, list[float]]:
    """Every variant's step times, measured in alternating rounds so that a drift of the machine
    meets all of them."""
    times: dict[str, list[float]] = {tag: [] for tag in runs}
    for _ in range(plan.rounds):
        for tag, run in runs.items():
            times[tag] += step_times_ms(run, plan.warm, plan.steps)
            settle()
    return times


def spread(times: list[float]) -> dict[str, float]:
    return {
        "min": round(min(times), 3),
        "median": round(statistics.median(times), 3),
        "mean": round(statistics.fmean(times), 3),
        "max": round(max(times), 3),
        "steps": len(times),
    }


def record(run: Run, path: Path, warm: int, *, active: int = 3, stacks: bool = False) -> int:
    """Records `active` steps to `path`, with Python's calls where `stacks`, and returns its size in
    bytes."""
    run.enter()
    for _ in range(warm):
        run.step()
    activities = [torch.profiler.ProfilerActivity.CPU]
    if BIG:
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    schedule = torch.profiler.schedule(wait=1, warmup=1, active=active, repeat=1)
    with torch.profiler.profile(
        activities=activities, schedule=schedule, record_shapes=True, with_stack=stacks
    ) as prof:
        for _ in range(2 + active):
            run.step()
            prof.step()
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "trace.json"
        prof.export_chrome_trace(str(raw))
        text = raw.read_text(encoding="utf-8", errors="replace")
    path.write_bytes(gzip.compress(scrub(text, path.name).encode(), compresslevel=9, mtime=0))
    return path.stat().st_size


def scrub(text: str, name: str) -> str:
    """The trace without what tells of the machine: temporary and home folders, the host's name; and
    without indentation."""
    text = re.sub(r'"traceName":\s*"[^"]*"', f'"traceName": "{name.removesuffix(".gz")}"', text)
    text = re.sub(r"\n +", "\n", text)  # a twentieth of the file, and no reader needs it
    text = re.sub(r'"host_name":\s*"[^"]*"', '"host_name": "host"', text)
    text = re.sub(r"/(?:tmp|root|home|work|mnt)/(?:[\w.@+-]+/)*", "", text)
    for word in {socket.gethostname(), os.environ.get("HOSTNAME", "")}:
        if len(word) > 3:
            text = re.sub(rf"\b{re.escape(word)}\b", "host", text)
    return text
