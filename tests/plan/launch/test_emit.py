"""A layout as launch files: what they say is what was planned, the real packages read them, and
what cannot be expressed is refused with the reason."""

from __future__ import annotations

import itertools
import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stepscope.core.toml_text import parse_toml
from stepscope.errors import UsageError
from stepscope.plan.launch.emit import TARGETS, launch_of, restricted
from stepscope.plan.space import Space
from tests.installed import absent
from tests.plan.launch.launch_cases import chosen, job_of, read_by, text_of, written
from tests.wording import mentions

DEEPSPEED = """
import json, sys
from deepspeed import comm
from deepspeed.runtime.config import DeepSpeedConfig
comm.get_rank = lambda *_: 0
class Mesh:
    def get_data_parallel_world_size(self): return 8
config = DeepSpeedConfig(sys.argv[1], mpu=Mesh())
zero = config.zero_config
device = zero.offload_optimizer and zero.offload_optimizer.device
print(json.dumps([config.train_batch_size, config.train_micro_batch_size_per_gpu,
    config.gradient_accumulation_steps, int(zero.stage), bool(config.bfloat16_config.enabled),
    device and str(getattr(device, "value", device))]))
"""
ACCELERATE = """
import json, sys
from accelerate.commands.config.config_args import load_config_from_file
config = load_config_from_file(sys.argv[1])
print(json.dumps([config.num_processes, config.num_machines, config.mixed_precision,
    str(config.distributed_type.value), config.fsdp_config]))
"""
TORCHTITAN = """
import dataclasses, json, sys
from torchtitan.config import ConfigManager
config = ConfigManager().parse_args(sys.argv[1:])
shown = {name: getattr(config.parallelism, name) for name in (
    "data_parallel_replicate_degree", "data_parallel_shard_degree", "tensor_parallel_degree",
    "context_parallel_degree", "pipeline_parallel_degree", "pipeline_parallel_schedule")}
shown |= {name: getattr(config.training, name) for name in (
    "local_batch_size", "global_batch_size", "seq_len")}
shown["checkpoint"] = type(config.activation_checkpoint).__qualname__
print(json.dumps(shown))
"""


TORCHTITAN_FILE = """
import json, sys
from torchtitan.config import ConfigManager
config = ConfigManager().parse_args(sys.argv[1:])
cuts, training = config.parallelism, config.training
print(json.dumps([config.model.name, config.model.flavor, cuts.data_parallel_shard_degree,
    cuts.tensor_parallel_degree, cuts.pipeline_parallel_degree, cuts.context_parallel_degree,
    training.local_batch_size, training.global_batch_size, training.seq_len,
    config.activation_checkpoint.mode, config.activation_checkpoint.selective_ac_option]))
"""


def test_deepspeed_reads_its_configuration(tmp_path: Path) -> None:
    job = job_of("deepspeed")
    launch = launch_of(
        "deepspeed", job, chosen(job, micro_batch=2, zero_stage=2, offload="optimizer")
    )
    folder = written(launch, tmp_path)
    read = read_by("deepspeed", DEEPSPEED, str(folder / "ds_config.json"))
    assert read == [64, 2, 4, 2, True, "cpu"]


@pytest.mark.parametrize("stage", range(4))
def test_a_deepspeed_configuration_multiplies(stage: int) -> None:
    job = job_of("deepspeed", cluster="2x8xH100")
    launch = launch_of("deepspeed", job, chosen(job, micro_batch=2, zero_stage=stage))
    config = json.loads(text_of(launch, "ds_config.json"))
    per_step = config["train_micro_batch_size_per_gpu"] * config["gradient_accumulation_steps"]
    assert per_step * 16 == config["train_batch_size"] == 64
    assert config["zero_optimization"]["stage"] == stage
    assert "--num_nodes 2" in launch.command


def test_accelerate_reads_its_configuration(tmp_path: Path) -> None:
    job = job_of("accelerate", cluster="2x8xH100")
    launch = launch_of("accelerate", job, chosen(job, zero_stage=3, recompute="full"))
    folder = written(launch, tmp_path)
    num, machines, precision, kind, fsdp = read_by(
        "accelerate", ACCELERATE, str(folder / "accelerate.yaml")
    )
    assert (num, machines, precision, kind) == (16, 2, "bf16", "FSDP")
    assert fsdp["fsdp_version"] == 2
    assert fsdp["fsdp_reshard_after_forward"] is True


def torchtitan_launch(**parts: Any) -> Any:
    job = job_of("torchtitan", "llama3-70b", "8x8xH100", seq_len=8192, global_batch=1024)
    return launch_of("torchtitan", job, chosen(job, **parts))


PIPED = {
    "tp": 4, "pp": 4, "zero_stage": 3, "is_sequence_parallel": True, "recompute": "selective",
}  # fmt: skip


def test_torchtitan_reads_its_flags() -> None:
    launch = torchtitan_launch(**PIPED)
    words = shlex.split(launch.command)
    read = read_by("torchtitan", TORCHTITAN, *words[words.index("torchtitan.train") + 1 :])
    assert read == {
        "data_parallel_replicate_degree": 1,
        "data_parallel_shard_degree": 4,
        "tensor_parallel_degree": 4,
        "context_parallel_degree": 1,
        "pipeline_parallel_degree": 4,
        "pipeline_parallel_schedule": "1F1B",
        "local_batch_size": 256,
        "global_batch_size": 1024,
        "seq_len": 8192,
        "checkpoint": "SelectiveAC.Config",
    }


def test_torchtitan_before_0_3_reads_its_file(tmp_path: Path) -> None:
    folder = written(torchtitan_launch(**PIPED), tmp_path)
    code = "import importlib.util as u\nif not u.find_spec('torchtitan.config.job_config'):\n"
    code += f"    print('null'); raise SystemExit\n{TORCHTITAN_FILE}"
    read = read_by("torchtitan", code, "--job.config_file", str(folder / "train.toml"))
    if read is None:
        absent("needs a torchtitan that reads TOML: pip install torchtitan==0.2.2")
    assert read == ["llama3", "70B", 4, 4, 4, 1, 256, 1024, 8192, "selective", "op"]


def test_torchtitan_files_of_older_versions_say_the_same() -> None:
    table = parse_toml(text_of(torchtitan_launch(**PIPED), "train.toml").encode())
    assert table["model"] == {"name": "llama3", "flavor": "70B"}
    assert table["training"] == {
        "local_batch_size": 256,
        "global_batch_size": 1024,
        "seq_len": 8192,
    }
    assert table["parallelism"]["data_parallel_shard_degree"] == 4
    assert table["parallelism"]["pipeline_parallel_microbatch_size"] == 1
    assert table["activation_checkpoint"] == {"mode": "selective", "selective_ac_option": "op"}


def test_torchtitan_copies_are_counted_with_context_ranks() -> None:
    launch = torchtitan_launch(tp=2, cp=4, pp=1, zero_stage=3, shard=8, is_sequence_parallel=True)
    table = parse_toml(text_of(launch, "train.toml").encode())["parallelism"]
    # 8 data ranks x 4 context ranks in copies of 8: 2 data ranks each, 4 copies.
    assert table["data_parallel_shard_degree"] == 2
    assert table["data_parallel_replicate_degree"] == 4


def test_megatron_flags_are_the_layout_and_the_model() -> None:
    job = job_of("megatron", "llama3-70b", "8x8xH100", seq_len=8192, global_batch=1024)
    layout = {"tp": 4, "pp": 4, "vpp": 2, "zero_stage": 1, "is_sequence_parallel": True}
    launch = launch_of("megatron", job, chosen(job, **layout, recompute="full"))
    words = shlex.split(text_of(launch, "megatron-args.sh"), comments=True)
    pairs = dict(itertools.pairwise(words))
    expected = {
        "--tensor-model-parallel-size": "4", "--pipeline-model-parallel-size": "4",
        "--num-virtual-stages-per-pipeline-rank": "2", "--global-batch-size": "1024",
        "--num-query-groups": "8", "--num-layers": "80", "--hidden-size": "8192",
        "--recompute-granularity": "full", "--seq-length": "8192",
    }  # fmt: skip
    assert {name: pairs[name] for name in expected} == expected
    for flag in ("--sequence-parallel", "--use-distributed-optimizer", "--overlap-grad-reduce",
                 "--bf16", "--swiglu", "--untie-embeddings-and-output-weights"):  # fmt: skip
        assert flag in words


def test_megatron_recomputes_as_much_as_was_planned() -> None:
    job = job_of("megatron", "mixtral-8x7b", "8x8xH100", seq_len=4096, global_batch=512)
    some = {"pp": 4, "ep": 8, "zero_stage": 1, "vpp": 2, "recompute": "full", "recompute_layers": 4}
    text = text_of(launch_of("megatron", job, chosen(job, **some)), "megatron-args.sh")
    assert "--recompute-method block" in text
    assert "--recompute-num-layers 2\n" in text
    cheap = {"pp": 4, "ep": 8, "zero_stage": 1, "recompute": "selective"}
    text = text_of(launch_of("megatron", job, chosen(job, **cheap)), "megatron-args.sh")
    assert "--recompute-modules layernorm moe_act\n" in text


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("torchrun", {"zero_stage": 3}, "DDP shares none (--emit fsdp2)"),
    ("torchrun", {"tp": 2}, "tp2 cuts layers"),
    ("fsdp2", {"zero_stage": 1}, "z1 does not"),
    ("fsdp2", {"pp": 2, "zero_stage": 3}, "pp2 cuts"),
    ("fsdp2", {"zero_stage": 3, "recompute": "selective"}, "selective recompute"),
    ("fsdp2", {"zero_stage": 3, "offload": "optimizer"}, "states or none"),
    ("accelerate", {"cp": 2, "zero_stage": 3}, "cp2 cuts sequences"),
    ("deepspeed", {"pp": 2}, "--emit megatron"),
    ("deepspeed", {"zero_stage": 2, "offload": "all"}, "under ZeRO-3 alone"),
    ("megatron", {"pp": 2, "schedule": "gpipe"}, "its schedules"),
    ("megatron", {"zero_stage": 3, "pp": 2}, "under a pipeline"),
    ("torchtitan", {"zero_stage": 1}, "not z1"),
    ("torchtitan", {"tp": 2}, "sp belongs"),
    ("torchtitan", {"zero_stage": 3, "recompute": "full", "recompute_layers": 2}, "every layer"),
    (
        "megatron",
        {"pp": 2, "vpp": 4, "recompute": "full", "recompute_layers": 6},
        "6 recomputed layers do not divide by 4",
    ),
]


@pytest.mark.parametrize(("target", "parts", "reason"), REFUSED)
def test_what_cannot_be_expressed_is_refused(
    target: str, parts: dict[str, Any], reason: str
) -> None:
    job = job_of(target)
    with pytest.raises(UsageError) as problem:
        launch_of(target, job, chosen(job, **parts))
    assert reason in str(problem.value)
    assert mentions(str(problem.value), f"written for {target}")


def test_models_that_the_script_does_not_have_are_refused() -> None:
    job = job_of("fsdp2", "mixtral-8x7b")
    with pytest.raises(UsageError, match="mixtral-8x7b has experts"):
        launch_of("fsdp2", job, chosen(job, zero_stage=3))
    job = job_of("torchtitan", "gpt3-175b", seq_len=2048)
    with pytest.raises(UsageError, match="it has no gpt3-175b"):
        launch_of("torchtitan", job, chosen(job, zero_stage=3))


def test_what_is_pinned_stays_and_the_rest_is_what_the_target_has() -> None:
    space = restricted(Space(tp=(4,)), "deepspeed")
    assert space.tp == (4,)
    assert space.pp == (1,)
    assert set(TARGETS) == {
        "torchrun", "fsdp2", "deepspeed", "megatron", "torchtitan", "accelerate",
        "transformers",
    }  # fmt: skip


def test_one_device_shares_nothing() -> None:
    job = job_of("fsdp2", cluster="1xH100")
    with pytest.raises(UsageError, match="--emit torchrun"):
        launch_of("fsdp2", job, chosen(job))


def test_a_name_of_several_lines_stays_a_comment() -> None:
    job = job_of("torchrun")
    strange = replace(job, model=replace(job.model, name="x\nrm -rf /"))
    launch = launch_of("torchrun", strange, chosen(strange))
    assert "\nrm" not in text_of(launch, "launch.sh")
