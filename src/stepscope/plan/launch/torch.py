"""torchrun: plain data ranks (DDP), or data ranks that share all states (FSDP2), and accelerate's
configuration for either."""

from __future__ import annotations

from typing import Any

from stepscope.plan.contract.launch import LaunchFile
from stepscope.plan.estimate import Choice
from stepscope.plan.job import TrainingJob
from stepscope.plan.launch.files import (
    SCRIPT,
    SETTINGS,
    Launch,
    cuts_beyond_data,
    json_file,
    refuse,
    script_file,
    shell_file,
    torchrun_line,
)
from stepscope.plan.layout import Layout
from stepscope.plan.model import Model, has_windows

ELSEWHERE = "torchtitan and megatron can express such cuts (--emit torchtitan)"
PRECISIONS = {"bf16": "bf16", "fp32": "no", "tf32": "no"}
"""What the script knows, and accelerate's word for it."""
OPTIMIZERS = ("adam", "sgd", "momentum")
CONFIG = "accelerate.yaml"
NOTE = (
    f"{SCRIPT} trains on random tokens; put your model and data into it, or time the layout with "
    "it as it is"
)
SHAPE = (
    "layers", "hidden", "heads", "kv_heads", "head_dim", "ffn_hidden", "vocab", "is_gated",
    "is_tied", "is_causal", "max_positions", "has_qkv_bias", "has_out_bias", "has_mlp_bias",
    "norm_size",
)  # fmt: skip


def torchrun(job: TrainingJob, choice: Choice) -> Launch:
    """Plain data ranks."""
    layout = choice.layout
    reasons = _reasons(job, layout)
    if layout.zero_stage:
        reasons.append(f"z{layout.zero_stage} shares states and DDP shares none (--emit fsdp2)")
    if layout.offload != "none":
        reasons.append("DDP keeps nothing on the host")
    refuse("torchrun", layout, reasons, ELSEWHERE if _is_cut(layout) else "")
    return _launch("torchrun", "ddp", job, choice)


def fsdp2(job: TrainingJob, choice: Choice) -> Launch:
    """Data ranks that share all states, or copies of those (HSDP)."""
    layout = choice.layout
    reasons = _reasons(job, layout) + shard_reasons(layout)
    refuse("fsdp2", layout, reasons, ELSEWHERE if _is_cut(layout) else "")
    return _launch("fsdp2", "fsdp2", job, choice)


def accelerate(job: TrainingJob, choice: Choice) -> Launch:
    """The same by accelerate's own configuration: MULTI_GPU for DDP, FSDP for shards."""
    layout = choice.layout
    reasons = _reasons(job, layout)
    reasons += shard_reasons(layout) if layout.zero_stage else []
    refuse("accelerate", layout, reasons, ELSEWHERE if _is_cut(layout) else "")
    command = f"accelerate launch --config_file {CONFIG} {SCRIPT}"
    lines = [command]
    if job.cluster.num_nodes > 1:
        lines = [
            f"accelerate launch --config_file {CONFIG} \\",
            '  --machine_rank "${NODE_RANK:?set NODE_RANK to this node\'s number from 0}" \\',
            '  --main_process_ip "$MASTER_ADDR" \\',
            '  --main_process_port "${MASTER_PORT:-29500}" \\',
            f"  {SCRIPT}",
        ]
    return Launch(
        target="accelerate",
        layout=str(layout),
        command=command,
        files=(
            LaunchFile(name=CONFIG, text=_yaml(_accelerate_config(job, layout))),
            shell_file(job, layout, lines),
            json_file(SETTINGS, settings(job, choice, "accelerate")),
            script_file(),
        ),
        notes=(NOTE,),
    )


def settings(job: TrainingJob, choice: Choice, launcher: str) -> dict[str, Any]:
    """What the script reads."""
    layout = choice.layout
    return {
        "launcher": launcher,
        "framework": job.framework.name,
        "name": str(layout),
        "model": {name: getattr(job.model, name) for name in SHAPE},
        "seq_len": job.seq_len,
        "global_batch": job.global_batch,
        "micro_batch": layout.micro_batch,
        "num_micro": layout.num_micro,
        "zero_stage": layout.zero_stage,
        "shard": layout.shard,
        "recompute": layout.recompute,
        "recompute_layers": layout.recompute_layers,
        "recompute_every": layout.recompute_every,
        "offload": layout.offload,
        "precision": job.precision,
        "weights": "bf16" if job.framework.trains_narrow else "fp32",
        "optimizer": job.optimizer.name,
        "planned": {"step_s": choice.step_s, "memory_bytes": choice.memory_bytes},
    }


def _launch(target: str, launcher: str, job: TrainingJob, choice: Choice) -> Launch:
    line = torchrun_line(job.cluster, SCRIPT)
    return Launch(
        target=target,
        layout=str(choice.layout),
        command=line,
        files=(
            shell_file(job, choice.layout, ['cd "$(dirname "$0")"', line]),
            json_file(SETTINGS, settings(job, choice, launcher)),
            script_file(),
        ),
        notes=(NOTE,),
    )


def _is_cut(layout: Layout) -> bool:
    return bool(cuts_beyond_data(layout))


def _reasons(job: TrainingJob, layout: Layout) -> list[str]:
    """What neither the script nor data ranks alone can do."""
    reasons = cuts_beyond_data(layout)
    if layout.recompute not in ("none", "full"):
        reasons.append(f"{layout.recompute} recompute is not in the script, full and none are")
    if not layout.is_flash:
        reasons.append("PyTorch chooses the attention kernel (leave out no-flash)")
    return reasons + lacking(job)


def lacking(job: TrainingJob) -> list[str]:
    """What no layout of the job changes."""
    reasons = []
    if job.precision not in PRECISIONS:
        known = ", ".join(PRECISIONS)
        reasons.append(f"{job.precision} is not in the script, {known} are")
    if job.optimizer.name not in OPTIMIZERS:
        known = ", ".join(OPTIMIZERS)
        reasons.append(f"PyTorch has no {job.optimizer.name} that keeps such states; {known} are")
    if job.is_adapter:
        reasons.append("the script trains all weights and has no adapters")
    return reasons + model_reasons(job.model, job.seq_len)


def model_reasons(model: Model, seq_len: int) -> list[str]:
    """What the script's plain decoder does not have."""
    lacks = {
        "experts": model.experts is not None,
        "latent attention": model.latent is not None,
        "positions as biases of the scores": not model.is_rotated and not model.max_positions,
        "norms on queries and keys": model.has_qk_norm or model.qk_norm_params > 0,
        "attention sinks": model.num_sinks > 0,
        "parallel attention and MLP": model.is_parallel,
        "windowed attention": has_windows(model, seq_len),
        "an embedding of another width": model.embedding_hidden > 0,
        "more than two norms a layer": model.norms_per_layer != 2 or model.num_outer_norms != 1,
        "an encoder's extra parts": model.num_token_types > 0 or model.pooler_params > 0,
        "a head with a bias": model.has_head_bias,
        "layers for further tokens": model.extra_layer_params > 0,
    }
    lacking = [what for what, is_there in lacks.items() if is_there]
    if not lacking:
        return []
    return [f"the script's model is a plain decoder and {model.name} has {' and '.join(lacking)}"]


def shard_reasons(layout: Layout) -> list[str]:
    """What FSDP's shards cannot do."""
    if layout.zero_stage < 2:
        return [f"FSDP shares all states and z{layout.zero_stage} does not (--emit torchrun)"]
    if layout.offload in ("optimizer", "nvme"):
        return ["FSDP offloads all states or none, not the optimizer's alone"]
    return []


def _accelerate_config(job: TrainingJob, layout: Layout) -> dict[str, Any]:
    cluster = job.cluster
    config: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "debug": False,
        "distributed_type": "FSDP" if layout.zero_stage else "MULTI_GPU",
        "downcast_bf16": "no",
        "enable_cpu_affinity": False,
        "machine_rank": 0,
        "main_training_function": "main",
        "mixed_precision": PRECISIONS[job.precision],
        "num_machines": cluster.num_nodes,
        "num_processes": cluster.num_devices,
        "rdzv_backend": "static",
        "same_network": True,
        "use_cpu": False,
    }
    if not layout.zero_stage:
        return config
    config["fsdp_config"] = {
        "fsdp_activation_checkpointing": False,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_cpu_ram_efficient_loading": False,
        "fsdp_offload_params": layout.offload == "all",
        "fsdp_reshard_after_forward": layout.zero_stage == 3,
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        "fsdp_transformer_layer_cls_to_wrap": "Block",
        "fsdp_version": 2,
    }
    if 0 < layout.shard < layout.dp:
        config["parallelism_config"] = {
            "parallelism_config_dp_replicate_size": layout.dp // layout.shard,
            "parallelism_config_dp_shard_size": layout.shard,
        }
    return config


def _yaml(config: dict[str, Any]) -> str:
    """Two levels of plain words and numbers, which is all there is here."""
    lines = []
    for key, value in config.items():
        if isinstance(value, dict):
            lines += [f"{key}:", *(f"  {inner}: {_scalar(of)}" for inner, of in value.items())]
        else:
            lines.append(f"{key}: {_scalar(value)}")
    return "\n".join([*lines, ""])


def _scalar(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    # YAML 1.1 reads a bare no as false.
    return "'no'" if value == "no" else str(value)
