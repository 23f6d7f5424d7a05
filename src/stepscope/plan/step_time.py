"""A whole step: layers and head through the pipeline, gradients over the data ranks, the optimizer,
and what is offloaded."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from stepscope.plan.compression import exchange_s, passed_bytes
from stepscope.plan.job import TrainingJob
from stepscope.plan.layer_time import LayerTime, has_far_stages, layer_time
from stepscope.plan.layout import FEW, OFFLOAD, SCHEDULES, Layouts, alike
from stepscope.plan.memory import sharded_weight_bytes
from stepscope.plan.network import Group, Network
from stepscope.plan.parameters import Parameters, head_rows, is_even, shared_out
from stepscope.plan.rates import Floats, Rates

HOST_ADAM_BYTES_PER_S = 60e9
"""Bytes a second that a node's processor reads and writes while it updates weights."""
BUCKET_BYTES = 200e6
"""Gradients that are reduced at a time: Megatron's are 40 million parameters, FSDP's a layer."""
UNFUSED_UPDATE = 2.7
UNHIDDEN_SENDS = 0.3
"""Share of sends between stages that run behind other micro-batches."""
STALLS_FROM_NODES, STALLS_FROM_TENSOR_NODES = 64, 4
"""Nodes of a job, and of one tensor group, from which nanotron's sends stall: 106 of 110 published
runs with stages on 64 nodes, and 81 of 88 with tensor groups over four, on 8 to 64 nodes. *Fitted*;
either model of that sweep alone gives both. Of runs with neither 14 % stall on up to 16 nodes and
half on 32, and nothing of their layout tells which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Where a step's seconds go on the slowest stage; they add up to `step`."""

    gemm: Floats
    attention: Floats
    stream: Floats
    recompute: Floats
    head: Floats
    host: Floats
    """Time beyond the device's own, where launching takes longer."""
    tensor_comms: Floats
    expert_comms: Floats
    context_comms: Floats
    shard_comms: Floats
    """Weights gathered and gradients scattered for each layer, as far as nothing hides them, and
    copied out of and into the buffers for it."""
    pipeline_comms: Floats
    bubble: Floats
    data_comms: Floats
    optimizer: Floats
    offload: Floats
    jitter: Floats

    @property
    def step(self) -> Floats:
        return sum((getattr(self, field.name) for field in fields(self)), start=np.zeros(1))

    @property
    def parts(self) -> dict[str, Floats]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


Layers = dict[str, Floats]
"""All of a model's layers, a micro-batch through each: sums over both kinds, by part of `Times`,
and `forward` and `backward` whole."""


def step_times(
    job: TrainingJob,
    layouts: Layouts,
    rates: Rates,
    head_rates: Rates,
    network: Network,
    parameters: Parameters,
) -> Times:
    model, constants = job.model, job.constants
    layers, head = _per_micro_batch(job, layouts, rates, head_rates, network)
    pp, num_micro = layouts.pp, layouts.num_micro.astype(np.float64)
    per_layer = (layers["forward"] + layers["backward"]) / model.layers
    whole = per_layer * model.layers + head
    worst, head_there = _worst_stage(job, layouts, per_layer, head)
    layers_there = worst - head_there
    share = layers_there / (per_layer * model.layers)
    sends = _sends(job, layouts, network)
    virtual = np.where(layouts.schedule == 0, layouts.vpp, 1)
    bubble_share = np.choose(layouts.schedule, (1.0, 1.0, 1 / 3, 0.0, 0.0))
    rest = np.maximum(whole + (pp - 1) * sends - worst, 0.0)
    bubble = np.where(pp > 1, rest * bubble_share / virtual, 0.0)
    zero = np.zeros(len(layouts))
    data = optimizer = accumulate = zero
    if not job.is_adapter:
        hides = (layers["forward"] * share, layers["backward"] * share)
        data = _data_comms(job, layouts, network, parameters, hides)
        if job.compression is not None:
            data = data + _compressing_s(job, layouts, rates, parameters)
        optimizer, accumulate = _optimizer(job, layouts, rates, parameters)
    offload = _offload(job, layouts, parameters, layers_there * num_micro)
    # Stages may keep what they gathered, and scatter it once.
    gathers = np.where((pp > 1) & job.framework.keeps_gathered_stages, 1.0, num_micro)
    repeated = ("gemm", "attention", "recompute", "host")
    comms = ("tensor_comms", "expert_comms", "context_comms")
    times = Times(
        **{name: layers[name] * share * num_micro for name in (*repeated, *comms)},
        stream=layers["stream"] * share * num_micro + accumulate,
        head=head_there * num_micro,
        shard_comms=layers["shard_comms"] * share * gathers,
        pipeline_comms=np.where(pp > 1, sends * virtual * num_micro, 0.0) + stalled_s(job, layouts),
        bubble=bubble,
        data_comms=data,
        optimizer=optimizer,
        offload=offload,
        jitter=zero,
    )
    num_nodes = np.maximum(
        layouts.tp * layouts.cp * layouts.pp * layouts.dp / job.cluster.devices_per_node, 1.0
    )
    jitter = times.step * constants.jitter * np.log2(num_nodes)
    return Times(**{**times.parts, "jitter": jitter})


def _per_micro_batch(
    job: TrainingJob, layouts: Layouts, rates: Rates, head_rates: Rates, network: Network
) -> tuple[Layers, Floats]:
    """A micro-batch through all layers and through the head,
    computed once for all layouts that cut a layer alike."""
    if len(layouts) <= FEW:
        return _layers(job, layouts, rates, network), _head(job, layouts, head_rates)
    is_spread = layouts.zero_stage == 3
    is_kept = (layouts.zero_stage == 2) & job.framework.gathers_each
    is_far = has_far_stages(job, layouts) & (job.framework.staged_collective_s > 0)
    first, index = alike(
        layouts.tp, layouts.cp, layouts.ep, layouts.micro_batch, is_far.astype(np.int64),
        has_work_beside(job, layouts).astype(np.int64),
        np.where(is_spread | is_kept, layouts.shard_width + 1, 0), is_kept.astype(np.int64),
        layouts.recompute * 4 + layouts.is_sequence_parallel * 2 + layouts.is_flash,
        layouts.recompute_layers, np.where(layouts.recompute_layers > 0, layouts.pp, 0),
        np.where(layouts.recompute_layers > 0, layouts.vpp, 0),
    )  # fmt: skip
    some = layouts.take(first)
    layers = _layers(job, some, rates, network)
    spread = {name: sums[index] for name, sums in layers.items()}
    return spread, _head(job, some, head_rates)[index]


def _worst_stage(
    job: TrainingJob, layouts: Layouts, per_layer: Floats, head: Floats
) -> tuple[Floats, Floats]:
    """Seconds of the slowest stage for a micro-batch, and how much of that is the head."""
    num, pp = job.model.layers, layouts.pp
    most = np.ceil(num / pp)
    even = most * per_layer + head
    if not job.framework.balances_stages:
        # Where layers do not come out even, the last stage has what is left.
        end = np.maximum(num - most * (pp - 1), 0) * per_layer + head
        return np.maximum(end, most * per_layer), np.where(end >= most * per_layer, head, 0.0)
    # The last piece gives layers away until its stage is no slower than the others, or has none
    # left.
    best, best_head = even, head
    keeps, vpp = is_even(job, layouts), layouts.vpp
    pieces = pp * vpp
    wanted = (num - (pieces - 1) * head / per_layer) / pieces
    for last in (np.floor(wanted), np.ceil(wanted)):
        num_last = np.clip(last, 0, np.ceil(num / pieces))
        each = np.ceil((num - num_last) / np.maximum(pieces - 1, 1))
        others = vpp * each * per_layer
        end = ((vpp - 1) * each + num_last) * per_layer + head
        slowest = np.where(keeps, even, np.maximum(others, end))
        is_better = slowest < best
        best = np.where(is_better, slowest, best)
        best_head = np.where(is_better, np.where(end >= others, head, 0.0), best_head)
    return best, best_head


def _layers(job: TrainingJob, layouts: Layouts, rates: Rates, network: Network) -> Layers:
    model, overlap = job.model, job.constants.overlap
    sums: Layers = {}
    kinds = ((model.layers - model.num_mixture_layers, False), (model.num_mixture_layers, True))
    for num, is_mixture in kinds:
        if num == 0:
            continue
        layer: LayerTime = layer_time(job, layouts, rates, network, is_mixture=is_mixture)
        hidden_forward = overlap * layer.forward.device
        hidden_backward = overlap * (layer.backward.device + layer.again_s)
        forward_gather = _exposed(job, layer.gather_s, hidden_forward)
        backward_gather = _exposed(job, layer.gather_s + layer.scatter_s, hidden_backward)
        forward_host = layer.forward.unhidden_s(job.framework)
        backward_host = layer.backward.unhidden_s(job.framework)
        experts_forward, experts_backward = _expert_comms(job, layouts, layer)
        parts = {
            "gemm": layer.forward.gemm + layer.backward.gemm,
            "attention": layer.forward.attention + layer.backward.attention,
            "stream": layer.forward.stream + layer.backward.stream,
            "tensor_comms": layer.forward.tensor_comms + layer.backward.tensor_comms,
            "expert_comms": experts_forward + experts_backward,
            "context_comms": layer.forward.context_comms + layer.backward.context_comms,
            "recompute": layer.again_s,
            "host": forward_host + backward_host,
            "shard_comms": forward_gather + backward_gather + layer.copy_s,
        }
        parts["forward"] = (
            layer.forward.device
            + layer.forward.tensor_comms
            + experts_forward
            + layer.forward.context_comms
            + forward_host
            + forward_gather
            + layer.copy_s / 3
        )
        parts["backward"] = (
            sum(parts[name] for name in list(parts) if name != "forward") - parts["forward"]
        )
        for name, value in parts.items():
            sums[name] = sums.get(name, np.zeros(len(layouts))) + num * value
    return sums


def has_work_beside(job: TrainingJob, layouts: Layouts) -> Floats:
    """Where the way to experts and back can run behind another micro-batch's work."""
    if not job.framework.overlaps_experts:
        return np.zeros(len(layouts), dtype=bool)
    is_apart = (layouts.pp == 1) | (layouts.vpp > 1)
    return np.asarray(is_apart & (layouts.recompute < 2) & (layouts.num_micro > 1))


def _expert_comms(job: TrainingJob, layouts: Layouts, layer: LayerTime) -> tuple[Floats, Floats]:
    """Time of tokens' ways to experts and back that is not behind another micro-batch's work,
    forward and backward: one's forward runs beside another's backward."""
    forward, backward = layer.forward.expert_comms, layer.backward.expert_comms
    is_behind = has_work_beside(job, layouts)
    if not is_behind.any():
        return forward, backward
    whole = forward + backward
    work = job.constants.overlap * (layer.forward.device + layer.backward.device)
    share = np.where(is_behind & (whole > 0), _exposed(job, whole, work) / whole, 1.0)
    return forward * share, backward * share


def _exposed(job: TrainingJob, transfer_s: Floats, hides_s: Any, least_s: Any = 0.0) -> Floats:
    """What a transfer adds to the work that it runs behind: what of it is left over, and how much
    longer that work takes meanwhile."""
    left_s = np.maximum(transfer_s - hides_s, least_s)
    return np.asarray(left_s + job.constants.contention * (transfer_s - left_s))


def _head(job: TrainingJob, layouts: Layouts, rates: Rates) -> Floats:
    """The output head, the loss and the embedding, both ways."""
    model = job.model
    tokens = layouts.micro_batch * job.seq_len // layouts.cp
    vocab = head_rows(job, layouts)
    products = rates.gemm_s(tokens, vocab, model.hidden) + rates.gemm_s(tokens, model.hidden, vocab)
    if not job.is_adapter:
        products = products + rates.gemm_s(model.hidden, vocab, tokens)
    return products + rates.stream_s(
        tokens * vocab * job.framework.logit_passes + tokens * model.hidden * job.value_bytes * 8.0
    )


def _sends(job: TrainingJob, layouts: Layouts, network: Network) -> Floats:
    """A micro-batch handed on to the next stage, and its gradient back."""
    tokens = layouts.micro_batch * job.seq_len / layouts.cp
    size = tokens * job.model.hidden * job.value_bytes
    if job.framework.scatters_sends:
        size = size / layouts.tp
    stride = layouts.tp * layouts.cp * layouts.dp
    wire = 2 * network.send_s(stride, layouts.pp, size)
    host = 2 * job.constants.host_send_s
    framework = job.framework
    is_behind = framework.overlaps_pipeline | (framework.overlaps_interleaved & (layouts.vpp > 1))
    return np.asarray(np.where(is_behind, UNHIDDEN_SENDS * wire, wire) + host)


def has_stalled_sends(job: TrainingJob, layouts: Layouts) -> Floats:
    """Where a framework whose sends can stall has most of its published runs do so."""
    if not job.framework.stalled_send_s:
        return np.zeros(len(layouts), dtype=bool)
    per_node = job.cluster.devices_per_node
    num_ranks = layouts.tp * layouts.cp * layouts.dp * layouts.pp
    is_large = num_ranks >= STALLS_FROM_NODES * per_node
    is_wide = layouts.tp >= STALLS_FROM_TENSOR_NODES * per_node
    return np.asarray((layouts.pp > 1) & (is_large | is_wide))


def stalled_s(job: TrainingJob, layouts: Layouts) -> Floats:
    """What sends that stall take of a step. A stage in the middle has four for a micro-batch, the
    first and the last two; the first micro-batch goes through all stages and back."""
    own = np.where(layouts.pp > 2, 4, 2)
    sends = own * (layouts.num_micro - 1) + 2 * (layouts.pp - 1)
    return np.where(has_stalled_sends(job, layouts), sends * job.framework.stalled_send_s, 0.0)


def _data_comms(
    job: TrainingJob,
    layouts: Layouts,
    network: Network,
    parameters: Parameters,
    hides: tuple[Floats, Floats],
) -> Floats:
    """Gradients over the data ranks, and weights back where each updates only its part.

    `hides` are the forward and the backward of a micro-batch on this stage: gradients go behind the
    last backward, weights behind the first forward, where the framework lets them.
    """
    framework = job.framework
    out, back = _data_wire(job, layouts, network, parameters)
    is_behind = framework.overlaps_data | (framework.overlaps_reduced & (layouts.zero_stage == 0))
    if framework.reduces_late:
        is_behind = is_behind & (layouts.zero_stage > 0)
    buckets = np.maximum(job.model.layers / layouts.pp, 1.0)
    forward_s, backward_s = (job.constants.overlap * seconds for seconds in hides)
    backward_s = backward_s * np.where(layouts.zero_stage == 2, layouts.num_micro, 1)
    out = np.where(is_behind, _exposed(job, out, backward_s, out / buckets), out)
    # Weights that each micro-batch gathers come behind its own forward.
    times = np.where((layouts.zero_stage == 2) & framework.gathers_each, layouts.num_micro, 1)
    back, forward_s = back * times, forward_s * times
    back = np.where(is_behind, _exposed(job, back, forward_s, back / buckets), back)
    return np.asarray(out + back)


def _data_wire(
    job: TrainingJob, layouts: Layouts, network: Network, parameters: Parameters
) -> tuple[Floats, Floats]:
    """What goes out and comes back over the data ranks, nothing hidden; computed once for all
    layouts that send alike."""
    if len(layouts) <= FEW:
        return _data_wire_each(job, layouts, network, parameters)
    first, index = alike(
        layouts.tp, layouts.cp, layouts.ep, layouts.pp, layouts.dp,
        layouts.shard_width, layouts.zero_stage,
        np.where(layouts.zero_stage == 2, layouts.num_micro, 1),
        parameters.layers.astype(np.int64),
    )  # fmt: skip
    out, back = _data_wire_each(job, layouts.take(first), network, parameters.take(first))
    return out[index], back[index]


def _data_wire_each(
    job: TrainingJob, layouts: Layouts, network: Network, parameters: Parameters
) -> tuple[Floats, Floats]:
    framework = job.framework
    copies = layouts.dp * layouts.cp
    out: Any = 0.0
    back: Any = 0.0
    for params, group in (
        (parameters.dense, Group(copies, layouts.tp)),
        (parameters.routed, Group(np.maximum(copies // layouts.ep, 1), layouts.tp * layouts.ep)),
    ):
        grads, weights = params * framework.comm_grad_bytes, params * framework.weight_bytes
        whole = network.reduce_s(group, grads, np.ceil(grads / BUCKET_BYTES))
        if job.compression is not None:
            whole = exchange_s(job.compression, job.model, network, group, params, BUCKET_BYTES)
        split = network.gather_s(group, grads, np.ceil(grads / BUCKET_BYTES))
        # Shards of gradients (ZeRO-2) are filled after every micro-batch, not only the last.
        split = split * np.where(layouts.zero_stage == 2, layouts.num_micro, 1)
        out = out + np.where(layouts.zero_stage == 0, whole, split)
        back = back + np.where(
            layouts.zero_stage == 0,
            0.0,
            network.gather_s(group, weights, np.ceil(weights / BUCKET_BYTES)),
        )
    # Copies of sharded weights (HSDP) reduce what each holds.
    width = layouts.shard_width
    replicas = Group(np.maximum(copies // width, 1), layouts.tp * width)
    between = network.reduce_s(replicas, parameters.dense / width * framework.comm_grad_bytes)
    spread = np.maximum(width // layouts.ep, 1)
    copied = Group(np.maximum(copies // layouts.ep // spread, 1), layouts.tp * layouts.ep * spread)
    between = between + network.reduce_s(
        copied, parameters.routed / spread * framework.comm_grad_bytes
    )
    return (
        np.asarray(np.where(layouts.zero_stage == 3, between, out)),
        np.asarray(np.where(layouts.zero_stage == 3, 0.0, back)),
    )


def _compressing_s(
    job: TrainingJob, layouts: Layouts, rates: Rates, parameters: Parameters
) -> Floats:
    """What makes gradients smaller and whole again, which nothing hides."""
    assert job.compression is not None
    copies, local = layouts.dp * layouts.cp, parameters.dense + parameters.routed
    made = rates.stream_s(local * passed_bytes(job.compression, copies))
    return np.where((copies > 1) & (layouts.zero_stage == 0), made, 0.0)


def _optimizer(
    job: TrainingJob, layouts: Layouts, rates: Rates, parameters: Parameters
) -> tuple[Floats, Floats]:
    """The update, and gradients added up where products do not do it themselves."""
    framework = job.framework
    local = parameters.dense + parameters.routed
    shard = np.where(
        layouts.zero_stage >= 1, shared_out(parameters, layouts, layouts.shard_width), local
    )
    update = rates.stream_s(
        shard * job.optimizer.update_bytes * (1.0 if framework.has_fused_update else UNFUSED_UPDATE)
    )
    if framework.trains_narrow and job.value_bytes < 4:
        update = np.where(layouts.zero_stage >= 2, update / 2, update)
    if job.optimizer.products:
        hidden = job.model.hidden
        update = update + job.optimizer.products * shard / hidden**2 * rates.gemm_s(
            hidden, hidden, hidden
        )
    norm = rates.stream_s((shard if framework.fuses else local) * framework.grad_bytes)
    grad_bytes = (
        0.0 if framework.accumulates_fused else 2 * framework.grad_bytes + framework.weight_bytes
    )
    is_spread = layouts.zero_stage == 3
    accumulate = np.where(is_spread, 0.0, rates.stream_s(local * grad_bytes) * layouts.num_micro)
    return np.where(layouts.offload >= 1, 0.0, update + norm), accumulate


def _offload(
    job: TrainingJob, layouts: Layouts, parameters: Parameters, compute_s: Floats
) -> Floats:
    """Gradients out, the update on the host, weights back.

    Weights too, for each pass, where they live on the host.
    """
    cluster = job.cluster
    local = parameters.dense + parameters.routed
    shard = np.where(
        layouts.zero_stage >= 1, shared_out(parameters, layouts, layouts.shard_width), local
    )
    if job.is_adapter:
        shard = np.zeros(len(layouts))
    framework, num_micro = job.framework, layouts.num_micro
    hides_s = job.constants.overlap * compute_s
    grads_s = shard * min(framework.weight_bytes, framework.grad_bytes) / cluster.host_bytes_per_s
    if framework.frees_offloaded:
        # Of each micro-batch, behind its backward, which is two thirds of the work.
        leave = (layouts.zero_stage >= 2) | (layouts.shard_width == 1)
        behind_s = np.maximum(grads_s * num_micro - hides_s * 2 / 3, 0.0)
        grads_s = np.where(leave, behind_s, grads_s)
    is_all_out = layouts.offload >= OFFLOAD.index("all")
    back_s = np.where(is_all_out, 0.0, shard * framework.weight_bytes / cluster.host_bytes_per_s)
    update = shard * cluster.devices_per_node * job.optimizer.update_bytes / HOST_ADAM_BYTES_PER_S
    needed = np.where(
        layouts.zero_stage == 3, shared_out(parameters, layouts, layouts.shard_width), local
    )
    # Whole where it is sharded: in the width that the host keeps it.
    each = np.where(layouts.zero_stage == 3, sharded_weight_bytes(job), job.value_bytes)
    moved = 2 * needed * each * num_micro
    weights = moved / cluster.host_bytes_per_s
    is_on_disk = layouts.offload == OFFLOAD.index("nvme")
    if is_on_disk.any():
        # Copy and moments are read and written, weights written once and read for each pass, by all
        # devices of a node.
        states = 0.0 if job.is_adapter else 2 * (framework.copy_bytes + job.optimizer.moment_bytes)
        disk = cluster.disk_bytes_per_s / cluster.devices_per_node
        update = np.where(is_on_disk, np.maximum(update, shard * (states + each) / disk), update)
        weights = np.where(is_on_disk, np.maximum(weights, moved / disk), weights)
    weights = np.where(is_all_out, np.maximum(weights - hides_s, 0.0), 0.0)
    return np.where(layouts.offload >= 1, grads_s + back_s + update + weights, 0.0)


assert SCHEDULES[:2] == ("1f1b", "gpipe")
