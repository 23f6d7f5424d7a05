"""The Trainer of transformers: its TrainingArguments as flags, and the JSON files they name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from stepscope.plan.contract.launch import LaunchFile
from stepscope.plan.estimate import Choice
from stepscope.plan.framework import COMPILED_LOSS, DDP, DEEPSPEED, FSDP
from stepscope.plan.job import TrainingJob
from stepscope.plan.launch import deepspeed, torch
from stepscope.plan.launch.files import (
    FlagPairs,
    Launch,
    arguments_file,
    cuts_beyond_data,
    json_file,
    refuse,
    shell_file,
    torchrun_line,
)
from stepscope.plan.launch.flags import Flags
from stepscope.plan.launch.settings import MAX_COUNT, Counts, Settings
from stepscope.plan.layout import Layout
from stepscope.protocol.untrusted import as_object, whole, whole_text

ARGUMENTS = "trainer-args.sh"
FSDP_CONFIG, DEEPSPEED_CONFIG = "fsdp_config.json", "ds_config.json"
SCRIPTS = {True: "run_clm.py", False: "run_mlm.py"}
"""Scripts of decoders and of encoders."""
PRECISIONS = ("bf16", "fp16", "tf32", "fp32")
OPTIMIZERS = {
    "adam": "adamw_torch_fused", "adam-8bit": "adamw_bnb_8bit", "sgd": "sgd", "lion": "lion_32bit",
    "adafactor": "adafactor",
}  # fmt: skip
AUTO = "auto"


def transformers(job: TrainingJob, choice: Choice) -> Launch:
    """The flags in a file of their own, sourced by the launch script, and the file that says what
    is shared: of FSDP, of DeepSpeed, or none for plain data ranks."""
    layout = choice.layout
    refuse("transformers", layout, _reasons(job, layout))
    line = torchrun_line(job.cluster, SCRIPTS[job.model.is_causal], ('"${ARGUMENTS[@]}"', '"$@"'))
    lines = ['cd "$(dirname "$0")"', f"source ./{ARGUMENTS}", line]
    files = [arguments_file(ARGUMENTS, _flags(job, layout)), shell_file(job, layout, lines)]
    return Launch(
        target="transformers",
        layout=str(layout),
        command=line,
        files=(*files, *_shared(job, layout)),
        notes=tuple(_notes(job, layout)),
    )


def lacking(job: TrainingJob) -> list[str]:
    """What no layout of the job changes."""
    reasons = []
    if job.framework.name not in (DDP.name, FSDP.name, DEEPSPEED.name):
        reasons.append(f"the Trainer runs on ddp, fsdp and deepspeed, not on {job.framework.name}")
    if job.precision not in PRECISIONS:
        reasons.append(f"the Trainer has no {job.precision} of its own")
    if job.optimizer.name not in OPTIMIZERS:
        reasons.append(f"{job.optimizer.name} is not written here, {', '.join(OPTIMIZERS)} are")
    if job.is_adapter:
        reasons.append("adapters are made in the script (peft), not by flags")
    if job.model.experts is not None:
        reasons.append("transformers' experts run one after the other, and no plan is of that")
    return reasons


def _reasons(job: TrainingJob, layout: Layout) -> list[str]:
    reasons = lacking(job) + cuts_beyond_data(layout)
    framework = job.framework.name
    if layout.recompute == "selective":
        reasons.append("the Trainer recomputes all of a layer or nothing")
    if layout.recompute_layers or layout.recompute_every > 1:
        reasons.append("the Trainer recomputes each layer or none")
    if not layout.is_flash:
        reasons.append("transformers takes PyTorch's attention kernel (leave out no-flash)")
    if framework == DEEPSPEED.name:
        return reasons + deepspeed.zero_reasons(layout)
    if framework == FSDP.name:
        reasons += torch.shard_reasons(layout)
        if 0 < layout.shard < layout.dp:
            reasons.append("copies that nodes hold (HSDP) are of FSDP's first version there")
    elif layout.zero_stage or layout.offload != "none":
        reasons.append("DDP shares nothing and keeps nothing on the host")
    return reasons


def _flags(job: TrainingJob, layout: Layout) -> FlagPairs:
    framework = job.framework
    yield "per_device_train_batch_size", layout.micro_batch
    yield "gradient_accumulation_steps", layout.num_micro
    if framework.trains_narrow:
        yield "dtype", "bfloat16"
    elif job.precision != "fp32":
        yield job.precision, True
    if framework.name == DEEPSPEED.name:
        yield "deepspeed", DEEPSPEED_CONFIG
    elif layout.zero_stage:
        words = ["full_shard" if layout.zero_stage == 3 else "shard_grad_op", "auto_wrap"]
        yield "fsdp", " ".join([*words, "offload"] if layout.offload == "all" else words)
        yield "fsdp_config", FSDP_CONFIG
    if layout.recompute == "full" and framework.name != FSDP.name:
        yield "gradient_checkpointing", True
    yield "optim", OPTIMIZERS[job.optimizer.name]
    yield "block_size" if job.model.is_causal else "max_seq_length", job.seq_len
    yield "do_train", True
    yield "max_steps", 50
    yield "logging_steps", 10
    yield "save_strategy", "no"
    yield "report_to", "none"


def _shared(job: TrainingJob, layout: Layout) -> Iterator[LaunchFile]:
    if job.framework.name == DEEPSPEED.name:
        yield json_file(DEEPSPEED_CONFIG, _deepspeed_config(job, layout))
    elif layout.zero_stage:
        config = {
            "version": 2,
            "reshard_after_forward": layout.zero_stage == 3,
            "activation_checkpointing": layout.recompute == "full",
            "state_dict_type": "SHARDED_STATE_DICT",
        }
        yield json_file(FSDP_CONFIG, config)


def _deepspeed_config(job: TrainingJob, layout: Layout) -> dict[str, Any]:
    """Configuration as DeepSpeed's own, with what the flags say left to them: the Trainer stops
    where the two differ."""
    config = deepspeed.config_of(job, layout)
    for name in (*deepspeed.KEYS[:3], "gradient_clipping"):
        config[name] = AUTO
    for name in ("bf16", "fp16"):
        config[name] = {"enabled": AUTO}
    config.pop("activation_checkpointing", None)
    if "optimizer" in config:
        params = dict.fromkeys(("lr", "betas", "eps", "weight_decay"), AUTO)
        is_adam = job.optimizer.name == "adam"
        config["optimizer"]["params"] = params if is_adam else {"lr": AUTO}
    return config


def _notes(job: TrainingJob, layout: Layout) -> Iterator[str]:
    script = SCRIPTS[job.model.is_causal]
    yield f"{script} is of transformers' examples: put your own script of the Trainer in its place"
    yield "launch.sh hands the script what stands behind it: model, data and --output_dir"
    if job.framework.trains_narrow:
        yield "before transformers 5, --dtype of the examples is --torch_dtype"
    if layout.offload == "nvme":
        yield f"nvme_path is {deepspeed.DISKS}: put the folder of your node's fast disks there"


COUNTS = Counts(names=("per_device_train_batch_size", "gradient_accumulation_steps"))
LENGTHS = ("block_size", "max_seq_length", "max_seq_len", "max_length", "cutoff_len")
"""A sequence's length as scripts call it: it is no flag of the Trainer."""
OWN = (COUNTS.names[0], "fsdp")
"""One of them makes flags, or a JSON object, the Trainer's."""
READ = frozenset((*OWN, *LENGTHS, "deepspeed", "fsdp_config"))
USUAL_BATCH = 8
STAGES = {"full_shard": 3, "hybrid_shard": 3, "shard_grad_op": 2, "hybrid_shard_zero2": 2}
KNOWN_OPTIMIZERS = {
    "adamw_torch": "adam", "adamw_torch_fused": "adam", "adamw_apex_fused": "adam",
    "adamw_hf": "adam", "paged_adamw": "adam", "paged_adamw_32bit": "adam", "sgd": "sgd",
    "adamw_8bit": "adam-8bit", "adamw_bnb_8bit": "adam-8bit", "adamw_torch_8bit": "adam-8bit",
    "paged_adamw_8bit": "adam-8bit", "lion_32bit": "lion", "paged_lion_32bit": "lion",
    "adafactor": "adafactor",
}  # fmt: skip
UNFUSED = ("adamw_torch", "adamw_hf")
"""Optimizers of these that are several kernels for each group of parameters."""
LIGER: dict[str, object] = {
    "fuses": True, "logit_bytes": 0.0, "idle_logit_bytes": 0.0, "logit_passes": 12.0,
}  # fmt: skip
"""Norms, rotations and the gate are one kernel each; logits are made and used a few rows at a time
(its fused linear cross entropy)."""
Beside = Callable[[str], Any]
"""The JSON of a file that is named; None where it is not there."""


def is_trainer(flags: Mapping[str, object]) -> bool:
    return any(_plain(name) in OWN for name in flags)


def _plain(name: str) -> str:
    return name.replace("-", "_")


def read_transformers(
    given: Mapping[str, Any], where: str, beside: Beside, notes: tuple[str, ...] = ()
) -> Settings:
    """Flags, or the JSON object that stands for them."""
    flags = {_plain(name): value for name, value in given.items()}
    said: list[str] = list(notes)
    precision, is_narrow = _precision(flags)
    refused = [*COUNTS.refused(flags)]
    conventions: dict[str, object] = {}
    if _is_on(flags, "torch_compile"):
        conventions |= {"is_compiled": True, "fuses": True, **COMPILED_LOSS}
    if _is_on(flags, "use_liger_kernel"):
        conventions |= LIGER
    optim = str(flags.get("optim", "adamw_torch_fused"))
    optimizer = KNOWN_OPTIMIZERS.get(optim)
    if optimizer is None:
        said.append(f"--optim {ascii(optim)[1:-1][:40]} is planned as AdamW")
    conventions["has_fused_update"] = optim not in UNFUSED
    common = Settings(
        kind="transformers",
        where=where,
        framework=DDP.name,
        seq_len=next((size for name in LENGTHS if (size := _count(flags, name))), None),
        micro_batch=_count(flags, COUNTS.names[0]) or USUAL_BATCH,
        accumulation=_count(flags, COUNTS.names[1]) or 1,
        layout=Layout(
            recompute="full" if _is_on(flags, "gradient_checkpointing") else "none",
            is_flash=flags.get("attn_implementation") != "eager",
        ),
        precision=precision,
        optimizer=optimizer or "adam",
        grads="bf16" if is_narrow else None,
        conventions=conventions,
        refused=tuple(refused),
        notes=tuple(said),
    )
    named = flags.get("deepspeed")
    if isinstance(named, (str, Mapping)) and not _is_word(named):
        return _with_deepspeed(common, _config(named, beside), str(named))
    if "deepspeed_config" in flags:
        named = flags["deepspeed_config"]
        return _with_deepspeed(common, _config(named, beside), str(named))
    words = flags.get("fsdp")
    if words and str(words).casefold() != "false":
        return _with_fsdp(common, flags, beside)
    # Plain data ranks keep weights as they were loaded: in 16 bits nothing is wider.
    if is_narrow:
        said.append("weights in bf16 under DDP are planned as fp32 under autocast")
    return replace(common, grads=None, notes=tuple(said))


def _with_deepspeed(common: Settings, config: Any, named: str) -> Settings:
    if not isinstance(config, Mapping):
        note = f"{ascii(named)[1:-1][:60]} is not beside {common.where}: planned without ZeRO"
        return replace(common, framework=DEEPSPEED.name, notes=(*common.notes, note))
    read = deepspeed.read_deepspeed(config, common.where)
    refused = [*common.refused, *read.refused]
    for name, mine, other in (
        ("per_device_train_batch_size", common.micro_batch, read.micro_batch),
        ("gradient_accumulation_steps", common.accumulation, read.accumulation),
    ):
        if other is not None and other != mine:
            refused.append(
                f"{name} is {mine} as a flag and {other} for DeepSpeed: write auto there"
            )
    is_own = isinstance(config.get("optimizer"), Mapping)
    conventions = dict(common.conventions)
    if is_own:
        conventions.pop("has_fused_update")
    bucket = as_object(config.get("zero_optimization")).get("reduce_bucket_size")
    return replace(
        common,
        framework=DEEPSPEED.name,
        # There the file alone switches no recomputation on.
        layout=dataclasses.replace(
            read.layout,
            recompute=common.layout.recompute,
            recompute_layers=0,
            is_flash=common.layout.is_flash,
        ),
        global_batch=read.global_batch,
        precision=common.precision if read.precision is None else read.precision,
        optimizer=read.optimizer if is_own else common.optimizer,
        grads=read.grads,
        overlaps_data=read.overlaps_data,
        bucket_elements=read.bucket_elements,
        has_square_buckets=bucket == AUTO,
        conventions=conventions,
        refused=tuple(refused),
    )


def _with_fsdp(common: Settings, flags: Mapping[str, Any], beside: Beside) -> Settings:
    notes, refused, conventions = list(common.notes), list(common.refused), {}
    config = _config(flags.get("fsdp_config", {}), beside)
    if not isinstance(config, Mapping):
        name = ascii(str(flags["fsdp_config"]))[1:-1][:60]
        notes.append(f"{name} is not beside {common.where}: its defaults are taken")
        config = {}
    config = {str(name).removeprefix("fsdp_"): value for name, value in config.items()}
    words = flags["fsdp"]
    chosen = words if isinstance(words, list) else str(words).replace(",", " ").split()
    strategy = next((word for word in map(str, chosen) if word in STAGES), "")
    stage = STAGES.get(strategy, 0 if "no_shard" in chosen else 3)
    again = config.get("reshard_after_forward")
    if stage and again is not None:
        is_let_go = _is_true(again) or str(again).casefold() in ("full_shard", "hybrid_shard")
        stage = 3 if is_let_go else 2
    if str(config.get("version", 2)) == "1":
        conventions["copies_gathered"] = False
    is_inside = _is_true(config.get("activation_checkpointing"))
    is_outside = common.layout.recompute == "full"
    if is_inside and is_outside:
        refused.append("gradient_checkpointing and FSDP's activation_checkpointing are both on")
    elif is_outside and stage == 3:
        notes.append(
            "gradient_checkpointing under FSDP gathers weights once more in backward: "
            "activation_checkpointing in fsdp_config does not"
        )
    is_out = "offload" in chosen or _is_true(config.get("cpu_offload"))
    layout = Layout(
        zero_stage=stage,
        offload="all" if is_out else "none",
        recompute="full" if is_inside or is_outside else "none",
        is_flash=common.layout.is_flash,
    )
    return replace(
        common,
        framework=FSDP.name if stage else DDP.name,
        layout=layout,
        has_node_shards=strategy.startswith("hybrid"),
        grads=common.grads if stage else None,
        conventions={**common.conventions, **conventions},
        refused=tuple(refused),
        notes=tuple(notes),
    )


def _config(named: Any, beside: Beside) -> Any:
    return beside(named) if isinstance(named, str) else named


def _is_word(value: object) -> bool:
    return str(value).casefold() in ("true", "false", "")


def _is_true(value: object) -> bool:
    return value is True or str(value).casefold() in ("true", "1", "yes")


def _is_on(flags: Flags | Mapping[str, Any], name: str) -> bool:
    return _is_true(flags.get(name))


def _count(flags: Mapping[str, Any], name: str) -> int | None:
    value = flags.get(name)
    return whole_text(value, 1, MAX_COUNT) if isinstance(value, str) else whole(value, 1, MAX_COUNT)


def _precision(flags: Mapping[str, Any]) -> tuple[str, bool]:
    """Precision of products, and whether the weights themselves are in 16 bits."""
    for name in ("bf16", "fp16"):
        if _is_on(flags, name):
            return name, False
    loaded = str(flags.get("dtype", flags.get("torch_dtype"))).removeprefix("torch.")
    for name in ("bf16", "fp16"):
        if loaded in (name, {"bf16": "bfloat16", "fp16": "float16"}[name]):
            return name, True
    return ("tf32" if _is_on(flags, "tf32") else "fp32"), False
