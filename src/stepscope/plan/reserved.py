"""What PyTorch's allocator reserves beyond the tensors, where the optimizer is PyTorch's own.

The allocator takes a block from the driver for each tensor over 10 MiB, gives out the smallest one
of the same stream that is free and large enough, and does not move what lies in it
(c10/cuda/CUDACachingAllocator.cpp). `python -m benchmarks.reserved` plays it for a step.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stepscope.plan.job import TrainingJob
from stepscope.plan.layout import Layouts
from stepscope.plan.parameters import Parameters, head_rows, recomputed_share
from stepscope.plan.rates import Floats


def reserved_beyond(
    job: TrainingJob,
    layouts: Layouts,
    parameters: Parameters,
    *,
    least: Floats,
    states: Floats,
    shared_grads: Floats,
    logits: Floats,
    room: Floats,
) -> Floats:
    """Bytes beyond the tensors; no less than `least`, what is usual whatever the optimizer.

    `shared_grads` come as activations go, and are in no peak. Blocks that are free as a whole are
    given back before memory runs out: there are no more of them than `room`.
    """
    if not job.framework.has_late_states:
        return least
    broken = _broken_blocks(job, layouts, states)
    tokens = layouts.micro_batch * job.seq_len / layouts.cp
    whole = np.where(
        logits > 0,
        np.asarray(tokens * head_rows(job, layouts) * job.framework.idle_logit_bytes),
        0.0,
    ) + _apart(job, layouts, parameters, shared_grads, logits)
    kept = np.maximum(least, broken)
    cached = np.minimum(np.maximum(broken + whole - kept, 0.0), np.maximum(room - kept, 0.0))
    return np.asarray(kept + cached)


def _broken_blocks(job: TrainingJob, layouts: Layouts, states: Floats) -> Floats:
    """What the first update's states make of no use to activations.

    It puts them into blocks that activations and logits had, and the second step needs new ones:
    lost is what the states leave of theirs.
    """
    constants, again = job.constants, share_recomputed(job, layouts)
    share = (1 - again) * constants.broken_share + again * constants.broken_share_recomputed
    return np.where(_is_narrow(job, layouts), 0.0, share * states)


def _apart(
    job: TrainingJob, layouts: Layouts, parameters: Parameters, shared: Floats, logits: Floats
) -> Floats:
    """Bytes of gradients that come as activations go and still get no block of theirs: all of those
    on a stream of their own, with what was reduced before it is widened; and where activations are
    narrow the MLP's, as far as logits leave no room for them."""
    framework = job.framework
    room = (1 - share_recomputed(job, layouts)) * logits
    wide = np.maximum(shared - room, 0.0) * _mlp_share(job)
    mixed = np.where(_is_narrow(job, layouts), wide, 0.0)
    if not framework.has_grad_stream:
        return mixed
    is_widened = framework.comm_grad_bytes < 4 and not job.is_adapter
    group = (parameters.largest_layer + parameters.outer) / layouts.shard_width
    reduced = group * (framework.comm_grad_bytes if is_widened else 0.0)
    return np.where(layouts.zero_stage >= 2, shared + reduced, mixed)


def share_recomputed(job: TrainingJob, layouts: Layouts) -> Floats:
    """Share of a stage's layers that is recomputed whole."""
    return np.where(layouts.recompute == 2, recomputed_share(job, layouts), 0.0)


def _is_narrow(job: TrainingJob, layouts: Layouts) -> Any:
    """Whether a layer's widest activation, tokens x MLP, is smaller in 16 bits than a matrix of the
    MLP in fp32: then neither gradients nor states fit into activations' blocks."""
    tokens = layouts.micro_batch * job.seq_len / layouts.cp
    return tokens * job.value_bytes < 4.0 * job.model.hidden


def _mlp_share(job: TrainingJob) -> float:
    """Share of a layer's parameters that is the MLP's."""
    model = job.model
    mlp = (3 if model.is_gated else 2) * model.hidden * model.ffn_hidden
    heads = 2 * model.heads + 2 * model.kv_heads
    return mlp / (mlp + heads * model.head_dim * model.hidden)
