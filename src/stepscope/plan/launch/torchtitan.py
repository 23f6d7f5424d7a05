"""torchtitan: flags of its command line (0.3), and the TOML file of the versions before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepscope.plan.catalog import find_model
from stepscope.plan.contract.launch import LaunchFile
from stepscope.plan.estimate import Choice
from stepscope.plan.job import TrainingJob
from stepscope.plan.launch.files import Launch, about, refuse, shell_file, torchrun_line
from stepscope.plan.launch.settings import MAX_COUNT, Counts, Settings
from stepscope.plan.layout import Layout
from stepscope.protocol.untrusted import as_object, whole

CONFIG = "train.toml"
MODELS = {
    "llama3-8b": ("llama3", "llama3_8b", "8B"),
    "llama3-70b": ("llama3", "llama3_70b", "70B"),
    "llama3-405b": ("llama3", "llama3_405b", "405B"),
    "qwen3-0.6b": ("qwen3", "qwen3_0_6b", "0.6B"),
    "qwen3-1.7b": ("qwen3", "qwen3_1_7b", "1.7B"),
    "qwen3-14b": ("qwen3", "qwen3_14b", "14B"),
    "qwen3-32b": ("qwen3", "qwen3_32b", "32B"),
    "qwen3-30b-a3b": ("qwen3", "qwen3_30b_a3b", "30B-A3B"),
    "deepseek-v3": ("deepseek_v3", "deepseek_v3_671b", "671B"),
}
"""Models of its own: module, configuration (0.3), flavor (before)."""
SCHEDULES = {
    "1f1b": "1F1B",
    "gpipe": "GPipe",
    "zbv": "ZBVZeroBubble",
}
NOTE = (
    f"launch.sh is for torchtitan 0.3; versions before read {CONFIG} (--job.config_file {CONFIG})"
)
Table = dict[str, dict[str, object]]


def torchtitan(job: TrainingJob, choice: Choice) -> Launch:
    """One of its own models, cut as planned."""
    layout = choice.layout
    refuse("torchtitan", layout, _reasons(job, layout))
    module, config, _ = MODELS[job.model.name]
    tables = settings(job, layout)
    words = [f"--module {module}", f"--config {config}"]
    for section in ("training", "parallelism"):
        words += [
            f"--{section}.{key}" if value is True else f"--{section}.{key} {value}"
            for key, value in tables[section].items()
        ]
    if layout.pp > 1 or layout.ep > 1:
        # It captures steps as graphs unless told not to, and cannot with either.
        words.append("--training.disable_cuda_graphs")
    words.append(f"activation-checkpoint:{layout.recompute}")
    line = torchrun_line(job.cluster, "-m", ("torchtitan.train", *words))
    return Launch(
        target="torchtitan",
        layout=str(layout),
        command=line,
        files=(
            shell_file(job, layout, [line]),
            LaunchFile(name=CONFIG, text=toml_text(job, layout)),
        ),
        notes=(NOTE,),
    )


def _reasons(job: TrainingJob, layout: Layout) -> list[str]:
    reasons = []
    if layout.zero_stage not in (0, 2, 3):
        reasons.append(f"data ranks share all states (z3, z2) or none, not z{layout.zero_stage}")
    if layout.zero_stage == 0 and layout.cp > 1:
        reasons.append("context ranks share weights by themselves: z3")
    if layout.shard % layout.cp or layout.shard > layout.dp * layout.cp:
        reasons.append(f"{layout.cp} context ranks belong to one copy, not to {layout.shard} ranks")
    if layout.zero_stage == 2 and layout.pp > 1:
        reasons.append("under a pipeline weights stay gathered as it is: z3")
    if layout.schedule not in SCHEDULES:
        reasons.append(f"{layout.schedule} is not among its schedules: {', '.join(SCHEDULES)}")
    if layout.tp > 1 and not layout.is_sequence_parallel:
        reasons.append("its tensor ranks share the sequence too: sp belongs in the layout")
    if layout.recompute_every > 1:
        reasons.append("it has a checkpoint for each layer")
    if layout.recompute_layers:
        reasons.append("its full recompute is of every layer, not of some")
    if layout.offload == "all" and layout.zero_stage == 0:
        reasons.append("what it offloads goes through FSDP (z3)")
    if layout.offload in ("optimizer", "nvme"):
        reasons.append("it offloads all states or none")
    if not layout.is_flash:
        reasons.append("PyTorch chooses its attention kernel (leave out no-flash)")
    if layout.vpp > 1 and job.model.layers % (layout.pp * layout.vpp):
        reasons.append(f"{job.model.layers} layers do not divide into pieces of v{layout.vpp}")
    return reasons + lacking(job)


def lacking(job: TrainingJob) -> list[str]:
    """What no layout of the job changes."""
    reasons = []
    if job.model.name not in MODELS:
        reasons.append(f"it has no {job.model.name}; of ours it has {', '.join(MODELS)}")
    if job.precision != "bf16":
        reasons.append(f"{job.precision} needs converters that are not written here; bf16 is")
    if job.optimizer.name != "adam":
        reasons.append(f"its optimizer is AdamW, not {job.optimizer.name}")
    if job.is_adapter:
        reasons.append("adapters are not written here")
    return reasons


def settings(job: TrainingJob, layout: Layout) -> Table:
    """Sections and keys that both forms have."""
    shard, replicate = _widths(layout)
    parallelism: dict[str, object] = {
        "data_parallel_replicate_degree": replicate,
        "data_parallel_shard_degree": shard,
        "tensor_parallel_degree": layout.tp,
        "context_parallel_degree": layout.cp,
        "pipeline_parallel_degree": layout.pp,
    }
    if layout.ep > 1:
        parallelism["expert_parallel_degree"] = layout.ep
    if layout.zero_stage == 2:
        parallelism["fsdp_reshard_after_forward"] = "never"
    local = layout.micro_batch
    if layout.pp > 1:
        # A pipeline takes all micro-batches of a step at once.
        local = layout.micro_batch * layout.num_micro
        name = SCHEDULES[layout.schedule]
        if layout.vpp > 1:
            name = "Interleaved1F1B"
            per_stage = job.model.layers // (layout.pp * layout.vpp)
            parallelism["pipeline_parallel_layers_per_stage"] = per_stage
            parallelism["pipeline_parallel_first_stage_less_layers"] = 0
            parallelism["pipeline_parallel_last_stage_less_layers"] = 0
        parallelism["pipeline_parallel_schedule"] = name
        parallelism["pipeline_parallel_microbatch_size"] = layout.micro_batch
    return {
        "training": {
            "local_batch_size": local,
            "global_batch_size": job.global_batch,
            "seq_len": job.seq_len,
            **({"dtype": "bfloat16"} if job.framework.trains_narrow else {}),
            **({"enable_cpu_offload": True} if layout.offload == "all" else {}),
        },
        "parallelism": parallelism,
    }


def _widths(layout: Layout) -> tuple[int, int]:
    """Ranks that share one copy, and copies. Context ranks share weights by themselves there."""
    if layout.zero_stage == 0:
        return 1, layout.dp
    copies = layout.dp * layout.cp
    if 0 < layout.shard < copies and layout.shard >= layout.cp:
        return layout.shard // layout.cp, copies // layout.shard
    return layout.dp, 1


def toml_text(job: TrainingJob, layout: Layout) -> str:
    module, _, flavor = MODELS[job.model.name]
    tables: Table = {
        "model": {"name": module, "flavor": flavor},
        **settings(job, layout),
        "activation_checkpoint": {
            "mode": layout.recompute,
            **({"selective_ac_option": "op"} if layout.recompute == "selective" else {}),
        },
    }
    lines = about(job, layout)
    for section, values in tables.items():
        lines += ["", f"[{section}]", *(f"{key} = {_toml(value)}" for key, value in values.items())]
    return "\n".join([*lines, ""])


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


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
        layout=Layout(
            tp=_degree(cuts, "tensor_parallel_degree"),
            pp=pp,
            vpp=vpp,
            cp=_degree(cuts, "context_parallel_degree"),
            ep=_degree(cuts, "expert_parallel_degree"),
            zero_stage=_zero_stage(cuts, shard, pp),
            is_sequence_parallel=_degree(cuts, "tensor_parallel_degree") > 1,
            recompute=_recompute(tables),
            schedule=schedule,
            offload="all" if training.get("enable_cpu_offload") is True else "none",
        ),
        copies=copies,
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
