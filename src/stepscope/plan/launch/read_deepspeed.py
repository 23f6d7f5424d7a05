"""A DeepSpeed configuration: ds_config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepscope.plan.launch.settings import MAX_COUNT, Counts, Settings
from stepscope.protocol.untrusted import as_object, whole

KEYS = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "zero_optimization",
    "bf16",
    "bfloat16",
    "fp16",
)
"""One of them makes a JSON object a DeepSpeed configuration."""
MAX_BUCKET = 10**13
DEFAULT_BUCKET = 500_000_000
"""Elements, where the file does not say (deepspeed/runtime/zero/config.py)."""
BATCHES = Counts(names=KEYS[:3], besides=(None, "auto"))
STAGE = Counts(names=("stage",), low=0, high=3, besides=(None, "auto"))
BUCKETS = Counts(names=("reduce_bucket_size",), high=MAX_BUCKET, besides=(None, "auto"))
OPTIMIZERS = {
    "adam": "adam", "adamw": "adam", "onebitadam": "adam", "sgd": "sgd", "lion": "lion",
    "muon": "muon",
}  # fmt: skip


def is_deepspeed(config: Mapping[str, Any]) -> bool:
    return any(key in config for key in KEYS)


def read_deepspeed(config: Mapping[str, Any], where: str) -> Settings:
    """What it says; "auto" is what the trainer fills in, so not said here."""
    zero = _zero(config)
    stage = whole(zero.get("stage"), 0, 3) or 0
    notes = [
        f"{key} is auto: the trainer fills it in" for key in KEYS[:3] if config.get(key) == "auto"
    ]
    bucket = whole(zero.get("reduce_bucket_size"), 1, MAX_BUCKET)
    if bucket is None and stage and "reduce_bucket_size" not in zero:
        bucket = DEFAULT_BUCKET
    tensor = as_object(config.get("tensor_parallel"))
    return Settings(
        kind="deepspeed",
        where=where,
        framework="deepspeed",
        global_batch=whole(config.get("train_batch_size"), 1, MAX_COUNT),
        micro_batch=whole(config.get("train_micro_batch_size_per_gpu"), 1, MAX_COUNT),
        accumulation=whole(config.get("gradient_accumulation_steps"), 1, MAX_COUNT),
        tp=whole(tensor.get("autotp_size"), 1, MAX_COUNT) or 1,
        zero_stage=stage,
        shard=whole(zero.get("mics_shard_size"), 1, MAX_COUNT) or 0,
        offload=_offload(zero),
        precision=_precision(config),
        recompute="full" if _is_recomputed(config) else "none",
        recompute_layers=_recompute_layers(config),
        optimizer=_optimizer(config),
        grads=_grads(config),
        overlaps_data=_overlap(zero, stage),
        bucket_elements=bucket,
        refused=tuple(_refused(config, zero)),
        notes=tuple(notes),
    )


def _zero(config: Mapping[str, Any]) -> Mapping[str, Any]:
    given = config.get("zero_optimization")
    # As it was written before stages had numbers.
    return {"stage": 1} if given is True else as_object(given)


def _refused(config: Mapping[str, Any], zero: Mapping[str, Any]) -> list[str]:
    given = config.get("zero_optimization")
    what = "zero_optimization is no object with named fields"
    wrong = [] if given is None or isinstance(given, (dict, bool)) else [what]
    return [*BATCHES.refused(config), *wrong, *STAGE.refused(zero), *BUCKETS.refused(zero)]


def _precision(config: Mapping[str, Any]) -> str | None:
    for name, key in (("bf16", "bf16"), ("bf16", "bfloat16"), ("fp16", "fp16")):
        enabled = as_object(config.get(key)).get("enabled")
        if enabled is True:
            return name
        if enabled == "auto":
            return None
    return "fp32"


def _offload(zero: Mapping[str, Any]) -> str:
    def is_off(key: str, kinds: tuple[str, ...] = ("cpu", "nvme")) -> bool:
        return as_object(zero.get(key)).get("device") in kinds

    if is_off("offload_param", ("nvme",)):
        return "nvme"

    if is_off("offload_param"):
        return "all"
    return "optimizer" if is_off("offload_optimizer") or zero.get("cpu_offload") is True else "none"


def _optimizer(config: Mapping[str, Any]) -> str | None:
    given = as_object(config.get("optimizer"))
    kind = given.get("type")
    name = OPTIMIZERS.get(kind.casefold()) if isinstance(kind, str) else None
    return "momentum" if name == "sgd" and as_object(given.get("params")).get("momentum") else name


def _grads(config: Mapping[str, Any]) -> str | None:
    given = as_object(config.get("data_types")).get("grad_accum_dtype")
    return {"fp32": "fp32", "float32": "fp32", "bf16": "bf16", "bfloat16": "bf16"}.get(str(given))


def _is_recomputed(config: Mapping[str, Any]) -> bool:
    return isinstance(config.get("activation_checkpointing"), dict)


def _recompute_layers(config: Mapping[str, Any]) -> int:
    """The checkpoints that it counts."""
    given = as_object(config.get("activation_checkpointing")).get("number_checkpoints")
    return whole(given, 1, MAX_COUNT) or 0


def _overlap(zero: Mapping[str, Any], stage: int) -> bool | None:
    given = zero.get("overlap_comm")
    if isinstance(given, bool):
        return given
    # DeepSpeed's own default: on under ZeRO-3, off below.
    return stage == 3 if stage and given is None else None
