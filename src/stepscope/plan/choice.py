"""One layout with its estimated time and memory, and why it is slower than the best."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from stepscope.plan.estimate import estimate
from stepscope.plan.job import TrainingJob
from stepscope.plan.layout import Layout, Layouts
from stepscope.plan.rates import Floats

SAME = 0.001
"""Layouts whose devices do the same work, this near to each other in time, are variants:
only the plainest is shown."""

PART_WORDS = {
    "gemm": "matrix products", "attention": "attention", "stream": "memory-bound kernels",
    "recompute": "recomputation", "head": "output head", "host": "launches",
    "tensor_comms": "tensor collectives", "expert_comms": "expert exchange",
    "context_comms": "context exchange", "shard_comms": "gathering shards",
    "pipeline_comms": "stage sends", "bubble": "bubble", "data_comms": "gradient collectives",
    "optimizer": "optimizer", "offload": "offload traffic", "jitter": "waiting for the slowest",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One layout with its estimated time and memory."""

    layout: Layout
    step_s: float
    memory_bytes: float
    tokens_per_s_per_device: float
    mfu: float
    times: Mapping[str, float]
    memory: Mapping[str, float]
    why: str = ""
    """What it costs more than the best one."""

    @property
    def tokens_per_s(self) -> float:
        return self.tokens_per_s_per_device * self.layout.num_devices


def choices_of(job: TrainingJob, layouts: Layouts) -> list[Choice]:
    """Each layout with its estimated time and memory."""
    num = len(layouts)
    if not num:
        return []
    estimates = estimate(job, layouts)
    step = np.broadcast_to(estimates.step_s, num)
    memory_bytes = np.broadcast_to(estimates.memory_bytes, num)
    rate = np.broadcast_to(estimates.tokens_per_s_per_device, num)
    mfu = np.broadcast_to(estimates.mfu, num)
    times = _spread(estimates.times.parts, num)
    parts = _spread(estimates.memory.parts, num)
    return [
        Choice(
            layout=layouts.layout(index),
            step_s=float(step[index]),
            memory_bytes=float(memory_bytes[index]),
            tokens_per_s_per_device=float(rate[index]),
            mfu=float(mfu[index]),
            times={name: float(column[index]) for name, column in times.items()},
            memory={name: float(column[index]) for name, column in parts.items()},
        )
        for index in range(num)
    ]


def choice_of(job: TrainingJob, layout: Layout) -> Choice:
    """One layout with its estimated time and memory."""
    return choices_of(job, Layouts.of([layout]))[0]


def _spread(parts: Mapping[str, Floats], num: int) -> dict[str, Floats]:
    return {name: np.broadcast_to(column, num) for name, column in parts.items()}


def why(choice: Choice, best: Choice) -> str:
    """In words, what costs it most against the best: the two parts of the step that grow most."""
    gap = choice.step_s - best.step_s
    if choice.layout == best.layout:
        return "the fastest"
    if abs(gap) <= SAME * best.step_s:
        return "as fast as the best"
    if gap < 0:
        return f"faster than the best that fits, by {seconds(-gap)}"
    grown = sorted(
        ((value - best.times[name], name) for name, value in choice.times.items()), reverse=True
    )
    words = [
        f"{PART_WORDS.get(name, name.replace('_', ' '))} +{seconds(more)}"
        for more, name in grown[:2]
        if more >= 0.25 * gap
    ]
    return ", ".join(words)


def seconds(value: float) -> str:
    """A time as people write it."""
    if value >= 100:
        return f"{value:.0f} s"
    return f"{value:.2f} s" if value >= 0.1 else f"{1e3 * value:.1f} ms"
