"""Arguments of transformers' Trainer: what they say is planned, as flags or as JSON, and files that
they name are read where they lie beside them alone."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from stepscope.errors import UsageError
from stepscope.plan.framework import DDP, DEEPSPEED, FSDP
from stepscope.plan.launch.check import Checked, check, framework_of, layout_of
from stepscope.plan.launch.emit import launch_of
from stepscope.plan.launch.read import read_settings
from stepscope.plan.launch.settings import Settings
from tests.plan.launch.launch_cases import chosen, job_of, read_by, text_of, written
from tests.wording import mentions

ZERO = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "bf16": {"enabled": "auto"},
    "zero_optimization": {"stage": 3, "overlap_comm": True, "reduce_bucket_size": "auto"},
}
START = "torchrun run.py --per_device_train_batch_size 2 --gradient_accumulation_steps 4 --bf16"
ARGUMENTS = """
import json, sys
from transformers import HfArgumentParser, TrainingArguments
made, rest = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(
    sys.argv[1:], return_remaining_strings=True)
print(json.dumps([made.per_device_train_batch_size, made.gradient_accumulation_steps, made.bf16,
                  str(getattr(made.optim, "value", made.optim)), rest]))
"""


def settings_of(folder: Path, flags: str = "", **files: Any) -> Settings:
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    (folder / "run.sh").write_text(f"{START} {flags}\n")
    return read_settings(folder / "run.sh")


def checked(settings: Settings, cluster: str = "2x8xH100", model: str = "llama3-8b") -> Checked:
    framework = {each.name: each for each in (DDP, FSDP, DEEPSPEED)}[settings.framework]
    job = job_of("transformers", model, cluster, framework=framework_of(settings, framework))
    return check(settings, job)


@pytest.mark.parametrize(
    ("flags", "framework", "stage", "offload"),
    [
        ("", "ddp", 0, "none"),
        ("--fsdp False", "ddp", 0, "none"),
        ("--fsdp full_shard", "fsdp", 3, "none"),
        ("--fsdp", "fsdp", 3, "none"),
        ("--fsdp 'shard_grad_op auto_wrap'", "fsdp", 2, "none"),
        ("--fsdp 'full_shard offload'", "fsdp", 3, "all"),
        ("--fsdp True --fsdp_config fsdp.json", "fsdp", 2, "none"),
        ("""--fsdp True --fsdp_config '{"cpu_offload": true}'""", "fsdp", 3, "all"),
        ("--fsdp no_shard", "ddp", 0, "none"),
        ("--deepspeed zero.json", "deepspeed", 3, "none"),
    ],
)
def test_what_is_shared_is_read(
    flags: str, framework: str, stage: int, offload: str, tmp_path: Path
) -> None:
    fsdp = {"fsdp_version": 2, "fsdp_reshard_after_forward": False}
    read = settings_of(tmp_path, flags, fsdp=fsdp, zero=ZERO)
    assert (read.framework, read.layout.zero_stage, read.layout.offload) == (
        framework, stage, offload,
    )  # fmt: skip
    assert (read.micro_batch, read.accumulation, read.precision) == (2, 4, "bf16")
    assert read.notes == read.refused == ()


def test_copies_that_nodes_hold_are_planned_so(tmp_path: Path) -> None:
    read = settings_of(tmp_path, "--fsdp hybrid_shard")
    layout = layout_of(read, job_of("transformers", cluster="2x8xH100"))
    assert layout is not None
    assert (layout.shard, layout.dp, layout.global_batch) == (8, 16, 128)


def test_a_json_file_of_arguments_is_read_like_flags(tmp_path: Path) -> None:
    path = tmp_path / "args.json"
    path.write_text(json.dumps({
        "per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "bf16": True,
        "fsdp": ["shard_grad_op"], "gradient_checkpointing": True, "optim": "adamw_bnb_8bit",
    }))  # fmt: skip
    read = read_settings(path)
    assert (read.layout.zero_stage, read.layout.recompute, read.optimizer) == (
        2, "full", "adam-8bit",
    )  # fmt: skip


def test_what_makes_a_step_faster_is_in_its_price(tmp_path: Path) -> None:
    plain, compiled, liger, eager, unfused = (
        checked(settings_of(tmp_path, f"--fsdp full_shard {flags}"))
        for flags in (
            "", "--torch_compile", "--use_liger_kernel", "--attn_implementation eager",
            "--optim adamw_torch",
        )
    )  # fmt: skip
    seconds = [each.step.value for each in (plain, compiled, liger, eager, unfused) if each.step]
    assert seconds[1] < seconds[0]
    assert seconds[2] < seconds[0]
    assert min(seconds[3:]) > seconds[0]
    assert plain.memory is not None
    assert liger.memory is not None
    assert liger.memory.value < plain.memory.value


def test_the_trainers_square_buckets_are_small_for_narrow_models(tmp_path: Path) -> None:
    read = settings_of(tmp_path, "--deepspeed zero.json", zero=ZERO)
    narrow = checked(read, cluster="8x8xH100", model="qwen3-0.6b")
    assert "small-buckets" in {fault.code for fault in narrow.faults}
    assert "small-buckets" not in {fault.code for fault in checked(read).faults}


def test_flags_and_files_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    other = {**ZERO, "gradient_accumulation_steps": 8}
    [refused] = settings_of(tmp_path, "--deepspeed zero.json", zero=other).refused
    assert mentions(refused, "gradient_accumulation_steps", "auto")
    twice = "--fsdp full_shard --gradient_checkpointing --fsdp_config fsdp.json"
    [refused] = settings_of(tmp_path, twice, fsdp={"activation_checkpointing": True}).refused
    assert mentions(refused, "both")
    [refused] = settings_of(tmp_path, "--per_device_train_batch_size none").refused
    assert mentions(refused, "per_device_train_batch_size")


def test_checkpointing_outside_of_fsdp_is_told(tmp_path: Path) -> None:
    [note] = settings_of(tmp_path, "--fsdp full_shard --gradient_checkpointing True").notes
    assert mentions(note, "activation_checkpointing")


@pytest.mark.parametrize("name", ["missing.json", "/etc/hostname", "../zero.json", "{", "[" * 9000])
def test_files_that_lie_elsewhere_are_not_read(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    (tmp_path / "zero.json").write_text(json.dumps(ZERO))
    read = settings_of(folder, f"--deepspeed '{name}'")
    assert read.layout.zero_stage == 0
    assert any(mentions(note, "not beside") for note in read.notes)


@pytest.mark.parametrize("framework", [DDP, FSDP, DEEPSPEED])
def test_transformers_reads_its_flags(framework: Any, tmp_path: Path) -> None:
    job = job_of("transformers", framework=framework)
    stage = {"ddp": 0, "fsdp": 3, "deepspeed": 3}[framework.name]
    launch = launch_of("transformers", job, chosen(job, micro_batch=2, zero_stage=stage))
    folder = written(launch, tmp_path)
    assert read_settings(folder / "trainer-args.sh").framework == framework.name
    text = text_of(launch, "trainer-args.sh")
    for name in ("fsdp_config.json", "ds_config.json"):
        text = text.replace(name, str(folder / name))
    words = shlex.split(text[text.index("(") + 1 : text.rindex(")")])
    read = read_by("transformers", ARGUMENTS, "--output_dir", str(tmp_path), *words)
    assert read[:4] == [2, 4, True, "adamw_torch_fused"]


def test_deepspeeds_file_leaves_to_the_flags_what_they_say() -> None:
    job = job_of("transformers", framework=DEEPSPEED)
    launch = launch_of("transformers", job, chosen(job, micro_batch=2, zero_stage=2))
    config = json.loads(text_of(launch, "ds_config.json"))
    assert config["train_batch_size"] == config["gradient_clipping"] == "auto"
    assert config["bf16"] == {"enabled": "auto"}
    assert config["zero_optimization"]["stage"] == 2


@pytest.mark.parametrize(
    "parts",
    [{"recompute": "full", "recompute_layers": 4}, {"tp": 2}, {"zero_stage": 1},
     {"zero_stage": 3, "shard": 2}, {"zero_stage": 3, "offload": "optimizer"}],
)  # fmt: skip
def test_what_the_trainer_lacks_is_refused(parts: dict[str, Any]) -> None:
    job = job_of("transformers")
    with pytest.raises(UsageError):
        launch_of("transformers", job, chosen(job, **({"zero_stage": 3} | parts)))
