"""How many parameters one device holds, where it holds most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from stepscope.planner.job import TrainingJob
from stepscope.planner.layout import Layouts
from stepscope.planner.rates import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """Of one device, of all data ranks' shards together."""

    dense: Floats
    """Those that every data rank has."""
    routed: Floats
    """Those of routed experts, which ranks share out."""
    largest_layer: Floats
    """Of one layer, whole over its data ranks."""
    outer: Floats
    """Of embedding or head, in `dense` too."""


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
    active = (model.active_params - model.embedding_params - model.head_params) / model.layers
    head = model.vocab * model.hidden / active
    return np.where(
        layouts.pp == 1, model.layers, np.ceil((model.layers + head) / layouts.pp - 1e-9)
    )


def parameters(job: TrainingJob, layouts: Layouts) -> Parameters:
    model = job.model
    in_stage = fullest_stage(job, layouts)
    mixtures = in_stage * model.num_mixture_layers / model.layers
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
        largest_layer=largest / layouts.tp,
        outer=ends / layouts.tp,
    )
