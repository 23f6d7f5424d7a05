"""What a plan says, as plain numbers: one shape for the terminal, JSON and HTML."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec import Struct

from stepscope.plan.choice import Choice
from stepscope.plan.contract.plan import Budget
from stepscope.plan.job import TrainingJob
from stepscope.plan.layout import Layout
from stepscope.plan.ranges import ranges_of

MEMORY_WORDS = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer": "optimizer",
    "activations": "activations",
    "logits": "logits and loss",
    "gathered": "gathered layers",
    "buffers": "buffers",
    "update": "the update's own",
    "slack": "allocator slack",
    "context": "driver, NCCL",
}
TIME_WORDS = {
    "gemm": "matrix products",
    "attention": "attention",
    "stream": "memory passes",
    "recompute": "recompute",
    "head": "head and loss",
    "host": "waits for host",
    "tensor_comms": "tensor comms",
    "expert_comms": "expert comms",
    "context_comms": "context comms",
    "shard_comms": "shard comms",
    "pipeline_comms": "pipeline comms",
    "bubble": "pipeline bubble",
    "data_comms": "data comms",
    "optimizer": "optimizer",
    "offload": "offload traffic",
    "jitter": "ranks' jitter",
}
FULL_RECOMPUTE = 1 / 3
"""Of the model's FLOP, done once more: a forward is a third of a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """One layout's figures."""

    layout: Layout
    step_s: float
    tokens_per_s: float
    """Of the whole cluster."""
    mfu: float
    hfu: float
    memory_bytes: float
    """Of the device that holds most."""
    fits: bool
    memory: Mapping[str, float]
    """Bytes by part; they add up to `memory_bytes`."""
    time: Mapping[str, float]
    """Seconds by part; they add up to `step_s`."""
    why: str = ""
    """Why it loses against the best; empty for the best."""
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """By figure, from where to where 80 % of what was measured lies."""


class Variant(Struct, frozen=True, kw_only=True):
    """The best layout of the same job with one thing changed, or at another width; None where none
    fits."""

    name: str
    num_devices: int
    best: Account | None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All that one command answers."""

    job: TrainingJob
    best: Account | None
    layouts: tuple[Account, ...] = ()
    pareto: tuple[Account, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    """Layouts tried, and how many were left out for what."""
    search_s: float | None = None
    budget: Budget | None = None
    what_ifs: tuple[Variant, ...] = ()
    scaling: tuple[Variant, ...] = ()
    largest: Variant | None = None
    smallest: Variant | None = None
    explained: Account | None = None
    is_pinned: bool = False
    """Whether parts of the layout were given."""
    is_calibrated: bool = False
    hardware: str = ""
    """The file that the machine's rates were read from."""
    assumptions: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    """What to do where nothing fits."""


def account_of(job: TrainingJob, choice: Choice) -> Account:
    """A layout of a search, for the reports."""
    layout = choice.layout
    again = FULL_RECOMPUTE if layout.recompute == "full" else 0.0
    if layout.recompute_layers:
        again *= min(1.0, layout.recompute_layers * layout.pp / job.model.layers)
    return Account(
        layout=choice.layout,
        step_s=choice.step_s,
        tokens_per_s=choice.tokens_per_s,
        mfu=choice.mfu,
        hfu=choice.mfu * (1 + again),
        memory_bytes=choice.memory_bytes,
        fits=choice.memory_bytes <= job.cluster.usable_bytes,
        memory=choice.memory,
        time=choice.times,
        why=choice.why,
        ranges=ranges_of(job).of(
            step_s=choice.step_s,
            memory_bytes=choice.memory_bytes,
            rates={
                "tokens_per_s": choice.tokens_per_s,
                "tokens_per_s_per_device": choice.tokens_per_s_per_device,
                "mfu": choice.mfu,
                "hfu": choice.mfu * (1 + again),
            },
        ),
    )
