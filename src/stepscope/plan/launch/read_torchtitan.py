"""A torchtitan configuration: train.toml, or the flags of its command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepscope.plan.catalog import find_model
from stepscope.plan.launch.settings import MAX_COUNT, Counts, Settings
from stepscope.plan.launch.torchtitan import MODELS, SCHEDULES
from stepscope.protocol.untrusted import as_object, whole

SECTIONS = ("parallelism", "training", "activation_checkpoint", "model")
LOOPED = "interleaved1f1b"
DEGREES = Counts(
    names=(
        "tensor_parallel_degree", "pipeline_parallel_degree", "context_parallel_degree",
        "expert_parallel_degree", "data_parallel_replicate_degree",
        "pipeline_parallel_microbatch_size",
    )
)  # fmt: skip
WHOLE = (None, -1)
"""-1 is what is left over, or nothing."""
SHARDS = Counts(names=("data_parallel_shard_degree",), besides=WHOLE)
SIZES = Counts(names=("seq_len", "local_batch_size", "batch_size"))
BATCH = Counts(names=("global_batch_size",), besides=WHOLE)


def is_torchtitan(tables: Mapping[str, Any]) -> bool:
    return any(isinstance(tables.get(name), dict) for name in SECTIONS[:2])


def read_torchtitan(tables: Mapping[str, Any], where: str) -> Settings:
    """What the tables say; what they leave out is torchtitan's default."""
    cuts, training = as_object(tables.get("parallelism")), as_object(tables.get("training"))
    notes: list[str] = []
    shard = whole(cuts.get("data_parallel_shard_degree"), -1, MAX_COUNT)
    copies = whole(cuts.get("data_parallel_replicate_degree"), 1, MAX_COUNT) or 1
    pp = _degree(cuts, "pipeline_parallel_degree")
    local = whole(training.get("local_batch_size", training.get("batch_size")), 1, MAX_COUNT)
    micro, accumulation = local, None
    if pp > 1 and local is not None:
        micro = _degree(cuts, "pipeline_parallel_microbatch_size")
        accumulation, rest = divmod(local, micro)
        if rest:
            notes.append(
                f"local_batch_size {local} is no multiple of pipeline_parallel_microbatch_size "
                f"{micro}: torchtitan refuses it"
            )
    word, model_notes = _model(tables)
    schedule, vpp = _schedule(cuts, word, pp, notes)
    return Settings(
        kind="torchtitan",
        where=where,
        framework="torchtitan",
        model_word=word,
        seq_len=whole(training.get("seq_len"), 1, MAX_COUNT),
        global_batch=whole(training.get("global_batch_size"), 1, MAX_COUNT),
        micro_batch=micro,
        accumulation=accumulation,
        is_repeated=accumulation is not None,
        tp=_degree(cuts, "tensor_parallel_degree"),
        pp=pp,
        vpp=vpp,
        cp=_degree(cuts, "context_parallel_degree"),
        ep=_degree(cuts, "expert_parallel_degree"),
        copies=copies,
        zero_stage=_zero_stage(cuts, shard, pp),
        is_sequence_parallel=_degree(cuts, "tensor_parallel_degree") > 1,
        recompute=_recompute(tables),
        schedule=schedule,
        offload="all" if training.get("enable_cpu_offload") is True else "none",
        precision=_precision(training),
        optimizer="adam",
        grads="bf16" if training.get("dtype") == "bfloat16" else None,
        overlaps_data=True,
        refused=(
            *DEGREES.refused(cuts),
            *SHARDS.refused(cuts),
            *SIZES.refused(training),
            *BATCH.refused(training),
        ),
        notes=(*notes, *model_notes),
    )


def _zero_stage(cuts: Mapping[str, Any], shard: int | None, pp: int) -> int:
    """Weights stay after forward where it says so; under a pipeline they do by themselves."""
    if shard == 1 and _degree(cuts, "context_parallel_degree") == 1:
        return 0
    return 2 if pp == 1 and cuts.get("fsdp_reshard_after_forward") == "never" else 3


def tables_of_flags(flags: Mapping[str, str | bool]) -> dict[str, Any]:
    """`--parallelism.tensor_parallel_degree 4` as the table of a TOML file."""
    tables: dict[str, Any] = {}
    for name, value in flags.items():
        section, _, key = name.partition(".")
        if section in SECTIONS and key:
            number = None if isinstance(value, bool) else _number(value)
            tables.setdefault(section, {})[key] = value if number is None else number
    return tables


def _number(text: str) -> int | None:
    return int(text) if text.lstrip("-").isdecimal() and len(text) < 12 else None


def _degree(cuts: Mapping[str, Any], name: str) -> int:
    return whole(cuts.get(name), 1, MAX_COUNT) or 1


def _recompute(tables: Mapping[str, Any]) -> str:
    mode = as_object(tables.get("activation_checkpoint")).get("mode", "selective")
    return mode if mode in ("none", "full") else "selective"


def _precision(training: Mapping[str, Any]) -> str:
    word = training.get("mixed_precision_param", "bfloat16")
    return "fp32" if word == "float32" and training.get("dtype") != "bfloat16" else "bf16"


def _schedule(
    cuts: Mapping[str, Any], word: str | None, pp: int, notes: list[str]
) -> tuple[str, int]:
    given = str(cuts.get("pipeline_parallel_schedule", "1F1B"))[:40]
    ours = {name.casefold(): word for word, name in SCHEDULES.items()}
    per_stage = whole(cuts.get("pipeline_parallel_layers_per_stage"), 1, MAX_COUNT)
    if given.casefold() == LOOPED and per_stage is not None and word is not None:
        return "1f1b", max(1, find_model(word).layers // (pp * per_stage))
    if given.casefold() == LOOPED:
        notes.append("Interleaved1F1B is planned with two pieces on each stage")
        return "1f1b", 2
    if given.casefold() not in ours:
        notes.append(f"the schedule {given!a} is planned as 1F1B")
    return ours.get(given.casefold(), "1f1b"), 1


def _model(tables: Mapping[str, Any]) -> tuple[str | None, tuple[str, ...]]:
    named = as_object(tables.get("model"))
    wanted = (named.get("name"), named.get("flavor"))
    for word, (module, config, flavor) in MODELS.items():
        if wanted == (module, flavor) or named.get("config") == config:
            return word, ()
    if named.get("name") is None:
        return None, ()
    return None, (f"the model {str(wanted)[:80]} is not a built-in one: give --model",)
