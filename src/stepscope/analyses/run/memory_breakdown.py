"""What the peak of memory consists of, and what makes each part of it smaller."""

from __future__ import annotations

from stepscope.core.recordings.memory import (
    ACTIVATIONS,
    AUTOGRAD,
    GRADIENTS,
    INPUTS,
    OPTIMIZER,
    TEMPORARY,
    UNKNOWN,
    WEIGHTS,
    WORKSPACE,
    MemoryRecord,
)

NUM_NAMED = 4
NUM_FRAMES = 3
REMEDIES = {
    ACTIVATIONS: (
        "checkpoint activations (torch.utils.checkpoint) where most are made, or a smaller "
        "micro-batch, accumulated"
    ),
    OPTIMIZER: (
        "shard the optimizer's state over the ranks (fully_shard, ZeroRedundancyOptimizer), or "
        "keep it in 8 bits"
    ),
    WEIGHTS: "shard the weights over the ranks (fully_shard), or hold them in bf16",
    GRADIENTS: (
        "shard gradients over the ranks (fully_shard), and let zero_grad free them "
        "(set_to_none=True)"
    ),
    TEMPORARY: (
        "split what makes the largest: a fused or chunked loss never holds the logits; "
        "torch.compile fuses the rest"
    ),
    AUTOGRAD: (
        "split what makes the largest: a fused or chunked loss never holds the logits; "
        "torch.compile fuses the rest"
    ),
    INPUTS: "move fewer batches to the device ahead of their step",
    WORKSPACE: (
        "give the libraries less: CUBLAS_WORKSPACE_CONFIG, and one stream where there are several"
    ),
    UNKNOWN: (
        "record a snapshot with stacks from the start, to see what it is: "
        "_record_memory_history(stacks='all')"
    ),
}
"""What to do about each category."""


def breakdown_text(record: MemoryRecord) -> str:
    """`activations 49 %, optimizer 25 %`; empty where it is not known."""
    peak = max(record.peak_bytes, 1)
    shown = [(name, size) for name, size in record.by_size[:NUM_NAMED] if size > 0.005 * peak]
    return ", ".join(f"{name} {size / peak:.0%}" for name, size in shown)


def frame_lines(record: MemoryRecord) -> tuple[str, ...]:
    """Lines that made most of it."""
    return tuple(
        (
            f"{holder.frame}: {holder.size_bytes / 1e9:.2f} GB of {holder.category} in "
            f"{holder.num_tensors} tensors"
        )
        for holder in record.holders[:NUM_FRAMES]
    )


def largest_category(record: MemoryRecord | None) -> tuple[str, float] | None:
    """The largest category, and its share of the peak."""
    if record is None or not record.by_size or not record.peak_bytes:
        return None
    name, size = record.by_size[0]
    return name, size / record.peak_bytes
