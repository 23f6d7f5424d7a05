"""One job under each framework: only what can be written is recommended, whatever the model, the
devices and what was asked."""

from __future__ import annotations

import pytest

from stepscope.plan.catalog import find_model
from stepscope.plan.cluster_parse import parse_cluster
from stepscope.plan.framework import find_framework
from stepscope.plan.job import TrainingJob
from stepscope.plan.launch.compare import bare, candidates, chosen, first_that_writes, nearest
from stepscope.plan.launch.emit import COMPARED, TARGETS, able, launch_of, target_of
from stepscope.plan.layout import OFFLOAD, Layout
from stepscope.plan.space import Space
from stepscope.plan.validate import shortfall

JOBS = [
    ("llama3-8b", "1x8xH100", 4096, {}),
    ("llama3-70b", "8x8xH100", 4096, {}),
    ("10b", "2xRTX3090", 2048, {"offload": OFFLOAD}),
    ("7b", "4xA100", 4096, {}),
    ("mixtral-8x7b", "4x8xH100", 4096, {}),
    ("gpt2", "1xA100", 1024, {}),
    ("gpt-oss-120b", "8x8xH100", 4096, {}),
    ("deepseek-v3", "32x8xH100", 4096, {}),
    ("bert-base", "4xA100", 512, {}),
]  # fmt: skip


def job_for(model: str, cluster: str, seq: int = 4096, **rest: object) -> TrainingJob:
    devices = parse_cluster(cluster)
    batch = 4 * devices.num_devices
    values = {"model": find_model(model), "cluster": devices, "seq_len": seq, "global_batch": batch}
    return TrainingJob(**(values | rest))  # type: ignore[arg-type]


def test_models_that_the_script_lacks_are_written_for_the_trainer() -> None:
    windowed = job_for("mistral-7b", "1x8xH100", 16384)
    compared = candidates(windowed, Space(), COMPARED, top=1)
    rows = {each.job.framework.name: each for each in compared}
    assert rows["fsdp"].target == rows["ddp"].target == "transformers"
    assert chosen(compared) is rows["fsdp"]
    # All of a sequence is in sight.
    assert able("fsdp2", job_for("mistral-7b", "1x8xH100", 4096)) == "fsdp2"
    assert able("fsdp2", job_for("mixtral-8x7b", "1x8xH100")) == "fsdp2"


@pytest.mark.parametrize(("model", "cluster", "seq", "pins"), JOBS)
def test_what_is_recommended_can_be_written(
    model: str, cluster: str, seq: int, pins: dict[str, tuple[str, ...]]
) -> None:
    compared = candidates(job_for(model, cluster, seq), Space(**pins), COMPARED, top=5)  # type: ignore[arg-type]
    assert [each.target for each in compared] == [able(each, compared[0].job) for each in COMPARED]
    for each in compared:
        assert (each.best is None) == bool(each.reason)
        framework = each.job.framework
        for choice in (*each.found.best, *each.found.front):
            assert launch_of(each.target, each.job, choice).files
            cut = choice.layout
            stages = {0, *framework.zero_stages} if cut.dp * cut.cp == 1 else framework.zero_stages
            assert cut.zero_stage in stages
            assert framework.cuts_layers or cut.tp == cut.ep == 1
            assert framework.has_stages or cut.pp == 1
            assert framework.has_context or cut.cp == 1
    best = chosen(compared)
    assert best is not None
    assert best.best is not None
    preferred = [each for each in compared[:3] if each.best is not None]
    assert best in (preferred or compared)


def test_what_a_framework_lacks_is_a_reason_and_not_searched() -> None:
    compared = candidates(job_for("llama3-8b", "8xH100", precision="fp8"), Space(), COMPARED, top=5)
    assert [each.target for each in compared if each.best is not None] == ["megatron"]
    assert all("fp8" in each.reason for each in compared if each.best is None)
    assert compared[0].found.num_layouts == 0


def test_where_nothing_fits_the_nearest_is_told() -> None:
    compared = candidates(job_for("llama3-70b", "2xRTX3090"), Space(), COMPARED, top=5)
    assert chosen(compared) is None
    least = nearest(compared)
    assert least is not None
    assert least.job.framework.zero_stages[-1] == 3


def test_where_nothing_fits_what_can_be_helped_is_told() -> None:
    """DDP needs least on one card, and nothing makes it fit there."""
    compared = candidates(job_for("llama3-8b", "1xRTX4090", 2048), Space(), COMPARED, top=5)
    assert chosen(compared) is None
    least = nearest(compared)
    assert least is not None
    short = shortfall(least.job, least.space)
    assert short is not None
    assert any("offload" in each for each in short.helps)


def test_a_named_layout_goes_by_the_first_framework_that_writes_it() -> None:
    job = job_for("llama3-8b", "8xH100")
    for layout, target in (
        (Layout(dp=8, num_micro=4), "torchrun"),
        (Layout(dp=8, num_micro=4, zero_stage=3), "fsdp2"),
        (Layout(dp=8, num_micro=4, zero_stage=1), "deepspeed"),
        (Layout(dp=4, tp=2, num_micro=8, zero_stage=3, is_sequence_parallel=True), "torchtitan"),
        (Layout(dp=4, tp=2, num_micro=8, zero_stage=1), "megatron"),
    ):
        found = first_that_writes(job, Space(), layout, COMPARED)
        assert found is not None
        assert found.target == target
    assert first_that_writes(job, Space(), Layout(dp=8, tp=2), COMPARED) is None


def test_every_target_has_a_framework_that_is_known() -> None:
    for word in COMPARED:
        assert target_of(TARGETS[word].framework, job_for("7b", "8xH100")) == word
        framework = find_framework(TARGETS[word].framework)
        assert framework is not None
        assert bare(job_for("7b", "8xH100"), Space(), word).job.framework == framework
    assert target_of("nanotron", job_for("7b", "8xH100")) is None
