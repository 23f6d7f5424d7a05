"""Memory and time of many layouts at once, or the whole account of one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from stepscope.errors import UsageError
from stepscope.plan.job import TrainingJob
from stepscope.plan.layout import Layout, Layouts
from stepscope.plan.memory import Memory, memory
from stepscope.plan.model import model_flops_per_token
from stepscope.plan.network import Network
from stepscope.plan.parameters import Parameters, can_run, parameters
from stepscope.plan.rates import NARROW_PRECISIONS, Floats, Rates, rates_of
from stepscope.plan.step_time import Times, step_times


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimates:
    """One row for each layout."""

    job: TrainingJob
    layouts: Layouts
    memory: Memory
    times: Times

    @property
    def step_s(self) -> Floats:
        return self.times.step

    @property
    def memory_bytes(self) -> Floats:
        return self.memory.total

    @property
    def fits(self) -> Floats:
        holds = self.memory_bytes <= self.job.cluster.usable_bytes
        return holds & can_run(self.job, self.layouts)

    @property
    def num_devices(self) -> Floats:
        layouts = self.layouts
        return layouts.tp * layouts.cp * layouts.pp * layouts.dp

    @property
    def tokens_per_s_per_device(self) -> Floats:
        layouts = self.layouts
        tokens = layouts.dp * layouts.micro_batch * layouts.num_micro * self.job.seq_len
        return tokens / self.step_s / self.num_devices

    @property
    def mfu(self) -> Floats:
        """Model FLOP over what the datasheet's peak would have done.

        Every pair of tokens counted, nothing recomputed.
        """
        rate = self.tokens_per_s_per_device * model_flops_per_token(
            self.job.model, self.job.seq_len
        )
        if self.job.is_adapter:
            # Frozen weights have no gradients: two passes instead of three.
            rate = rate * 2 / 3
        return rate / self.job.cluster.peak_flops[self.job.precision]


def estimate(job: TrainingJob, layouts: Layouts) -> Estimates:
    """Every layout's memory and time.

    They must divide what they cut: see `search` for those that do.
    """
    job = with_all_layers(job)
    params = parameters(job, layouts)
    times = timed(job, layouts, params)
    return Estimates(job=job, layouts=layouts, memory=memory(job, layouts, params), times=times)


def with_all_layers(job: TrainingJob) -> TrainingJob:
    """The job with one more layer after the last, where the model has one that predicts a further
    token."""
    if not job.model.extra_layer_params:
        return job
    model = replace(job.model, layers=job.model.layers + 1, extra_layer_params=0)
    return replace(job, model=model)


def timed(job: TrainingJob, layouts: Layouts, params: Parameters) -> Times:
    """Every layout's time alone."""
    rates = _rates(job, job.precision)
    if rates is None:
        precisions = ", ".join(sorted(job.cluster.peak_flops))
        raise UsageError(
            f"{job.cluster.device.name} has no unit for {job.precision}; it has {precisions}"
        )
    # Transformer Engine and torchao leave the head as it was.
    head_rates = (_rates(job, "bf16") or rates) if job.precision in NARROW_PRECISIONS else rates
    network = Network(job.cluster, job.constants)
    with np.errstate(divide="ignore", invalid="ignore"):
        return step_times(job, layouts, rates, head_rates, network, params)


def _rates(job: TrainingJob, precision: str) -> Rates | None:
    return rates_of(
        job.cluster,
        precision,
        job.constants,
        job.value_bytes,
        head_dim=job.model.head_dim,
        attention_generation=job.framework.attention,
    )


def estimate_one(job: TrainingJob, layout: Layout) -> Estimates:
    """One layout's."""
    return estimate(job, Layouts.of([layout]))


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
    """Words for what costs it most against the best: the two parts of the step that grow most."""
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
