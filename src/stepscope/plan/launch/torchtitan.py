"""torchtitan: flags of its command line (0.3), and the TOML file of the versions before."""

from __future__ import annotations

from collections.abc import Mapping

from stepscope.plan.choice import Choice
from stepscope.plan.contract.launch import LaunchFile
from stepscope.plan.job import TrainingJob
from stepscope.plan.launch.files import Launch, about, refuse, shell_file, torchrun_line
from stepscope.plan.layout import Layout

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
"""Its own models: module, configuration (0.3), flavor (before)."""
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
        "activation_checkpoint": {"mode": layout.recompute, **_selective(layout)},
    }
    lines = about(job, layout)
    for section, values in tables.items():
        lines += ["", f"[{section}]", *(f"{key} = {_toml(value)}" for key, value in values.items())]
    return "\n".join([*lines, ""])


def _selective(layout: Layout) -> Mapping[str, object]:
    return {"selective_ac_option": "op"} if layout.recompute == "selective" else {}


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)
