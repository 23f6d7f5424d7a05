"""Configurations that are read: what is said of them is what stands in them, what is wrong is
named with its price, and strangers' files do no harm."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stepscope.errors import InputError
from stepscope.plan.catalog import find_model
from stepscope.plan.cluster_parse import parse_cluster
from stepscope.plan.estimate import choice_of
from stepscope.plan.framework import find_framework
from stepscope.plan.job import TrainingJob
from stepscope.plan.launch.check import Checked, check, framework_of
from stepscope.plan.launch.emit import launch_of
from stepscope.plan.launch.flags import flags_of
from stepscope.plan.launch.megatron import model_of
from stepscope.plan.launch.read import read_settings
from stepscope.plan.launch.settings import Settings
from tests.plan.launch.launch_cases import chosen, job_of, text_of, written
from tests.wording import mentions

GOOD: dict[str, Any] = {
    "train_batch_size": 128,
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 8,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 3, "overlap_comm": True, "reduce_bucket_size": 100_000_000},
}


def job_for(settings: Settings, cluster: str = "1x8xH100") -> TrainingJob:
    framework = find_framework(settings.framework)
    assert framework is not None
    return TrainingJob(
        model=settings.model or find_model(settings.model_word or "llama3-8b"),
        cluster=parse_cluster(cluster),
        seq_len=settings.seq_len or 4096,
        global_batch=settings.global_batch or 1,
        precision=settings.precision or "bf16",
        framework=framework_of(settings, framework),
    )


def checked_config(folder: Path, config: dict[str, Any], cluster: str = "1x8xH100") -> Checked:
    path = folder / "ds_config.json"
    path.write_text(json.dumps(config))
    settings = read_settings(path)
    return check(settings, job_for(settings, cluster))


def codes(checked: Checked) -> set[str]:
    return {fault.code for fault in checked.faults}


ROUND_TRIPS: list[tuple[str, str, str, dict[str, Any]]] = [
    ("deepspeed", "ds_config.json", "llama3-8b", {"zero_stage": 3, "micro_batch": 2}),
    ("deepspeed", "ds_config.json", "llama3-8b", {"zero_stage": 2, "offload": "optimizer"}),
    ("megatron", "megatron-args.sh", "llama3-70b", {
        "tp": 4, "pp": 4, "vpp": 2, "zero_stage": 1, "is_sequence_parallel": True,
        "recompute": "selective"}),
    ("megatron", "megatron-args.sh", "llama3-70b", {
        "tp": 4, "pp": 4, "vpp": 2, "zero_stage": 1, "is_sequence_parallel": True,
        "recompute": "full", "recompute_layers": 6}),
    ("megatron", "megatron-args.sh", "mixtral-8x7b", {
        "tp": 2, "ep": 4, "zero_stage": 1, "is_sequence_parallel": True}),
    ("torchtitan", "train.toml", "llama3-70b", {
        "tp": 4, "pp": 4, "zero_stage": 3, "is_sequence_parallel": True, "recompute": "full"}),
    ("torchtitan", "launch.sh", "llama3-8b", {"zero_stage": 2, "recompute": "full"}),
    ("torchtitan", "train.toml", "llama3-8b", {"zero_stage": 2}),
    ("torchtitan", "launch.sh", "llama3-70b", {
        "tp": 8, "zero_stage": 3, "is_sequence_parallel": True, "recompute": "selective"}),
]  # fmt: skip


@pytest.mark.parametrize(("target", "name", "model", "parts"), ROUND_TRIPS)
def test_what_was_written_is_read_as_it_was_planned(
    target: str, name: str, model: str, parts: dict[str, Any], tmp_path: Path
) -> None:
    job = job_of(target, model, "8x8xH100", seq_len=4096, global_batch=1024)
    choice = chosen(job, **parts)
    written(launch_of(target, job, choice), tmp_path)
    settings = read_settings(tmp_path / name)
    again = check(settings, replace(job_for(settings, "8x8xH100"), model=job.model))
    assert str(again.layout) == str(choice.layout)
    assert again.layout == choice.layout
    assert not codes(again) & {"batch", "devices", "cannot-be-cut"}
    assert again.job is not None
    assert (again.job.global_batch, again.job.precision) == (1024, "bf16")


def test_megatron_flags_describe_the_model_they_were_written_of() -> None:
    for name in ("llama3-70b", "gpt3-175b", "mixtral-8x7b", "deepseek-v3"):
        job = job_of("megatron", name, "1x8xH100", seq_len=2048)
        launch = launch_of("megatron", job, chosen(job))
        flags, notes = flags_of(text_of(launch, "megatron-args.sh"), "megatron-args.sh", ())
        model = model_of(flags)
        assert model is not None
        assert notes == ()
        assert model.num_params == pytest.approx(job.model.num_params, rel=1e-3), name


@pytest.mark.parametrize(("pp", "vpp"), [(8, 1), (16, 4), (32, 2)])
def test_stages_that_do_not_come_out_even_are_shared_out(pp: int, vpp: int, tmp_path: Path) -> None:
    job = job_of("megatron", "llama3-405b", "64x8xH100", seq_len=8192, global_batch=512)
    choice = chosen(job, tp=8, pp=pp, vpp=vpp, zero_stage=1, is_sequence_parallel=True)
    folder = written(launch_of("megatron", job, choice), tmp_path)
    again = check(read_settings(folder / "megatron-args.sh"), job)
    assert again.layout == choice.layout
    assert again.choice is not None
    assert again.choice.step_s == pytest.approx(choice.step_s)


@pytest.mark.parametrize(
    ("text", "vpp"),
    [("'Et*2|(tt|)*22t|(tt|)*7mL'", 4), ("'Et*15|t*16|t*16|t*14L'", 1),
     (r"Et\*3\|\(tt\|\)\*29m\|L", 4)],
)  # fmt: skip
def test_pieces_of_stages_are_counted(text: str, vpp: int, tmp_path: Path) -> None:
    pp = 4 if vpp == 1 else 8
    path = tmp_path / "train.sh"
    path.write_text(
        f"ARGS=(--num-layers 61 --micro-batch-size 1 --pipeline-model-parallel-size {pp}\n"
        f"  --pipeline-model-parallel-layout {text})\n"
    )
    settings = read_settings(path)
    assert (settings.layout.pp, settings.layout.vpp, settings.refused) == (pp, vpp, ())
    path.write_text("f --num-layers 61 --micro-batch-size 1 --pipeline-model-parallel-size 8")
    [refused] = read_settings(path).refused
    assert mentions(refused, "61 layers do not divide into 8 pieces")


def test_a_good_configuration_has_ranges_and_no_error(tmp_path: Path) -> None:
    checked = checked_config(tmp_path, GOOD, "1x8xH200")
    assert checked.runs
    assert checked.step is not None
    assert checked.memory is not None
    assert checked.step.low < checked.step.value < checked.step.high
    assert checked.memory.low < checked.memory.value < checked.memory.high
    assert not codes(checked) & {"batch", "overlap-off", "precision", "small-buckets"}


def with_zero(**fields: Any) -> dict[str, Any]:
    return {**GOOD, "zero_optimization": {**GOOD["zero_optimization"], **fields}}


WRONG: list[tuple[str, dict[str, Any], str, str]] = [
    ("batch", {**GOOD, "gradient_accumulation_steps": 4}, "1x8xH100", "64, and the global"),
    ("does-not-fit", with_zero(stage=0), "1x8xH100", "GiB of 80.0 GiB"),
    ("overlap-off", with_zero(stage=2, overlap_comm=False), "4x8xH100", "backward pass"),
    ("precision", {**GOOD, "bf16": {"enabled": False}}, "1x8xH100", "has bf16"),
    ("small-buckets", with_zero(reduce_bucket_size=200_000), "1x8xH100", "collectives a step"),
    ("large-buckets", with_zero(reduce_bucket_size=3 * 10**9), "1x8xH100", "of buffers"),
    ("offload", with_zero(offload_optimizer={"device": "cpu"}), "1x8xH200", "fits without"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "config", "cluster", "words"), WRONG)
def test_what_is_wrong_is_named_with_its_price(
    code: str, config: dict[str, Any], cluster: str, words: str, tmp_path: Path
) -> None:
    if cluster == "4x8xH100":
        config = {**config, "train_batch_size": 512}
    checked = checked_config(tmp_path, config, cluster)
    fault = next(fault for fault in checked.faults if fault.code == code)
    assert words in fault.what
    assert fault.fix
    if fault.kind == "slow":
        assert checked.step is not None
        assert fault.seconds is not None
        assert 0 < fault.seconds < checked.step.value
    if code == "does-not-fit":
        assert not checked.runs
        assert fault.num_bytes is not None
        assert fault.num_bytes > 0


def test_a_price_is_the_planned_difference(tmp_path: Path) -> None:
    config = {**GOOD, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 16}
    path = tmp_path / "ds_config.json"
    path.write_text(json.dumps(config))
    settings = read_settings(path)
    # A few tokens at a time leave the device waiting for launches and gathers.
    checked = check(settings, replace(job_for(settings, "1x8xH200"), seq_len=512))
    fault = next(fault for fault in checked.faults if fault.code == "micro-batch")
    assert checked.job is not None
    assert checked.layout is not None
    doubled = replace(checked.layout, micro_batch=2, num_micro=8)
    after = choice_of(checked.job, doubled).step_s
    assert checked.step is not None
    assert "small-buckets" not in codes(checked)
    assert fault.seconds == pytest.approx(checked.step.value - after)


TITAN = """[model]
name = "llama3"
flavor = "70B"
[training]
local_batch_size = 4
global_batch_size = {batch}
seq_len = 8192
[parallelism]
tensor_parallel_degree = 8
pipeline_parallel_degree = 4
[activation_checkpoint]
mode = "full"
"""


def test_a_pipeline_that_is_refilled_in_a_step_is_slow_and_no_error(tmp_path: Path) -> None:
    """Torchtitan accumulates over runs of the pipeline."""
    faults = {}
    for batch in (32, 256, 300):
        path = tmp_path / "train.toml"
        path.write_text(TITAN.format(batch=batch))
        settings = read_settings(path)
        checked = check(settings, job_for(settings, "32x8xH100"))
        faults[batch] = {fault.code: fault for fault in checked.faults}
        assert checked.runs == (batch != 300)
    assert "pipeline-refilled" not in faults[32]
    refilled = faults[256]["pipeline-refilled"]
    assert mentions(refilled.what, "4 stages", "8 times")
    assert refilled.fix == "local_batch_size 32 and a 1F1B schedule"
    assert "batch" in faults[300]


def test_tensor_ranks_over_nodes_and_no_room_have_another_cut(tmp_path: Path) -> None:
    flags = tmp_path / "megatron-args.sh"
    job = job_of("megatron", "llama3-70b", "32x8xH100", seq_len=8192, global_batch=512)
    launch = launch_of("megatron", job, chosen(job, tp=8, pp=4, zero_stage=1))
    text = text_of(launch, flags.name).replace("parallel-size 8", "parallel-size 16")
    flags.write_text(text)
    settings = read_settings(flags)
    assert settings.layout.tp == 16
    faults = {each.code: each for each in check(settings, job_for(settings, "32x8xH100")).faults}
    assert "cross the network" in faults["tensor-over-nodes"].what
    assert faults["tensor-over-nodes"].fix.startswith("tp8 and pp8")
    flags.write_text(text.replace("parallel-size 16", "parallel-size 1"))
    settings = read_settings(flags)
    (full,) = (
        each
        for each in check(settings, job_for(settings, "32x8xH100")).faults
        if each.code == "does-not-fit"
    )
    assert " fits" in full.fix


def test_tensor_ranks_over_nodes_give_way_to_data_ranks_where_nothing_fills_stages(
    tmp_path: Path,
) -> None:
    """One micro-batch leaves stages empty; the batch grows, and as many sequences are compared."""
    path = tmp_path / "train.toml"
    path.write_text(
        '[model]\nname = "llama3"\nflavor = "70B"\n[training]\nlocal_batch_size = 1\n'
        "seq_len = 8192\n[parallelism]\ntensor_parallel_degree = 16\n"
    )
    settings = read_settings(path)
    faults = {each.code: each for each in check(settings, job_for(settings, "8x8xH100")).faults}
    assert mentions(faults["tensor-over-nodes"].fix, "tp8 and dp8", "batch of 8")


def test_a_check_says_of_memory_what_a_plan_does(tmp_path: Path) -> None:
    """What just fits a device is too large for a job; what a plan recommends is not tight."""
    full = {**GOOD, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4}
    full = full | {"train_batch_size": 64, "zero_optimization": {"stage": 1}}
    checked = checked_config(tmp_path, full, "2x8xH100")
    assert checked.job is not None
    assert checked.choice is not None
    cluster = checked.job.cluster
    cuts = [("does-not-fit", 0.93), ("tight", 0.91), ("", 0.89)]
    for code, share in cuts:
        sized = replace(cluster, memory_bytes=checked.choice.memory_bytes / share)
        again = check(checked.settings, replace(checked.job, cluster=sized))
        assert codes(again) & {"tight", "does-not-fit"} == ({code} if code else set())


def test_devices_that_cannot_be_cut_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "args.sh"
    path.write_text("ARGS=(--tensor-model-parallel-size 3 --micro-batch-size 1)\n")
    settings = read_settings(path)
    checked = check(settings, job_for(settings))
    assert not checked.runs
    assert mentions(checked.faults[0].what, "not divide", "8 devices")


def test_without_model_or_cluster_what_can_be_seen_is_said(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps({**GOOD, "bf16": {"enabled": False}}))
    checked = check(read_settings(path), None)
    assert codes(checked) == {"precision"}
    assert checked.step is None
    assert checked.fits is None


def test_variables_of_a_script_are_put_in_and_nothing_is_run(tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    path.write_text(
        "#!/bin/bash\nTP=4\nexport MBS=2\n"
        f"touch {tmp_path}/ran $(touch {tmp_path}/ran2)\n"
        "torchrun pretrain_gpt.py --tensor-model-parallel-size $TP \\\n"
        "  --micro-batch-size ${MBS} --global-batch-size $GBS --seq-length ${SEQ:-8192} --bf16\n"
    )
    settings = read_settings(path)
    assert (settings.layout.tp, settings.micro_batch, settings.seq_len) == (4, 2, 8192)
    assert settings.global_batch is None
    (note,) = settings.notes
    assert mentions(note, "--global-batch-size $GBS", "not set")
    assert len({fault.code for fault in check(settings, None).faults}) == 1
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "ran2").exists()


def test_gradients_in_half_precision_are_half_as_large(tmp_path: Path) -> None:
    path = tmp_path / "args.sh"
    text = "--tensor-model-parallel-size 1 --micro-batch-size 1 --bf16 --use-distributed-optimizer"
    sizes = []
    for more in ("", " --grad-reduce-in-bf16"):
        path.write_text(f"{text}{more}\n")
        settings = read_settings(path)
        checked = check(settings, job_for(settings))
        assert checked.choice is not None
        sizes.append(checked.choice.memory["gradients"])
    assert sizes[1] == pytest.approx(sizes[0] / 2)


def test_auto_is_not_said(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    auto = {
        "train_batch_size": "auto",
        "zero_optimization": {"stage": 3},
        "bf16": {"enabled": "auto"},
    }
    path.write_text(json.dumps(auto))
    settings = read_settings(path)
    assert settings.global_batch is None
    assert settings.precision is None
    (note,) = settings.notes
    assert mentions(note, "train_batch_size is auto")


STRANGE = [
    ("x.json", b"{", "not JSON"),
    ("x.json", b"{}", "no DeepSpeed configuration"),
    ("x.json", b"{" + b'"a":[' * 5000, "not JSON"),
    ("x.toml", b"[[[", "not TOML"),
    ("x.toml", b"[tool]\na = 1\n", "neither [parallelism] nor [training]"),
    ("x.sh", b"echo hello\n", "no flags"),
    ("x.sh", b"echo 'unclosed\n", "a shell script"),
    ("x.sh", b"\xff\xfe\x00" * 100, "no flags"),
    ("x.sh", b"--x=${" * 30_000, "no launch script"),
    ("x.sh", b"--tensor-model-parallel-size $A " * 3_000, "no flags"),
]


@pytest.mark.parametrize(("name", "data", "words"), STRANGE)
def test_strange_files_are_refused_in_a_sentence(
    name: str, data: bytes, words: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(InputError) as problem:
        read_settings(path)
    assert words in str(problem.value)


def test_values_out_of_range_are_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    wild = {
        "train_batch_size": 10**30, "train_micro_batch_size_per_gpu": -1,
        "zero_optimization": {"stage": 77, "reduce_bucket_size": "big"},
    }  # fmt: skip
    path.write_text(json.dumps(wild))
    settings = read_settings(path)
    assert settings.global_batch is settings.micro_batch is None
    assert settings.layout.zero_stage == 0
    assert settings.bucket_elements is None
    checked = check(settings, None)
    assert [fault.what.split(" is ")[0] for fault in checked.faults if fault.code == "value"] == [
        "train_micro_batch_size_per_gpu", "stage", "reduce_bucket_size",
    ]  # fmt: skip
    assert not checked.runs


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (
            "x.toml",
            """
            [parallelism]
            tensor_parallel_degree = "two"
            data_parallel_shard_degree = -1
            [training]
            local_batch_size = 0
            global_batch_size = -1
            """,
            ["tensor_parallel_degree is 'two'", "local_batch_size is '0'"],
        ),
        (
            "x.sh",
            "train.py --tensor-model-parallel-size 2x --micro-batch-size --bf16\n",
            ["--tensor-model-parallel-size is '2x'", "--micro-batch-size is 'True'"],
        ),
        ("x.json", '{"zero_optimization": [1]}', ["zero_optimization is no object"]),
        ("x.json", '{"zero_optimization": true, "train_batch_size": "auto"}', []),
    ],
)
def test_values_that_the_framework_refuses_are_errors(
    name: str, text: str, said: list[str], tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_text(text)
    faults = [each for each in check(read_settings(path), None).faults if each.code == "value"]
    assert len(faults) == len(said)
    for fault, words in zip(faults, said, strict=True):
        assert fault.what.startswith(words)


def test_a_variables_own_default_is_taken_and_arguments_are_unknown(tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    path.write_text(
        "TP=${TP:-2}\nPP=$1\nMBS=4\nMBS=${MBS:-8}\n"
        "torchrun pretrain_gpt.py --tensor-model-parallel-size $TP --micro-batch-size $MBS "
        "--pipeline-model-parallel-size $PP --context-parallel-size $((TP * 2))\n"
    )
    settings = read_settings(path)
    cut = settings.layout
    assert (cut.tp, settings.micro_batch, cut.pp, cut.cp) == (2, 4, 1, 1)
    assert [note.split(" ")[0] for note in settings.notes] == [
        "--pipeline-model-parallel-size", "--context-parallel-size",
    ]  # fmt: skip
    assert settings.refused == ()


def test_what_is_advised_for_memory_is_what_the_framework_has(tmp_path: Path) -> None:
    path = tmp_path / "train.toml"
    path.write_text(
        '[model]\nname = "llama3"\nflavor = "405B"\n[training]\nlocal_batch_size = 1\n'
        "seq_len = 8192\n[parallelism]\ntensor_parallel_degree = 8\n"
        "pipeline_parallel_degree = 6\n"
    )
    settings = read_settings(path)
    checked = check(settings, job_for(settings, "6x8xH100"))
    (fault,) = (each for each in checked.faults if each.code == "does-not-fit")
    assert "offload-optimizer" not in fault.fix
