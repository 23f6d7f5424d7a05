"""How many parameters one device holds, where it holds most."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from stepscope.plan.job import TrainingJob
from stepscope.plan.layout import Layout, Layouts
from stepscope.plan.rates import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """Parameters of one device, of all data ranks' shards together."""

    dense: Floats
    """Parameters that every data rank has."""
    routed: Floats
    """Parameters of routed experts, which ranks share out."""
    largest_layer: Floats
    """Parameters of one layer, whole over its data ranks."""
    outer: Floats
    """Parameters of embedding or head, in `dense` too."""
    layers: Floats
    """Layers of the stage that has most."""

    def take(self, selection: Any) -> Parameters:
        """Parameters of some of the layouts, by index or by mask."""
        return Parameters(
            **{field.name: getattr(self, field.name)[selection] for field in fields(self)}
        )


def head_rows(job: TrainingJob, layouts: Layouts) -> Floats:
    """Tokens of the vocabulary that one tensor rank has.

    Filled up to a multiple of 128 where the framework does so.
    """
    rows = job.model.vocab / layouts.tp
    if job.framework.pads_vocab:
        return np.asarray(np.ceil(rows / 128) * 128)
    return np.asarray(np.floor(rows) if job.framework.drops_rest else np.ceil(rows))


def shared_out(params: Parameters, layouts: Layouts, num_ranks: Floats) -> Floats:
    """Parameters of one device when so many ranks share them.

    An expert's copies are fewer by the expert width.
    """
    experts = np.maximum(num_ranks // layouts.ep, 1)
    return np.asarray(params.dense / num_ranks + params.routed / experts)


def fullest_stage(job: TrainingJob, layouts: Layouts) -> Floats:
    """Layers of the stage that has most.

    Where stages are balanced, the one with the head has fewer and the others more.
    """
    model = job.model
    if not job.framework.balances_stages:
        return np.ceil(model.layers / layouts.pp)
    pieces = layouts.pp * layouts.vpp
    balanced = np.ceil((model.layers + head_layers(job)) / pieces - 1e-9)
    # The head's piece cannot give away more than all of its layers.
    balanced = layouts.vpp * np.minimum(balanced, np.ceil(model.layers / np.maximum(pieces - 1, 1)))
    return np.where(is_even(job, layouts), model.layers // layouts.pp, balanced)


def last_stage(job: TrainingJob, layouts: Layouts, most: Floats) -> Floats:
    """Layers of the stage that has the head, of `most` in any: what the others leave, or what its
    share has room for after the head."""
    model, pp = job.model, layouts.pp
    if not job.framework.balances_stages:
        return np.maximum(model.layers - most * (pp - 1), 0)
    head = head_layers(job)
    room = np.maximum(np.floor((model.layers + head) / pp - head + 1e-9), 0)
    return np.where(is_even(job, layouts), most, room)


def is_even(job: TrainingJob, layouts: Layouts) -> Floats:
    """Where every stage has as many layers, whatever else it has."""
    divides = job.model.layers % (layouts.pp * layouts.vpp) == 0
    divides &= not job.framework.balances_even
    return np.asarray((layouts.pp == 1) | divides)


def interleaves(job: TrainingJob, pp: Any, vpp: Any) -> Any:
    """Where stages can be cut into so many pieces: all of them equal, or, where stages may differ,
    such that the fullest stage has no layer more for it."""
    layers, pieces = job.model.layers, pp * vpp
    fullest = vpp * -(-layers // pieces) == -(-layers // pp)
    # A piece may have the embedding or the loss alone.
    may_differ = job.framework.balances_stages & fullest & (pieces <= layers + 2)
    return (layers % pieces == 0) | may_differ


def layers_by_piece(job: TrainingJob, layout: Layout) -> list[int]:
    """Layers of each piece of the stages in turn: the last one gives some away for the head, then
    the first ones for the embedding."""
    layers, pieces = job.model.layers, layout.pp * layout.vpp
    if layers % pieces == 0 and not job.framework.balances_even:
        return [layers // pieces] * pieces
    head = head_layers(job)
    most = min(math.ceil((layers + head) / pieces - 1e-9), math.ceil(layers / (pieces - 1)))
    last = math.floor((layers + head) / pieces - head + 1e-9)
    last = min(max(last, 0, layers - most * (pieces - 1)), most)
    each, rest = divmod(layers - last, pieces - 1)
    return [each] * (pieces - 1 - rest) + [each + 1] * rest + [last]


def is_selective_cheap(job: TrainingJob) -> bool:
    """Whether selective recomputation leaves out norms' and activations' outputs."""
    return job.framework.selective_is_cheap and job.model.experts is not None


def recomputed_share(job: TrainingJob, layouts: Layouts) -> Floats:
    """Share of a stage's layers that full recomputation repeats."""
    if not layouts.recompute_layers.any():
        return np.ones(len(layouts))
    some = np.minimum(layouts.recompute_layers / fullest_stage(job, layouts), 1.0)
    return np.where(layouts.recompute_layers > 0, some, 1.0)


def can_run(job: TrainingJob, layouts: Layouts) -> Floats:
    """Where every stage has something to do.

    Stages that are filled by cost leave the last ones empty where the head costs more than they
    have room for: of `pp` equal shares it takes `pp` x head / all, and is one block; what follows
    it (a cast, the loss) can start one stage more. An optimizer without parameters is an error.
    Some engines' 1F1B refuses a step that cannot fill the stages before the first backward.
    """
    model, pp = job.model, layouts.pp
    has_layers = pp <= model.layers
    if job.framework.fills_pipeline:
        has_layers = has_layers & (layouts.num_micro >= pp - 1)
    if not job.framework.fills_stages:
        return np.asarray(has_layers)
    head = head_layers(job)
    return np.asarray(has_layers & ((pp == 1) | (pp * head / (model.layers + head) < 3)))


def head_layers(job: TrainingJob) -> float:
    """What the head costs, in layers."""
    model = job.model
    active = (model.active_params - model.embedding_params - model.head_params) / model.layers
    return model.vocab * model.hidden / active


def _mixtures_in_stage(job: TrainingJob, layouts: Layouts, in_stage: Floats) -> Floats:
    """Layers with experts in the stage that has most of them.

    A few layers without come first, so that later stages have experts in every layer; where half of
    all or more have none, they take turns.
    """
    model = job.model
    even = in_stage * model.num_mixture_layers / model.layers
    if 2 * model.num_mixture_layers <= model.layers:
        return even
    return np.where(layouts.pp > 1, np.minimum(in_stage, model.num_mixture_layers), even)


def parameters(job: TrainingJob, layouts: Layouts) -> Parameters:
    model = job.model
    in_stage = fullest_stage(job, layouts)
    mixtures = _mixtures_in_stage(job, layouts, in_stage)
    attention = model.attention_params + model.norm_params
    dense = (
        in_stage * attention
        + (in_stage - mixtures) * model.dense_mlp_params
        + mixtures * model.router_and_shared_params
    )
    # With one stage it has both ends; else the heavier of the first and the last.
    ends = np.where(
        layouts.pp == 1,
        model.embedding_params + model.head_params,
        max(model.embedding_params, model.vocab * model.hidden),
    )
    routed = np.zeros(len(layouts))
    largest: Any = attention + model.dense_mlp_params * (model.num_mixture_layers < model.layers)
    if model.experts is not None:
        routed = mixtures * model.experts.num * model.expert_params / layouts.ep / layouts.tp
        largest = np.maximum(
            largest,
            attention
            + model.router_and_shared_params
            + model.experts.num * model.expert_params / layouts.ep,
        )
    return Parameters(
        dense=(dense + ends) / layouts.tp,
        routed=routed,
        largest_layer=np.broadcast_to(largest / layouts.tp, len(layouts)),
        outer=ends / layouts.tp,
        layers=in_stage,
    )
