"""How wide plans are, and what that rests on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.plan_ranges import WANTED, calibrated, coverage, quantile
from benchmarks.planner import score
from stepscope.plan.catalog import find_model
from stepscope.plan.cluster_parse import parse_cluster
from stepscope.plan.devices import find_device
from stepscope.plan.estimate import estimate_one
from stepscope.plan.job import TrainingJob
from stepscope.plan.layout import Layout
from stepscope.plan.ranges import (
    FEW,
    MEMORY,
    MEMORY_UNSEEN,
    STEP_DENSE,
    STEP_MIXTURE,
    STEP_UNSEEN,
    VALIDATED,
    ranges_of,
)
from stepscope.plan.rows import predict, read_rows
from tests.wording import mentions

MORE_ROWS = Path(__file__).parents[2] / "benchmarks/rows_more.jsonl"


def job_of(model: str, cluster: str) -> TrainingJob:
    return TrainingJob(
        model=find_model(model), cluster=parse_cluster(cluster), seq_len=4096, global_batch=64
    )


def test_a_device_that_no_row_is_of_has_a_wide_range_and_says_so() -> None:
    for device in ("MI300X", "MI325X", "MI350X", "MI355X", "V100"):
        ranges = ranges_of(job_of("llama3-8b", f"1x8x{device}"))
        assert ranges.step == STEP_UNSEEN
        num = FEW.get(find_device(device).spec.key, 0)
        assert mentions(ranges.words, f"{num or 'no'} published step")
        assert (ranges.num_compared or 0) == num
        assert not ranges.is_validated
    assert STEP_UNSEEN.high / STEP_UNSEEN.low > STEP_DENSE.high / STEP_DENSE.low


def test_memory_of_another_maker_is_less_sure() -> None:
    for device, memory in (("MI300X", MEMORY_UNSEEN), ("MI355X", MEMORY_UNSEEN), ("V100", MEMORY)):
        ranges = ranges_of(job_of("llama3-8b", f"1x8x{device}"))
        assert ranges.memory == memory
        assert f"{memory.low:.2f} to {memory.high:.2f} times" in ranges.words
    assert MEMORY_UNSEEN.low < MEMORY.low < MEMORY.high < MEMORY_UNSEEN.high


def test_a_mixtures_memory_has_a_range_in_words_too() -> None:
    words = ranges_of(job_of("qwen3-235b-a22b", "4x8xH100")).words
    assert f"{MEMORY.low:.2f} to {MEMORY.high:.2f} times" in words


def test_a_mixture_on_such_a_device_is_least_sure() -> None:
    job = replace(job_of("qwen3-235b-a22b", "4x8xMI355X"), global_batch=512)
    ranges = ranges_of(job)
    assert ranges.step.low <= min(STEP_UNSEEN.low, STEP_MIXTURE.low)
    assert ranges.step.high > max(STEP_UNSEEN.high, STEP_MIXTURE.high)
    # Primus: 32 of them, 4 stages, 8 expert ranks; the batch is not said.
    layout = Layout(pp=4, ep=8, dp=8, micro_batch=1, num_micro=64, zero_stage=1)
    planned = estimate_one(job, layout)
    assert ranges.step.low < planned.tokens_per_s_per_device[0] / 2742.4 < ranges.step.high


def test_published_steps_on_amd_are_within_a_tenth() -> None:
    """Nothing was set on them: MI325X has MI300X's share, by its power."""
    rows = [row for row in read_rows(MORE_ROWS) if row["source"].startswith("primus")]
    scores = score(rows)
    assert {name: told["step"]["rows"] for name, told in scores.items()} == {
        f"primus-{device}": num for device, num in FEW.items()
    }
    assert all(told["step"]["p90_error"] < 0.1 for told in scores.values())


def test_validated_devices_are_devices() -> None:
    assert {find_device(key).spec.key for key in FEW} == FEW.keys()
    assert {find_device(key).spec.key for key in VALIDATED} == VALIDATED
    assert ranges_of(job_of("llama3-8b", "1x8xB200")).step == STEP_DENSE


def test_mixtures_are_less_sure_than_dense_models() -> None:
    mixture = ranges_of(job_of("deepseek-v3", "32x8xH100"))
    assert mixture.step == STEP_MIXTURE
    assert "mixtures" in mixture.words


def test_rates_are_low_where_steps_are_long() -> None:
    made = ranges_of(job_of("llama3-8b", "1x8xH100")).of(
        step_s=2.0, memory_bytes=100.0, rates={"mfu": 0.5}
    )
    assert made["step_s"] == (2.0 * STEP_DENSE.low, 2.0 * STEP_DENSE.high)
    assert made["mfu"] == (0.5 / STEP_DENSE.high, 0.5 / STEP_DENSE.low)
    assert made["memory_bytes"] == (100.0 * MEMORY.low, 100.0 * MEMORY.high)


def test_a_row_gets_its_range() -> None:
    row = {
        "id": "one", "model": {"name": "llama3-8b"}, "seq_len": 4096, "global_batch": 64,
        "cluster": {"gpu": "H100", "num_gpus": 8}, "layout": {"tp": 1, "pp": 1, "micro_batch": 1},
    }  # fmt: skip
    told = predict(row)
    assert told["step_s_low"] < told["step_s"] < told["step_s_high"]
    assert told["memory_gb_low"] < told["memory_gb"] < told["memory_gb_high"]


def test_sources_count_alike_however_many_rows_they_have() -> None:
    assert quantile([[1.0] * 99, [2.0]], 0.75) == pytest.approx(2.0)


def test_a_source_is_judged_by_the_range_of_the_others() -> None:
    of_source = {"near": [1.0, 1.1], "same": [1.0, 1.1], "far": [2.0, 2.1]}
    covered = coverage(of_source, 0.01)
    assert covered["far"] == 0.0
    assert covered["near"] == covered["same"] == 1.0


def test_the_range_covers_as_much_as_wanted_where_sources_agree() -> None:
    spread = [0.9 + 0.01 * index for index in range(30)]
    of_source = {f"source {index}": spread for index in range(6)}
    tail, low, high, covered = calibrated(of_source)
    assert all(share >= WANTED for share in covered.values())
    assert 0.05 <= tail <= 0.15
    assert 0.9 <= low < 1.0 < high <= 1.2
