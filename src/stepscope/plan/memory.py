"""What one device holds at its fullest, part by part."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from stepscope.plan.compression import KEPT_BYTES
from stepscope.plan.job import TrainingJob
from stepscope.plan.layer_time import is_host_ahead
from stepscope.plan.layout import FEW, OFFLOAD, RECOMPUTE, SCHEDULES, Layouts, alike
from stepscope.plan.model import Model
from stepscope.plan.parameters import (
    Parameters,
    fullest_stage,
    head_rows,
    is_selective_cheap,
    last_stage,
    parameters,
    recomputed_share,
    shared_out,
)
from stepscope.plan.rates import Floats
from stepscope.plan.reserved import reserved_beyond, share_recomputed

NARROW = ("fp8", "fp4")
MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes, of the stage that has most."""

    weights: Floats
    gradients: Floats
    optimizer: Floats
    activations: Floats
    logits: Floats
    gathered: Floats
    """Weights and gradients of the layers that are whole just now (ZeRO-3)."""
    buffers: Floats
    """Buffers of collectives, and of micro-batches on their way between stages."""
    update: Floats
    """What the optimizer makes while it updates,
    as far as that is more than the activations that have gone by then."""
    slack: Floats
    """What the allocator holds and does not use."""
    context: Floats
    """The driver's, outside the allocator."""

    @property
    def parts(self) -> dict[str, Floats]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def allocated(self) -> Floats:
        """The tensors alone."""
        return self.reserved - self.slack

    @property
    def reserved(self) -> Floats:
        """What PyTorch's allocator takes of the device."""
        return self.total - self.context

    @property
    def total(self) -> Floats:
        """What the device shows as used."""
        return sum(self.parts.values(), start=np.zeros(1))


def memory(
    job: TrainingJob, layouts: Layouts, parameters: Parameters, *, is_first: bool = False
) -> Memory:
    """Memory of the fullest stage, or of the first one, whose rank 0 is the one that many jobs
    print."""
    framework, constants = job.framework, job.constants
    weight_bytes, grad_bytes, state_bytes = state_widths(job)
    local = parameters.dense + parameters.routed
    width = layouts.shard_width
    shard = shared_out(parameters, layouts, width)
    stage = layouts.zero_stage
    is_whole = stage == 3
    frozen = sharded_weight_bytes(job)
    weights = np.where(is_whole, shard * frozen, local * weight_bytes)
    whole_grads = shard * framework.sharded_grad_bytes
    grads = np.where(is_whole, whole_grads, np.where(stage == 2, shard, local) * grad_bytes)
    if framework.plain_grad_bytes and job.value_bytes < 4:
        grads = grads + np.where(stage == 0, local * framework.plain_grad_bytes, 0.0)
    states = np.where(stage >= 1, shard, local) * np.where(
        is_whole, framework.sharded_copy_bytes + job.optimizer.moment_bytes, state_bytes
    )
    if framework.trains_narrow and job.value_bytes < 4:
        weights = np.where(is_whole, weights / 2, weights)
        grads, states = (np.where(stage >= 2, part / 2, part) for part in (grads, states))
    if job.is_adapter:
        grads, states = np.zeros(len(layouts)), np.zeros(len(layouts))
    is_out = layouts.offload >= 1
    states = np.where(is_out, 0.0, states)
    if not job.is_adapter:
        # Reduced and sharded, they can leave as they come.
        leave = is_out & framework.frees_offloaded & ((stage >= 2) | (width == 1))
        grads = np.where(leave, 0.0, grads)
    if framework.cast_bytes and job.value_bytes < 4:
        # A compiler makes them again in backward, as recomputation does.
        gone = np.ones(len(layouts)) if framework.is_compiled else share_recomputed(job, layouts)
        weights = weights - np.where(is_whole, 0.0, local * framework.cast_bytes * gone)
    is_all_out = layouts.offload >= OFFLOAD.index("all")
    weights = np.where(is_all_out, 0.0, weights)
    whole, first, last, logits = _activations(job, layouts, parameters.layers)
    is_last = (last + logits > first) & ((layouts.pp == 1) | (not is_first))
    is_spread = is_whole & (width > 1)
    two_layers = 2 * parameters.largest_layer * framework.weight_bytes
    largest = (parameters.largest_layer + parameters.outer) * (
        framework.weight_bytes + framework.comm_grad_bytes
    )
    gathered = np.where(is_spread, two_layers + largest, 0.0)
    if framework.gathers_each:
        # Whole gradients of a layer, until they are scattered.
        grads_there = (parameters.largest_layer + parameters.outer) * framework.comm_grad_bytes
        gathered = np.where((stage == 2) & (width > 1), grads_there, gathered)
    if is_out.any():
        there = np.where(is_all_out, two_layers + largest, 0.0)
        if not job.is_adapter:
            one = (parameters.largest_layer + parameters.outer) * framework.comm_grad_bytes
            there = np.maximum(there, np.where(leave, one, 0.0))
        gathered = np.maximum(gathered, there)
    if framework.keeps_gathered_stages:
        # Gradients are added up in fp32 before they are scattered.
        stays = is_spread & (layouts.pp > 1)
        whole_bytes = local * (framework.weight_bytes + (0.0 if job.is_adapter else 4.0))
        gathered = np.where(stays, np.maximum(gathered, whole_bytes), gathered)
    buffers = _buffers(job, layouts)
    if not job.is_adapter:
        buffers = buffers + np.where(
            (layouts.dp > 1) & ~is_whole, local * framework.bucket_bytes, 0.0
        )
    if job.compression is not None:
        kept = local * KEPT_BYTES[job.compression.kind]
        buffers = buffers + np.where((layouts.dp > 1) & (stage == 0), kept, 0.0)
    activations, logits = np.where(is_last, last, first), np.where(is_last, logits, 0.0)
    all_grads = grads
    if framework.frees_grads:
        # They come as activations go: what is there at the end, beside the first layer's
        # activations, beyond what was at the beginning.
        late = np.minimum(np.maximum(grads + whole - activations - logits, 0.0), grads)
        grads = np.where(layouts.num_micro == 1, late, grads)
    update_bytes = np.where(
        is_out,
        0.0,
        np.where(stage >= 1, shard, local) * (0.0 if job.is_adapter else framework.update_bytes),
    )
    update = np.maximum(update_bytes - activations - logits - gathered, 0.0)
    allocated = weights + grads + states + activations + logits + gathered + buffers + update
    idle = np.where(layouts.pp > 1, constants.pipeline_slack, 0.0) * activations
    if framework.late_gathered:
        late = _late_bytes(job, layouts, parameters)
        idle = idle + np.where(is_last & (layouts.pp > 1), 0.0, late)
    context = _context(job, layouts)
    least = allocated * (constants.fragmentation - 1)
    slack = idle + reserved_beyond(
        job,
        layouts,
        parameters,
        least=least,
        states=np.where(is_whole, states, states * _moments_share(job)),
        shared_grads=all_grads - grads,
        logits=logits,
        room=job.cluster.usable_bytes - MIB - allocated - idle - context,
    )
    return Memory(
        weights=weights,
        gradients=grads,
        optimizer=states,
        activations=activations,
        logits=logits,
        gathered=gathered,
        buffers=buffers,
        update=update,
        slack=slack,
        context=context,
    )


def _late_bytes(job: TrainingJob, layouts: Layouts, parameters: Parameters) -> Floats:
    """Gathered inputs that are freed, and not yet to be had again; stages that never come to a
    backward between two forwards let them go."""
    tokens = layouts.micro_batch * job.seq_len / layouts.cp
    rest = np.where(layouts.is_sequence_parallel == 1, tokens - tokens / layouts.tp, 0.0)
    layer = job.framework.late_gathered * rest * job.model.hidden * job.value_bytes
    flight = np.minimum(layouts.pp, layouts.num_micro)
    takes_turns = (layouts.pp == 1) | (layouts.num_micro > layouts.pp)
    return np.where(
        takes_turns & is_host_ahead(job, layouts), layer * parameters.layers * flight, 0.0
    )


def sharded_weight_bytes(job: TrainingJob) -> float:
    """Bytes of a weight under ZeRO-3, as each rank keeps its part."""
    framework = job.framework
    if job.is_adapter:
        return float(job.value_bytes)
    own = 8.0 + framework.sharded_grad_bytes + framework.sharded_copy_bytes
    return framework.sharded_bytes - own


def state_widths(job: TrainingJob) -> tuple[float, float, float]:
    """Bytes of a weight, its gradient and its optimizer's states below ZeRO-3.

    In fp32 there is no second copy.
    """
    framework, moments = job.framework, job.optimizer.moment_bytes
    if job.value_bytes == 4:
        return 4.0, 4.0, moments
    return (
        framework.weight_bytes,
        framework.grad_bytes + framework.extra_grad_bytes,
        framework.copy_bytes + moments,
    )


def _moments_share(job: TrainingJob) -> float:
    """Share of the optimizer's states below ZeRO-3 that the first update makes: copies are
    there."""
    state_bytes = state_widths(job)[2]
    return job.optimizer.moment_bytes / state_bytes if state_bytes else 0.0


def _context(job: TrainingJob, layouts: Layouts) -> Floats:
    """The driver's own, and NCCL's buffers for each kind of group that a rank is in."""
    constants = job.constants
    kinds = sum(
        (width > 1).astype(np.int64)
        for width in (layouts.tp, layouts.pp, layouts.dp * layouts.cp, layouts.ep)
    )
    return np.asarray(constants.context_bytes + kinds * constants.group_bytes)


def layer_bytes(job: TrainingJob, layouts: Layouts) -> Floats:
    """Kept of one micro-batch by one layer until its backward,
    nothing recomputed (Korthikanti et al. 2022, section 4)."""
    if len(layouts) <= FEW:
        return _layer_bytes(job, layouts)
    methods = layouts.recompute * 4 + layouts.is_sequence_parallel * 2 + layouts.is_flash
    first, index = alike(layouts.tp, layouts.cp, layouts.micro_batch, methods)
    return _layer_bytes(job, layouts.take(first))[index]


def _layer_bytes(job: TrainingJob, layouts: Layouts) -> Floats:
    model, framework = job.model, job.framework
    tokens = layouts.micro_batch * job.seq_len / layouts.cp
    outer = np.where(layouts.is_sequence_parallel == 1, tokens / layouts.tp, tokens)
    inner = tokens / layouts.tp
    latent = model.latent
    if latent is None:
        q = out = model.heads * model.head_dim
        kv = 2 * model.kv_heads * model.head_dim
    else:
        q = model.heads * (latent.nope_dim + latent.rope_dim)
        kv = q + model.heads * latent.v_dim
        out = model.heads * latent.v_dim
    # Of the MLP the product's output and the activation's, or what the latter is made of again.
    again = (layouts.recompute == 1) & is_selective_cheap(job)
    gated = np.where(again, 2, 4 if not framework.fuses else 3)
    times = gated if model.is_gated else np.where(again, 1, 2)
    middle: Any = times * model.ffn_hidden
    if model.experts is not None:
        share = model.num_mixture_layers / model.layers
        wide = times * (
            model.experts.top_k * model.experts.ffn_hidden + model.experts.shared_ffn_hidden
        )
        # What experts get, and what they give where that is weighed afterwards.
        sent = (1 if framework.weighs_inside else 2) * model.experts.top_k * model.hidden
        middle = (1 - share) * middle + share * (wide + sent)
    layer = (
        np.where(again, 2, 4) * outer * model.hidden + inner * (q + kv + out + middle)
    ) * job.value_bytes
    if not framework.fuses and latent is None and model.is_rotated and not model.max_positions:
        # One product makes queries, keys and values: what was rotated stays beside its result.
        layer = layer + inner * (q + kv / 2) * job.value_bytes
    if framework.keeps_narrow_inputs and job.precision in NARROW:
        layer = layer - np.where(again, 0.0, _narrowed(job, outer, inner)) + inner * out
        layer = layer - inner * _sent_width(model) * (job.value_bytes - 1)
    layer = layer + framework.kept_gathered * (tokens - outer) * model.hidden * job.value_bytes
    if framework.has_dropout:
        layer = layer + 2 * outer * model.hidden
    scores = (
        layouts.micro_batch * model.heads * job.seq_len * (job.seq_len / layouts.cp) / layouts.tp
    )
    plain = scores * (5.0 if framework.has_dropout else 4.0)
    layer = layer + np.where((layouts.is_flash == 1) | (layouts.recompute >= 1), 0.0, plain)
    return np.asarray(layer + framework.extra_activation * outer * model.hidden)


def _sent_width(model: Model) -> float:
    """Channels that a token's experts get, in the mean of all layers."""
    if model.experts is None:
        return 0.0
    return model.num_mixture_layers / model.layers * model.experts.top_k * model.hidden


def _narrowed(job: TrainingJob, outer: Any, inner: Any) -> Any:
    """Bytes less of norms' and activations' outputs in 8 bits: products alone read them. What
    attention gives is read by itself too, and is there in both."""
    model = job.model
    width = float(model.ffn_hidden)
    if model.experts is not None:
        share = model.num_mixture_layers / model.layers
        wide = model.experts.top_k * model.experts.ffn_hidden + model.experts.shared_ffn_hidden
        width = (1 - share) * width + share * wide
    return (2 * outer * model.hidden + inner * width) * (job.value_bytes - 1)


def _activations(
    job: TrainingJob, layouts: Layouts, in_stage: Floats
) -> tuple[Floats, Floats, Floats, Floats]:
    """What a layer has, what the first stage keeps, what the last one does, and its logits."""
    model, framework = job.model, job.framework
    tokens = layouts.micro_batch * job.seq_len / layouts.cp
    outer = np.where(layouts.is_sequence_parallel == 1, tokens / layouts.tp, tokens)
    whole = layer_bytes(job, layouts)
    # Residuals in fp32 are kept as they are.
    checkpoint = outer * model.hidden * max(job.value_bytes, framework.extra_activation)
    if framework.selective_is_ops:
        half = checkpoint + _every_other(job, outer, tokens / layouts.tp)
        layer = np.where(layouts.recompute == 1, half, whole)
    else:
        layer = whole
    share = recomputed_share(job, layouts)
    every = np.maximum(layouts.recompute_every, 1)
    again = share * checkpoint / every + (1 - share) * whole
    layer = np.where(layouts.recompute == 2, again, layer)
    pp, num_micro, vpp = layouts.pp, layouts.num_micro, layouts.vpp
    base = np.minimum(pp, num_micro)
    # Interleaved stages hold more, but never more than a step has.
    flight = np.where(vpp > 1, np.minimum(base * (1 + (pp - 1) / (pp * vpp)), num_micro), base)
    flight = np.where(layouts.schedule == SCHEDULES.index("gpipe"), num_micro, flight)
    twice = layouts.schedule == SCHEDULES.index("zb2p")
    flight = np.where(twice, np.minimum(2 * pp, num_micro), flight)
    # The layers since the checkpoint that runs backward just now are whole, however little is kept
    # of them; and gradients beside them.
    working = np.where(layouts.recompute == 2, whole * every, 0.0)
    first = layer * in_stage * flight + working
    last = (
        layer
        * last_stage(job, layouts, in_stage)
        * np.where(
            layouts.schedule == 1,
            num_micro,
            np.where(pp > 1, np.minimum(1.0 + (vpp > 1), num_micro), 1.0),
        )
    )
    logit_bytes = np.where(layouts.tp > 1, framework.parallel_logit_bytes, framework.logit_bytes)
    logit_bytes = logit_bytes + np.where(num_micro > 1, framework.kept_logit_bytes, 0.0)
    logits = tokens * head_rows(job, layouts) * logit_bytes
    # The last layer runs backward when the logits have gone.
    is_wider = working > logits
    last = np.where(is_wider, last + working, last)
    return whole, first, last, np.where(is_wider, 0.0, logits)


def _every_other(job: TrainingJob, outer: Any, inner: Any) -> Any:
    """Kept by a layer whose every other product is: half of what products give, and attention's
    output."""
    model = job.model
    q, kv = model.heads * model.head_dim, 2 * model.kv_heads * model.head_dim
    middle: Any = (2 if model.is_gated else 1) * model.ffn_hidden
    if model.experts is not None:
        share = model.num_mixture_layers / model.layers
        wide = model.experts.top_k * model.experts.ffn_hidden + model.experts.shared_ffn_hidden
        middle = (1 - share) * middle + share * (2 if model.is_gated else 1) * wide
    products = inner * (q + kv + middle) + 2 * outer * model.hidden
    return (products / 2 + inner * q) * job.value_bytes


def _buffers(job: TrainingJob, layouts: Layouts) -> Floats:
    tokens = layouts.micro_batch * job.seq_len / layouts.cp
    activation = tokens * job.model.hidden * job.value_bytes
    return np.where(layouts.tp > 1, 2 * activation, 0.0) + np.where(
        layouts.pp > 1, 2 * activation, 0.0
    )


def host_bytes(job: TrainingJob, layouts: Layouts, params: Parameters) -> Floats:
    """What the devices of a node keep in its memory.

    The optimizer's states, with gradients, and weights where all is there. Where that is on disks,
    the gradients alone: states pass through a piece at a time.
    """
    # Experts that are spread already have fewer ranks left to share them.
    width = layouts.shard_width
    shared = params.dense / width + params.routed / np.maximum(width // layouts.ep, 1)
    whole = params.dense + params.routed
    trained = 0.0
    if not job.is_adapter:
        trained = job.framework.copy_bytes + job.optimizer.moment_bytes + job.framework.grad_bytes
    states = np.where(layouts.zero_stage >= 1, shared, whole) * trained
    weights = np.where(layouts.zero_stage == 3, shared, whole) * job.framework.weight_bytes
    grads = states * (job.framework.grad_bytes / trained if trained else 0.0)
    states = np.where(layouts.offload == OFFLOAD.index("nvme"), grads, states)
    device_bytes = np.where(layouts.offload >= 1, states, 0.0) + np.where(
        layouts.offload == OFFLOAD.index("all"), weights, 0.0
    )
    return device_bytes * job.cluster.devices_per_node


_NONE, _FULL = RECOMPUTE.index("none"), RECOMPUTE.index("full")


def partly_recomputed(job: TrainingJob, layouts: Layouts, limit_bytes: float) -> Layouts:
    """Layouts that recompute all layers and fit, with as few of them recomputed as it takes to fit.
    What fits with none recomputed is left out: it is a layout of its own."""
    is_plain = (layouts.recompute_layers == 0) & (layouts.recompute_every == 1)
    layouts = layouts.take((layouts.recompute == _FULL) & is_plain)
    if not len(layouts):
        return layouts
    without = layouts.changed(recompute=np.full(len(layouts), _NONE))
    all_bytes, none_bytes = _total(job, layouts), _total(job, without)
    in_stage = fullest_stage(job, layouts)
    saved = np.maximum(none_bytes - all_bytes, 1.0)
    least = np.ceil(in_stage * (none_bytes - limit_bytes) / saved - 1e-9)
    is_partial = (none_bytes > limit_bytes) & (least >= 1) & (least < in_stage)
    layouts, least = layouts.take(is_partial), least[is_partial].astype(np.int64)
    if not len(layouts):
        return layouts
    # The stage with the head may be the fullest with some layers and not with others.
    for more in (0, 1, 2):
        some = layouts.changed(recompute_layers=least + more)
        fits = _total(job, some) <= limit_bytes
        if fits.all():
            break
    return some.take(fits & (least + more < fullest_stage(job, some)))


def _total(job: TrainingJob, layouts: Layouts) -> Floats:
    total = memory(job, layouts, parameters(job, layouts)).total
    return np.broadcast_to(total, len(layouts))
