"""Times a job's base and its single changes in turns, and notes the host's pace beside each."""

from __future__ import annotations

import gc
import math
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lab.gains.job import Settings, TimedJob
from lab.measure import Run, clear, record, settle

BLOCKS, BLOCK_S, MOST = 4, 0.2, 60
PACE_TURNS = 8000
STACK_STEPS, STEPS = 2, 3  # recorded; Python's calls make a trace several times as large


def pace_ms() -> float:
    """What a fixed piece of host work takes: dispatch of tiny CPU operators and dict lookups."""
    x, table = torch.zeros(1), dict.fromkeys(range(256), 0)
    start = time.perf_counter()
    for i in range(PACE_TURNS):
        x.add_(1)
        table[i & 255] += i
    return (time.perf_counter() - start) * 1e3


@dataclass(frozen=True, kw_only=True)
class Timing:
    """ms a step of each block of steps, and the host's pace right before them."""

    blocks: tuple[float, ...]
    host_ms: float

    @property
    def ms(self) -> float:
        return statistics.median(self.blocks)


def clock(run: Run, settings: Settings, warm: int = 2) -> Timing:
    """Times blocks of steps; inside one the host runs ahead.

    Batches that a loader has ready are used up first, and a block holds whole bursts of its
    workers and whole turns of what happens every n-th step.
    """
    turn = max(2 * (settings.workers or 0), settings.save_every, 1)
    run.enter()
    _steps(run, max(warm, 3 * (settings.workers or 0)))
    settle()
    host = pace_ms()
    blocks = []
    for _ in range(BLOCKS):
        start, num_steps = time.perf_counter(), 0
        while num_steps < 4 or (time.perf_counter() - start < BLOCK_S and num_steps < MOST):
            _steps(run, turn)
            num_steps += turn
        settle()
        blocks.append((time.perf_counter() - start) / num_steps * 1e3)
    return Timing(blocks=tuple(blocks), host_ms=host)


def _steps(run: Run, num_steps: int) -> None:
    for _ in range(num_steps):
        run.step()


def measure(
    job: TimedJob, name: str, out: Path, *, deadline: float, traces_of_changes: bool
) -> dict[str, Any]:
    """Changes that begin after `deadline` (`time.monotonic()`) are left out; the trace is not.

    It is recorded last: a profiler's callbacks may stay and cost host time.
    """
    clear()
    base = job.build(job.base)
    first = clock(base, job.base, 8)
    row: dict[str, Any] = {
        "first_ms": round(first.ms, 4),
        "host_first_ms": round(first.host_ms, 3),
        "base": job.base.said(),
        "changes": {},
    }
    for code, change in job.changes.items():
        if time.monotonic() > deadline:
            row.setdefault("left_out", []).append(code)
            continue
        try:
            row["changes"][code] = _change(job, code, base)
        except Exception as error:  # noqa: BLE001  a change that does not run is a result, too
            row["changes"][code] = {"failed": f"{type(error).__name__}: {error}"[:200]}
        row["changes"][code]["change"] = dict(change)
    clear()
    last = clock(base, job.base)
    row |= {"step_ms": round(last.ms, 4), "host_ms": round(last.host_ms, 3)}
    _record(base, job, job.base, out / f"{name}.pt.trace.json.gz")
    row["host_recorded_ms"] = round(pace_ms(), 3)
    if traces_of_changes:
        for code in row["changes"]:
            settings = job.changed(code)
            trace = out / f"{name}@{code}.pt.trace.json.gz"
            _record(job.build(settings), job, settings, trace, warm=8)
    return row


def _record(run: Run, job: TimedJob, settings: Settings, path: Path, *, warm: int = 0) -> None:
    num_steps = STACK_STEPS if job.stacks else STEPS
    warm = max(warm, 3 * (settings.workers or 0))
    record(run, path, warm, active=num_steps, stacks=job.stacks)


def _change(job: TimedJob, code: str, base: Run) -> dict[str, Any]:
    """Base, change, base, change, base, all after the change was built and compiled."""
    clear()
    settings = job.changed(code)
    run = job.build(settings)
    run.enter()
    _steps(run, 8)
    before = clock(base, job.base)
    one = clock(run, settings)
    between = clock(base, job.base)
    two = clock(run, settings)
    del run
    gc.collect()
    after = clock(base, job.base)
    return compared([before, between, after], [one, two], (job.samples or {}).get(code, 1))


def compared(base: list[Timing], change: list[Timing], samples: int) -> dict[str, Any]:
    """What the change gave: the ratio of medians, and the range of the single timings'."""
    base_ms = [timing.ms for timing in base]
    change_ms = [timing.ms / samples for timing in change]
    blocks = [block / samples for timing in change for block in timing.blocks]
    ms = statistics.median(change_ms)
    return {
        "ms": round(ms, 4),
        "change_ms": [round(each, 4) for each in change_ms],
        "base_ms": [round(each, 4) for each in base_ms],
        "speedup": round(statistics.median(base_ms) / ms, 4),
        "speedup_low": round(min(base_ms) / max(blocks), 4),
        "speedup_high": round(max(base_ms) / min(blocks), 4),
        "host_before_ms": round(base[0].host_ms, 3),
        "host_ms": round(math.fsum(timing.host_ms for timing in change) / len(change), 3),
        "host_between_ms": round(base[1].host_ms, 3),
        "host_after_ms": round(base[2].host_ms, 3),
    }
