"""What is written, read again, costs the same: every target, models of several kinds, every ZeRO
stage, recomputation and offload that the search tries."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stepscope.errors import UsageError
from stepscope.plan.catalog import find_model
from stepscope.plan.cluster_parse import parse_cluster
from stepscope.plan.estimate import choices_of
from stepscope.plan.framework import find_framework, grads_setting, with_grads
from stepscope.plan.job import OPTIMIZERS, TrainingJob
from stepscope.plan.launch import check as check_module
from stepscope.plan.launch.check import check, framework_of
from stepscope.plan.launch.compare import bare
from stepscope.plan.launch.emit import TARGETS, launch_of
from stepscope.plan.launch.read import read_settings
from stepscope.plan.layout import OFFLOAD, Ints, Layouts
from stepscope.plan.space import Grid, Space
from tests.plan.launch.launch_cases import written

FILES = {
    "torchrun": ("layout.json",),
    "fsdp2": ("layout.json",),
    "accelerate": ("layout.json",),
    "deepspeed": ("ds_config.json",),
    "megatron": ("megatron-args.sh",),
    "torchtitan": ("train.toml", "launch.sh"),
    "transformers": ("trainer-args.sh",),
}
BESIDE = [("transformers", "ddp"), ("transformers", "deepspeed")]
"""Frameworks that a target writes beside its usual one."""
CASES = [*((target, TARGETS[target].framework) for target in sorted(TARGETS)), *BESIDE]
JOBS = [
    ("llama3-8b", "1x8xH100", 4096, "bf16", "adam", None),
    ("llama3-8b", "1x8xH100", 4096, "bf16", "adam", "bf16"),
    ("llama3-8b", "1x8xH100", 4096, "bf16", "adam", "fp32"),
    ("gpt2-xl", "2x4xA100", 1024, "fp32", "sgd", None),
    ("mixtral-8x7b", "2x8xH100", 4096, "fp8", "momentum", None),
    ("llama3-70b", "8x8xH100", 8192, "bf16", "adam", None),
]


def spread(piece: Layouts) -> Ints:
    """Indices of one of each stage, recomputation and offload, at random, the same each time."""
    random = np.random.default_rng(1).permutation(len(piece.zero_stage))
    tried = np.stack((piece.zero_stage, piece.recompute, piece.offload))[:, random]
    _, first = np.unique(tried, axis=1, return_index=True)
    return np.asarray(random[first], np.int64)


def test_every_target_is_read_again() -> None:
    assert set(FILES) == set(TARGETS)


@pytest.mark.parametrize(("target", "named"), CASES)
@pytest.mark.parametrize(("model", "cluster", "seq", "precision", "optimizer", "grads"), JOBS)
def test_what_is_written_costs_the_same_when_it_is_read(
    target: str,
    named: str,
    model: str,
    cluster: str,
    seq: int,
    precision: str,
    optimizer: str,
    grads: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # What else would be faster or would fit is no part of the price, and most of the work.
    monkeypatch.setattr(check_module, "_slow_faults", lambda *_: ())
    monkeypatch.setattr(check_module, "_memory_faults", lambda *_: ())
    plain = TrainingJob(
        model=find_model(model), cluster=parse_cluster(cluster), seq_len=seq, global_batch=128,
        precision=precision, optimizer=OPTIMIZERS[optimizer], grads=grads,
    )  # fmt: skip
    candidate = bare(plain, Space(offload=OFFLOAD, recompute_every=(1, 2)), target)
    job, own = candidate.job, find_framework(named)
    assert own is not None
    if (target, named) in BESIDE:
        with_own = grads and grads_setting(own, grads)
        job = replace(job, framework=with_grads(own, grads) if with_own and grads else own)
    if TARGETS[target].lacks(job) or (grads and grads_setting(job.framework, grads) is None):
        return
    seen: set[tuple[int, str, str]] = set()
    for piece in Grid(job, candidate.space).chunks():
        for choice in choices_of(job, piece.take(spread(piece))):
            try:
                launch = launch_of(target, job, choice)
            except UsageError:
                continue
            written(launch, tmp_path)
            for name in FILES[target]:
                settings = read_settings(tmp_path / name)
                framework = find_framework(settings.framework)
                assert framework is not None
                read = replace(
                    job,
                    framework=framework_of(settings, framework),
                    model=settings.model or job.model,
                    precision=settings.precision or "",
                    optimizer=OPTIMIZERS[settings.optimizer or optimizer],
                )
                again = check(settings, read)
                where = (name, str(choice.layout), again.faults, again.notes)
                assert again.layout is not None, where
                assert str(again.layout) == str(choice.layout), where
                assert again.choice is not None, where
                assert again.step is not None, where
                assert again.choice.step_s == pytest.approx(choice.step_s), where
                assert again.step.value == pytest.approx(choice.step_s), where
                assert again.choice.memory_bytes == pytest.approx(choice.memory_bytes), where
                layout = choice.layout
                seen.add((layout.zero_stage, layout.recompute, layout.offload))
    assert seen
    if "deepspeed" in (target, named) or target in ("fsdp2", "megatron", "transformers"):
        assert {stage for stage, _, _ in seen} >= set(job.framework.zero_stages) - {0}
