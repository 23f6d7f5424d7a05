"""Memory and time of many layouts at once, or the whole account of one."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from stepscope.errors import UsageError
from stepscope.plan.flops import model_flops_per_token
from stepscope.plan.job import TrainingJob
from stepscope.plan.layout import Layout, Layouts
from stepscope.plan.memory import Memory, memory
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
