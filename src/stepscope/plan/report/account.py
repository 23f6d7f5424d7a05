"""What a plan says, as plain numbers: one shape for the terminal, JSON and HTML."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec import UNSET

from stepscope.plan.choice import Choice
from stepscope.plan.contract.plan import Account, Budget, FrameworkRow, Variant
from stepscope.plan.job import TrainingJob
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
class Plan:
    """All that one command answers."""

    job: TrainingJob
    best: Account | None
    layouts: tuple[Account, ...] = ()
    pareto: tuple[Account, ...] = ()
    frameworks: tuple[FrameworkRow, ...] = ()
    """The same job under each framework, where none was named."""
    zero_stages: tuple[Variant, ...] = ()
    """One layout under every ZeRO stage, where that was asked."""
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
        name=str(layout),
        layout=layout,
        step_s=choice.step_s,
        tokens_per_s=choice.tokens_per_s,
        tokens_per_s_per_device=choice.tokens_per_s / layout.num_devices,
        mfu=choice.mfu,
        hfu=choice.mfu * (1 + again),
        memory_bytes=choice.memory_bytes,
        fits=choice.memory_bytes <= job.cluster.usable_bytes,
        memory=choice.memory,
        time=choice.times,
        why=choice.why or None,
        ranges=ranges_of(job).of(
            step_s=choice.step_s,
            memory_bytes=choice.memory_bytes,
            rates={
                "tokens_per_s": choice.tokens_per_s,
                "tokens_per_s_per_device": choice.tokens_per_s_per_device,
                "mfu": choice.mfu,
                "hfu": choice.mfu * (1 + again),
            },
        )
        or UNSET,
    )
