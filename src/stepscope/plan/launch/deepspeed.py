"""DeepSpeed: a configuration for data ranks under any ZeRO stage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepscope.plan.estimate import Choice
from stepscope.plan.job import TrainingJob
from stepscope.plan.launch.files import Launch, cuts_beyond_data, json_file, refuse, shell_file
from stepscope.plan.launch.settings import MAX_COUNT, Counts, Settings
from stepscope.plan.layout import Layout
from stepscope.protocol.untrusted import as_object, whole

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
    reasons += zero_reasons(layout)
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


def zero_reasons(layout: Layout) -> list[str]:
    """What its ZeRO stages cannot do."""
    reasons = []
    if layout.offload != "none" and layout.zero_stage == 0:
        reasons.append("offload needs ZeRO (z1 or more)")
    if layout.offload in ("all", "nvme") and layout.zero_stage < 3:
        reasons.append("weights are offloaded under ZeRO-3 alone")
    if 0 < layout.shard < layout.dp and layout.zero_stage < 3:
        reasons.append("copies that ranks share (MiCS) are under ZeRO-3 alone")
    return reasons


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


KEYS = (
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
    "zero_optimization", "bf16", "bfloat16", "fp16",
)  # fmt: skip
"""One of them makes a JSON object a DeepSpeed configuration."""
MAX_BUCKET = 10**13
DEFAULT_BUCKET = 500_000_000
"""Elements, where the file does not say (deepspeed/runtime/zero/config.py)."""
BATCHES = Counts(names=KEYS[:3], besides=(None, "auto"))
STAGE = Counts(names=("stage",), low=0, high=3, besides=(None, "auto"))
BUCKETS = Counts(names=("reduce_bucket_size",), high=MAX_BUCKET, besides=(None, "auto"))
KNOWN_OPTIMIZERS = {
    "adam": "adam", "adamw": "adam", "onebitadam": "adam", "sgd": "sgd", "lion": "lion",
    "muon": "muon",
}  # fmt: skip


def is_deepspeed(config: Mapping[str, Any]) -> bool:
    return any(key in config for key in KEYS)


def read_deepspeed(config: Mapping[str, Any], where: str) -> Settings:
    """What it says; "auto" is what the trainer fills in, so not said here."""
    given = config.get("zero_optimization")
    # As it was written before stages had numbers.
    zero = {"stage": 1} if given is True else as_object(given)
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
        layout=Layout(
            tp=whole(tensor.get("autotp_size"), 1, MAX_COUNT) or 1,
            zero_stage=stage,
            shard=whole(zero.get("mics_shard_size"), 1, MAX_COUNT) or 0,
            offload=_offload(zero),
            recompute="full" if _is_recomputed(config) else "none",
            recompute_layers=_recompute_layers(config),
        ),
        precision=_precision(config),
        optimizer=_optimizer(config),
        grads=_grads(config),
        overlaps_data=_overlap(zero, stage),
        bucket_elements=bucket,
        refused=tuple(_refused(config, zero)),
        notes=tuple(notes),
    )


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
    name = KNOWN_OPTIMIZERS.get(kind.casefold()) if isinstance(kind, str) else None
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
