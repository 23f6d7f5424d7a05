"""One layer on one device.

Matrix products, attention, passes over memory, and what the host needs to launch them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from stepscope.plan.framework import Framework
from stepscope.plan.job import TrainingJob
from stepscope.plan.layout import Layouts
from stepscope.plan.model import windowed_share
from stepscope.plan.network import Group, Network
from stepscope.plan.parameters import is_selective_cheap, recomputed_share
from stepscope.plan.rates import NARROW_PRECISIONS, Floats, Rates

PARTED_COLLECTIVES = 4
"""Collectives of a layer with sequence parallelism, one way: two gathers and two scatters."""
DROPPED_PASSES = 2.5
"""Passes that dropout adds over what it drops: one read, one write and the mask."""

BIAS_BYTES = (28, 38)
"""Read and written for each output of experts' second product, forward and backward: its bias is
weighed by the router in fp32, added expert by expert, put together and cast back; backward has two
products with that gradient in fp32 and their sums (Megatron-Core's experts.py, _apply_bias)."""
CLAMP_BYTES = (8, 18)
"""The same for each output of the first, whose halves are clamped and put together again
(fused_bias_geglu.py); backward compares twice and selects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """Seconds of one micro-batch through one layer, forward or backward."""

    gemm: Floats
    attention: Floats
    stream: Floats
    tensor_comms: Floats
    expert_comms: Floats
    context_comms: Floats
    host: Floats

    @property
    def device(self) -> Floats:
        """What the device computes."""
        return self.gemm + self.attention + self.stream

    @property
    def comms(self) -> Floats:
        return self.tensor_comms + self.expert_comms + self.context_comms

    def unhidden_s(self, framework: Framework) -> Floats:
        """The host's time as far as the device has nothing to do meanwhile."""
        hides = 0.0 if framework.waits else self.device + self.comms
        return np.maximum(self.host - hides, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTime:
    """A layer's passes. `again` is what backward repeats of forward under recomputation."""

    forward: Pass
    backward: Pass
    again_s: Floats
    gather_s: Floats
    """Gathering its weights, where they are sharded (ZeRO-3); once for each pass."""
    scatter_s: Floats
    copy_s: Floats
    """Copying both on the device, which nothing hides: out of and into the buffers that are
    sent."""


def products(
    job: TrainingJob, layouts: Layouts, *, is_mixture: bool
) -> list[tuple[Any, Any, Any, Any]]:
    """The layer's matrix products: how many, and m, n, k of each.

    Experts' come as one product per expert on the device.
    """
    model, tp = job.model, layouts.tp
    tokens = layouts.micro_batch * job.seq_len // layouts.cp
    h = model.hidden
    shapes: list[tuple[Any, Any, Any, Any]] = []
    if model.latent is not None:
        latent = model.latent
        qk = model.heads * (latent.nope_dim + latent.rope_dim)
        if latent.q_rank is None:
            shapes.append((1, tokens, qk / tp, h))
        else:
            shapes += [(1, tokens, latent.q_rank, h), (1, tokens, qk / tp, latent.q_rank)]
        shapes.append((1, tokens, latent.kv_rank + latent.rope_dim, h))
        shapes.append(
            (1, tokens, model.heads * (latent.nope_dim + latent.v_dim) / tp, latent.kv_rank)
        )
        shapes.append((1, tokens, h, model.heads * latent.v_dim / tp))
    else:
        q, kv = model.heads * model.head_dim, model.kv_heads * model.head_dim
        shapes += [(1, tokens, (q + 2 * kv) / tp, h), (1, tokens, h, q / tp)]
    up = 2 if model.is_gated else 1
    if is_mixture and model.experts is not None:
        experts = model.experts
        local = np.maximum(experts.num / layouts.ep, 1)
        tokens_per_expert = tokens * experts.top_k / local
        shapes += [
            (local, tokens_per_expert, up * experts.ffn_hidden / tp, h),
            (local, tokens_per_expert, h, experts.ffn_hidden / tp),
            (1, tokens, experts.num, h),
        ]
        if experts.shared_ffn_hidden:
            shapes += [
                (1, tokens, up * experts.shared_ffn_hidden / tp, h),
                (1, tokens, h, experts.shared_ffn_hidden / tp),
            ]
    else:
        shapes += [
            (1, tokens, up * model.ffn_hidden / tp, h),
            (1, tokens, h, model.ffn_hidden / tp),
        ]
    return shapes


def attention_flops(job: TrainingJob, layouts: Layouts) -> Floats:
    """FLOPs of scores and their use in one forward of one micro-batch, every pair of tokens
    counted."""
    model = job.model
    tokens = layouts.micro_batch * job.seq_len / layouts.cp
    latent = model.latent
    width = model.heads * (
        2 * model.head_dim if latent is None else latent.nope_dim + latent.rope_dim + latent.v_dim
    )
    return 2.0 * tokens * job.seq_len * width / layouts.tp * windowed_share(model, job.seq_len)


def layer_time(
    job: TrainingJob, layouts: Layouts, rates: Rates, network: Network, *, is_mixture: bool
) -> LayerTime:
    model, framework, constants = job.model, job.framework, job.constants
    tp, bytes_each = layouts.tp, job.value_bytes
    tokens = layouts.micro_batch * job.seq_len / layouts.cp
    is_fused = (
        is_mixture and framework.fuses_experts and rates.is_blackwell and not model.has_mlp_bias
    )
    forward_gemm, backward_gemm = _products_s(
        job, layouts, rates, is_mixture=is_mixture, is_fused=is_fused
    )
    core_forward, core_backward = _attention(job, layouts, rates)
    outer = np.where(layouts.is_sequence_parallel == 1, tokens / tp, tokens)
    q = model.heads * model.head_dim
    kv = 2 * model.kv_heads * model.head_dim
    middle = model.ffn_hidden
    spread: Any = 0.0
    if is_mixture and model.experts is not None:
        middle = model.experts.top_k * model.experts.ffn_hidden + model.experts.shared_ffn_hidden
        # Tokens are copied out, into the order of experts, back from it, weighed and summed; fused
        # kernels do the middle of it, and so does what sends them.
        is_short = is_fused or framework.orders_once
        spread = (4 if is_short else 8) * tokens * model.experts.top_k * model.hidden
    # Two norms, two residual sums; rotations; the activation.
    passes = outer * model.hidden * (10 + 2 * DROPPED_PASSES * framework.has_dropout)
    # Residuals in fp32 are read and written at twice the width.
    passes = passes * (1 + framework.extra_activation / 4)
    passes = passes + tokens / tp * (2 * (q + kv) + (3 if model.is_gated else 2) * middle) + spread
    passes = passes * bytes_each * (1.0 if framework.fuses else constants.unfused_passes)
    stream = rates.stream_s(passes)
    narrow_forward, narrow_backward = _narrowing_s(
        job, layouts, rates, outer, is_mixture=is_mixture, is_fused=is_fused
    )
    biased_forward, biased_backward = _biased_s(job, layouts, rates, is_mixture=is_mixture)
    comms = _tensor_comms(job, layouts, network, tokens)
    experts_s = (
        _expert_comms(job, layouts, network, tokens) if is_mixture else np.zeros(len(layouts))
    )
    context = _context_comms(job, layouts, rates, network, tokens)
    host = (
        constants.host_layer_s
        * (constants.host_mixture if is_mixture else 1.0)
        * (0.15 if framework.is_compiled or is_fused else 1.0)
    )
    launches = _launch_collectives_s(job, layouts)
    forward = Pass(
        gemm=forward_gemm,
        attention=core_forward,
        stream=stream + narrow_forward + biased_forward,
        tensor_comms=comms,
        expert_comms=experts_s,
        context_comms=context,
        host=host + launches,
    )
    backward = Pass(
        gemm=backward_gemm,
        attention=core_backward,
        stream=2 * stream + narrow_backward + biased_backward,
        tensor_comms=comms + _gather_again_s(job, layouts, network, forward_gemm),
        expert_comms=experts_s,
        context_comms=2 * context,
        host=host * constants.host_backward + launches,
    )
    return LayerTime(
        forward=forward,
        backward=backward,
        again_s=_again(job, layouts, forward),
        **_sharding(job, layouts, rates, network, is_mixture=is_mixture),
    )


def _biased_s(
    job: TrainingJob, layouts: Layouts, rates: Rates, *, is_mixture: bool
) -> tuple[Any, Any]:
    """Time of experts' biases and of the clamp before their gate, which no kernel has in it: both
    are passes of their own over the products' outputs, forward and backward."""
    experts = job.model.experts
    if not is_mixture or experts is None or not job.model.has_mlp_bias:
        return 0.0, 0.0
    rows = layouts.micro_batch * job.seq_len / layouts.cp * experts.top_k / layouts.tp
    inside = (2 if job.model.is_gated else 1) * experts.ffn_hidden
    forward, backward = (
        rates.stream_s(rows * (job.model.hidden * bias + inside * clamp))
        for bias, clamp in zip(BIAS_BYTES, CLAMP_BYTES, strict=True)
    )
    return forward, backward


def _narrowing_s(
    job: TrainingJob,
    layouts: Layouts,
    rates: Rates,
    outer: Any,
    *,
    is_mixture: bool,
    is_fused: bool,
) -> tuple[Any, Any]:
    """Time of what products in 8 bits read, written so and once more transposed: forward inputs,
    norms' among them already in their own kernel, and backward the gradients of outputs. Each of a
    token's experts has its own, which fused ones write in their own kernel."""
    if job.precision not in NARROW_PRECISIONS:
        return 0.0, 0.0
    model, experts = job.model, job.model.experts
    inner = layouts.micro_batch * job.seq_len / layouts.cp / layouts.tp
    q, kv = model.heads * model.head_dim, 2 * model.kv_heads * model.head_dim
    each, up = job.value_bytes + 2, 2 if model.is_gated else 1
    middle, sent = model.ffn_hidden, 0
    if is_mixture and experts is not None:
        routed = 0 if is_fused else experts.top_k
        middle = routed * experts.ffn_hidden + experts.shared_ffn_hidden
        sent = routed * model.hidden
    inputs = each * inner * (q + middle + sent) + 2 * outer * model.hidden
    grads = each * (inner * (q + kv + up * middle + sent) + 2 * outer * model.hidden)
    return rates.stream_s(inputs), rates.stream_s(grads)


def _launch_collectives_s(job: TrainingJob, layouts: Layouts) -> Floats:
    """What the host needs for the collectives between a layer's parts, one way."""
    framework, constants = job.framework, job.constants
    unfused = 1.0 if framework.fuses else constants.host_unfused
    near = 2 * constants.host_collective_s * unfused
    far = PARTED_COLLECTIVES * framework.staged_collective_s * layouts.tp
    is_far = has_far_stages(job, layouts)
    return np.where(layouts.tp > 1, np.where(is_far, np.maximum(near, far), near), 0.0)


def has_far_stages(job: TrainingJob, layouts: Layouts) -> Floats:
    """Where the pipeline leaves a node: stages are farthest apart in the order of devices."""
    num_ranks = layouts.tp * layouts.cp * layouts.dp * layouts.pp
    return np.asarray((layouts.pp > 1) & (num_ranks > job.cluster.devices_per_node))


def is_host_ahead(job: TrainingJob, layouts: Layouts) -> Floats:
    """Where the host launches a layer faster than the device runs it, at a quarter of its peak."""
    flops: Any = 3.5 / 2 * attention_flops(job, layouts)
    for num, m, n, k in products(job, layouts, is_mixture=job.model.experts is not None):
        flops = flops + 6.0 * num * m * n * k
    constants, peak = job.constants, job.cluster.peak_flops.get(job.precision, np.inf)
    own_s = constants.host_layer_s * (1 + constants.host_backward)
    host_s = own_s + 2 * _launch_collectives_s(job, layouts)
    return np.asarray(flops / (0.25 * peak) > host_s)


def _products_s(
    job: TrainingJob, layouts: Layouts, rates: Rates, *, is_mixture: bool, is_fused: bool
) -> tuple[Any, Any]:
    """Seconds of the layer's matrix products, forward and backward."""
    framework, in_bytes = job.framework, job.value_bytes
    added_bytes = 2 * framework.grad_bytes if framework.accumulates_fused else 0.0
    grad_bytes = 2 * framework.grad_bytes if framework.accumulates_fused else in_bytes
    forward: Any = 0.0
    backward: Any = 0.0
    for num, m, n, k in products(job, layouts, is_mixture=is_mixture):
        if isinstance(num, int):
            forward = forward + num * rates.gemm_s(m, n, k)
            backward = backward + num * rates.gemm_s(m, k, n)
            weights_s = num * rates.gemm_s(k, n, m, added_bytes)
        else:
            forward = forward + rates.grouped_s(num, m, n, k, in_bytes, is_fused=is_fused)
            backward = backward + rates.grouped_s(num, m, k, n, in_bytes, is_fused=is_fused)
            weights_s = rates.grouped_s(num, k, n, m, grad_bytes, is_fused=is_fused)
        if not job.is_adapter:
            backward = backward + weights_s
    return forward, backward


def _again(job: TrainingJob, layouts: Layouts, forward: Pass) -> Floats:
    """What recomputation repeats."""
    whole = forward.device + forward.comms + forward.unhidden_s(job.framework)
    if job.framework.selective_is_ops:
        part = forward.gemm / 2 + forward.stream
    elif is_selective_cheap(job):
        part = 0.5 * forward.stream + np.where(layouts.is_flash == 1, 0.0, forward.attention)
    elif job.framework.selective_is_cheap:
        part = forward.attention
    else:
        part = np.where(layouts.is_flash == 1, 0.0, forward.attention)
    whole = whole * recomputed_share(job, layouts)
    return np.where(layouts.recompute == 2, whole, np.where(layouts.recompute == 1, part, 0.0))


def _attention(job: TrainingJob, layouts: Layouts, rates: Rates) -> tuple[Floats, Floats]:
    """Seconds of attention's inside, forward and backward."""
    flops = attention_flops(job, layouts)
    part = job.seq_len / layouts.cp
    pairs_share = (0.5 if job.model.is_causal else 1.0) * (1 + job.constants.attention_half / part)
    flash_forward = flops * pairs_share / rates.attention
    flash_backward = 2.5 * flops * pairs_share / rates.attention_backward
    # Without one kernel for it: two batched products with a short inner size, and passes over all
    # scores.
    model = job.model
    scores = (
        layouts.micro_batch * model.heads / layouts.tp * job.seq_len * (job.seq_len / layouts.cp)
    )
    inner = model.head_dim / (model.head_dim + rates.half_k)
    plain = flops / (rates.scalar if model.head_dim % 8 else rates.gemm * inner)
    dropped = DROPPED_PASSES * job.framework.has_dropout
    forward_passes = 4 + dropped + (0 if job.framework.fuses else 4)
    backward_passes = 5 + dropped + (0 if job.framework.fuses else 4)
    plain_forward = plain + rates.stream_s(scores * job.value_bytes * forward_passes)
    plain_backward = 2 * plain + rates.stream_s(scores * job.value_bytes * backward_passes)
    is_flash = layouts.is_flash == 1
    return np.where(is_flash, flash_forward, plain_forward), np.where(
        is_flash, flash_backward, plain_backward
    )


def _tensor_comms(job: TrainingJob, layouts: Layouts, network: Network, tokens: Any) -> Floats:
    """Two all-reduces of the activations, or two gathers and two scatters, each started."""
    group = Group(layouts.tp, np.ones_like(layouts.tp))
    moved = tokens * job.model.hidden * job.value_bytes
    parts = PARTED_COLLECTIVES * network.gather_s(group, moved)
    if job.framework.overlaps_tensor:
        parts = parts * 0.4
    return np.where(layouts.is_sequence_parallel == 1, parts, 2 * network.reduce_s(group, moved))


def _gather_again_s(
    job: TrainingJob, layouts: Layouts, network: Network, forward_gemm: Floats
) -> Floats:
    """Time of two more gathers in backward that the products of queries, keys, values and of the
    MLP's way in, two thirds of a layer's, do not hide."""
    if not job.framework.gathers_again:
        return np.zeros(len(layouts))
    moved = layouts.micro_batch * job.seq_len / layouts.cp * job.model.hidden * job.value_bytes
    gathers = 2 * network.gather_s(Group(layouts.tp, np.ones_like(layouts.tp)), moved)
    hidden = job.constants.overlap * forward_gemm * 2 / 3
    return np.where(layouts.is_sequence_parallel == 1, np.maximum(gathers - hidden, 0.0), 0.0)


def _expert_comms(job: TrainingJob, layouts: Layouts, network: Network, tokens: Any) -> Floats:
    """Tokens to their experts and back."""
    experts = job.model.experts
    assert experts is not None
    group = Group(layouts.ep, layouts.tp)
    sent_bytes = tokens / layouts.tp * job.model.hidden * job.value_bytes
    share = min(experts.top_groups / experts.num_groups, 1.0)
    return 2 * network.scatter_all_s(
        group, sent_bytes, experts.top_k, share, is_apart=job.framework.sends_copies
    )


def _context_comms(
    job: TrainingJob, layouts: Layouts, rates: Rates, network: Network, tokens: Any
) -> Floats:
    """Keys and values around the ring, behind the attention of the part that is there."""
    model = job.model
    moved = tokens * 2 * model.kv_heads * model.head_dim / layouts.tp * job.value_bytes
    whole = network.gather_s(Group(layouts.cp, layouts.tp), moved * layouts.cp)
    flops = attention_flops(job, layouts)
    hidden = flops * 0.5 / rates.attention
    return np.where(layouts.cp > 1, np.maximum(whole - hidden * job.constants.overlap, 0.0), 0.0)


def _sharding(
    job: TrainingJob, layouts: Layouts, rates: Rates, network: Network, *, is_mixture: bool
) -> dict[str, Floats]:
    """A layer's weights gathered from its shards, and its gradients scattered to them."""
    model = job.model
    params: Any = model.attention_params + model.norm_params
    params = params + (model.router_and_shared_params if is_mixture else model.dense_mlp_params)
    width = layouts.shard_width
    parts = [(params / layouts.tp, Group(width, layouts.tp))]
    if is_mixture and model.experts is not None:
        routed = model.expert_params * model.experts.num / layouts.ep / layouts.tp
        parts.append((routed, Group(np.maximum(width // layouts.ep, 1), layouts.tp * layouts.ep)))
    is_sharded = layouts.zero_stage == 3
    is_narrow = job.framework.gathers_narrow and job.precision in NARROW_PRECISIONS
    gathered_bytes = 1 if is_narrow else job.value_bytes
    gather = sum(
        network.gather_s(group, num_params * gathered_bytes) for num_params, group in parts
    )
    scatter = sum(
        network.gather_s(group, num_params * job.framework.comm_grad_bytes)
        for num_params, group in parts
    )
    is_trained = is_sharded & (not job.is_adapter)
    # Kept from forward to backward, weights are gathered and copied once.
    is_kept = (layouts.zero_stage == 2) & job.framework.gathers_each
    # Experts that no other rank has are left out of it.
    copied: Any = sum(
        np.where(is_alone & (group.size == 1), 0.0, num_params)
        * _copied_bytes(job, group.size, np.where(is_kept, 1, 2), is_trained=not job.is_adapter)
        for is_alone, (num_params, group) in enumerate(parts)
    )
    return {
        "copy_s": np.where(is_sharded | is_kept, rates.stream_s(copied), 0.0),
        "gather_s": np.where(is_sharded, gather, 0.0),
        "scatter_s": np.where(is_trained, scatter, 0.0),
    }


def _copied_bytes(job: TrainingJob, width: Any, gathers: Any, *, is_trained: bool) -> Any:
    """Bytes of a parameter, read and written around its gathers and a scatter: the whole out of the
    gathered buffer and gradients into the one to scatter; of the own shard the cast from fp32, its
    place among the others, and gradients' cast to fp32."""
    if not job.framework.copies_gathered:
        return 0.0
    value, grad = job.value_bytes, job.framework.comm_grad_bytes
    width = np.asarray(width)
    gathered = gathers * (2 * value + (4 + 3 * value) / width)
    scattered = value + grad + (3 * grad + 4) / width
    return gathered + (scattered if is_trained else 0.0)
