"""What a plan says, as plain numbers: one shape for the terminal, JSON and HTML."""

from __future__ import annotations

from msgspec import UNSET
from msgspec.structs import force_setattr

from stepscope.core.codec import encode
from stepscope.plan.contract.plan import Account, Cluster, Job, Model, PlanContract, RecordedMemory
from stepscope.plan.estimate import Choice
from stepscope.plan.job import TrainingJob
from stepscope.plan.layout_words import spelled_out
from stepscope.plan.ranges import ranges_of

MEMORY_WORDS = {
    "weights": "weights", "gradients": "gradients", "optimizer": "optimizer",
    "activations": "activations", "logits": "logits and loss", "gathered": "gathered layers",
    "buffers": "buffers", "update": "the update's own", "slack": "allocator slack",
    "context": "driver, NCCL",
}  # fmt: skip
TIME_WORDS = {
    "gemm": "matrix products", "attention": "attention", "stream": "memory passes",
    "recompute": "recompute", "head": "head and loss", "host": "waits for host",
    "tensor_comms": "tensor comms", "expert_comms": "expert comms",
    "context_comms": "context comms", "shard_comms": "shard comms",
    "pipeline_comms": "pipeline comms", "bubble": "pipeline bubble", "data_comms": "data comms",
    "optimizer": "optimizer", "offload": "offload traffic", "jitter": "ranks' jitter",
}  # fmt: skip
FULL_RECOMPUTE = 1 / 3
"""Share of the model's FLOPs that is done once more: a forward is a third of a step."""


class Plan(PlanContract, frozen=True, kw_only=True):
    """All that one command answers: the document, and the job that it was made of."""

    training: TrainingJob
    search_s: float | None = None
    is_pinned: bool = False
    """Whether parts of the layout were given."""

    def __post_init__(self) -> None:
        named = self.explained or self.best
        force_setattr(self, "layout_words", None if named is None else spelled_out(named.layout))


def described(job: TrainingJob) -> Job:
    model, cluster = job.model, job.cluster
    return Job(
        model=Model(
            name=model.name,
            params=model.num_params,
            active_params=model.active_params,
            layers=model.layers,
            hidden=model.hidden,
            heads=model.heads,
            kv_heads=model.kv_heads,
            ffn_hidden=model.ffn_hidden,
            vocab=model.vocab,
            experts=None if model.experts is None else model.experts.num,
            source=model.source,
        ),
        cluster=Cluster(
            device=cluster.device.name,
            num_devices=cluster.num_devices,
            devices_per_node=cluster.devices_per_node,
            memory_bytes=cluster.memory_bytes,
            tiers=cluster.tiers,
        ),
        seq_len=job.seq_len,
        global_batch=job.global_batch,
        precision=job.precision,
        framework=job.framework.name,
        optimizer=job.optimizer.name,
        adapters=job.is_adapter,
    )


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


def plan_json(plan: Plan, measured: RecordedMemory | None = None) -> str:
    """The document as indented text; `recorded_memory` is there where it was asked for."""
    same = {name: getattr(plan, name) for name in PlanContract.__struct_fields__}
    return encode(
        PlanContract(**same | {"recorded_memory": UNSET if measured is None else measured})
    )
