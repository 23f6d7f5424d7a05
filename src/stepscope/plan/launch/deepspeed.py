"""DeepSpeed: a configuration for data ranks under any ZeRO stage."""

from __future__ import annotations

from typing import Any

from stepscope.plan.choice import Choice
from stepscope.plan.job import TrainingJob
from stepscope.plan.launch.files import (
    Launch,
    cuts_beyond_data,
    json_file,
    refuse,
    shell_file,
)
from stepscope.plan.layout import Layout

CONFIG = "ds_config.json"
BUCKET = 50_000_000
"""Elements of a bucket: 100 MB in half precision, which keeps any link busy."""
DISKS = "/local_nvme"
OPTIMIZERS = {"adam": "AdamW", "adam-8bit": None, "sgd": "SGD", "momentum": "SGD", "lion": "Lion"}


def deepspeed(job: TrainingJob, choice: Choice) -> Launch:
    """ZeRO over data ranks; the training script is the reader's own."""
    layout = choice.layout
    reasons = lacking(job) + cuts_beyond_data(layout)
    if layout.recompute_every > 1:
        reasons.append("how many layers a checkpoint is of is said in the model, not there")
    if layout.offload != "none" and layout.zero_stage == 0:
        reasons.append("offload needs ZeRO (z1 or more)")
    if layout.offload in ("all", "nvme") and layout.zero_stage < 3:
        reasons.append("weights are offloaded under ZeRO-3 alone")
    is_hybrid = 0 < layout.shard < layout.dp
    if is_hybrid and layout.zero_stage < 3:
        reasons.append("copies that ranks share (MiCS) are under ZeRO-3 alone")
    refuse("deepspeed", layout, reasons, _instead(layout))
    line = f"deepspeed {_hosts(job)}train.py --deepspeed --deepspeed_config {CONFIG}"
    return Launch(
        target="deepspeed",
        layout=str(layout),
        command=line,
        files=(
            json_file(CONFIG, config_of(job, layout)),
            shell_file(job, layout, [line], is_on_each=False),
        ),
        notes=_notes(job, layout),
    )


def lacking(job: TrainingJob) -> list[str]:
    """What no layout of the job changes."""
    if job.precision in ("bf16", "fp16", "fp32"):
        return []
    return [f"a DeepSpeed configuration has bf16, fp16 and fp32, not {job.precision}"]


def config_of(job: TrainingJob, layout: Layout) -> dict[str, Any]:
    config: dict[str, Any] = {
        "train_batch_size": job.global_batch,
        "train_micro_batch_size_per_gpu": layout.micro_batch,
        "gradient_accumulation_steps": layout.num_micro,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": job.precision == "bf16"},
        "fp16": {"enabled": job.precision == "fp16"},
        "zero_optimization": _zero(job, layout),
    }
    if job.grads == "fp32":
        config["data_types"] = {"grad_accum_dtype": "fp32"}
    name = OPTIMIZERS.get(job.optimizer.name)
    if name is not None:
        params: dict[str, Any] = {"lr": 3e-4}
        if job.optimizer.name == "momentum":
            params["momentum"] = 0.9
        config["optimizer"] = {"type": name, "params": params}
    if layout.recompute == "full":
        config["activation_checkpointing"] = {
            "partition_activations": False,
            "contiguous_memory_optimization": False,
        }
        if layout.recompute_layers:
            config["activation_checkpointing"]["number_checkpoints"] = layout.recompute_layers
    return config


def _zero(job: TrainingJob, layout: Layout) -> dict[str, Any]:
    stage = layout.zero_stage
    zero: dict[str, Any] = {"stage": stage}
    if stage:
        zero |= {"overlap_comm": True, "contiguous_gradients": True, "reduce_scatter": True}
    if stage in (1, 2):
        zero |= {"reduce_bucket_size": BUCKET, "allgather_bucket_size": BUCKET}
    if stage == 3:
        # A bucket of the size of a square matrix of the model: what is gathered ahead stays small
        # against a layer.
        square = job.model.hidden**2
        zero |= {
            "reduce_bucket_size": max(square, BUCKET),
            "stage3_prefetch_bucket_size": square * 9 // 10,
            "stage3_param_persistence_threshold": 10 * job.model.hidden,
        }
    if 0 < layout.shard < layout.dp:
        zero["mics_shard_size"] = layout.shard
    place: dict[str, Any] = {"device": "cpu", "pin_memory": True}
    if layout.offload == "nvme":
        place = {"device": "nvme", "nvme_path": DISKS, "pin_memory": True}
    if layout.offload != "none":
        zero["offload_optimizer"] = place
    if layout.offload in ("all", "nvme"):
        zero["offload_param"] = place
    return zero


def _hosts(job: TrainingJob) -> str:
    cluster = job.cluster
    if cluster.num_nodes == 1:
        return f"--num_gpus {cluster.devices_per_node} "
    return (
        f"--hostfile hostfile --num_nodes {cluster.num_nodes} "
        f"--num_gpus {cluster.devices_per_node} "
    )


def _instead(layout: Layout) -> str:
    if not cuts_beyond_data(layout):
        return ""
    return "stages and tensor ranks are made in code there; --emit megatron has them as flags"


def _notes(job: TrainingJob, layout: Layout) -> tuple[str, ...]:
    notes = ["train.py is yours: it calls deepspeed.initialize with this configuration"]
    cluster = job.cluster
    if cluster.num_nodes > 1:
        notes.append(
            f"hostfile is yours: a line for each node, NAME slots={cluster.devices_per_node}; "
            "deepspeed is started on one node and reaches the others by ssh"
        )
    if layout.recompute != "none":
        of = f" of {layout.recompute_layers} layers" if layout.recompute_layers else ""
        notes.append(
            f"{layout.recompute} recompute{of} is switched on in the model "
            "(gradient_checkpointing_enable, or deepspeed.checkpointing), not by this file"
        )
    if layout.offload == "nvme":
        notes.append(f"nvme_path is {DISKS}: put the folder of your node's fast disks there")
    if OPTIMIZERS.get(job.optimizer.name) is None:
        notes.append(f"{job.optimizer.name} is made in train.py: DeepSpeed has no name for it")
    return tuple(notes)
