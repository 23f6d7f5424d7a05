"""The settings of a training script, as `--emit torchrun`, `fsdp2` and `accelerate` write them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import ValidationError, convert

from stepscope.plan.framework import find_framework
from stepscope.plan.job import OPTIMIZERS, PRECISIONS
from stepscope.plan.launch.settings import MAX_COUNT, Counts, Settings
from stepscope.plan.layout import OFFLOAD, RECOMPUTE, Layout
from stepscope.plan.model import Model
from stepscope.protocol.untrusted import as_object, whole

LAUNCHERS = {"ddp": "ddp", "fsdp2": "fsdp", "accelerate": "fsdp"}
"""Each with the framework whose conventions hold where the file names none."""
SIZES = Counts(names=("seq_len", "global_batch", "micro_batch", "num_micro"))
STAGE = Counts(names=("zero_stage",), low=0, high=3)


def is_layout(config: Mapping[str, Any]) -> bool:
    return config.get("launcher") in LAUNCHERS and "model" in config


def read_layout(config: Mapping[str, Any], where: str) -> Settings:
    model = _model(as_object(config.get("model")))
    named = find_framework(str(config.get("framework")))
    return Settings(
        kind="torch",
        where=where,
        framework=LAUNCHERS[str(config["launcher"])] if named is None else named.name,
        model=model,
        seq_len=whole(config.get("seq_len"), 1, MAX_COUNT),
        global_batch=whole(config.get("global_batch"), 1, MAX_COUNT),
        micro_batch=whole(config.get("micro_batch"), 1, MAX_COUNT),
        accumulation=whole(config.get("num_micro"), 1, MAX_COUNT),
        layout=Layout(
            zero_stage=whole(config.get("zero_stage"), 0, 3) or 0,
            shard=whole(config.get("shard"), 0, MAX_COUNT) or 0,
            recompute=_word(config, "recompute", RECOMPUTE),
            recompute_layers=whole(config.get("recompute_layers"), 0, MAX_COUNT) or 0,
            recompute_every=whole(config.get("recompute_every"), 1, MAX_COUNT) or 1,
            offload=_word(config, "offload", OFFLOAD),
        ),
        grads="bf16" if config.get("weights") == "bf16" else None,
        precision=_word(config, "precision", ("bf16", *PRECISIONS)),
        optimizer=_word(config, "optimizer", tuple(OPTIMIZERS)),
        refused=(*SIZES.refused(config), *STAGE.refused(config)),
        notes=() if model else ("the model's shape could not be read: give --model",),
    )


def _word(config: Mapping[str, Any], name: str, known: tuple[str, ...]) -> str:
    """What is written where it is known, else the first of what is."""
    value = config.get(name)
    return value if isinstance(value, str) and value in known else known[0]


def _model(shape: Mapping[str, Any]) -> Model | None:
    numbers = [value for value in shape.values() if not isinstance(value, bool)]
    if not all(isinstance(value, int) and 0 <= value <= MAX_COUNT for value in numbers):
        return None
    try:
        model = convert({**shape, "name": "layout", "source": "the layout"}, Model)
    except ValidationError:
        return None
    sizes = (model.layers, model.hidden, model.heads, model.kv_heads, model.head_dim, model.vocab)
    return model if min(sizes) >= 1 and model.ffn_hidden >= 1 else None
