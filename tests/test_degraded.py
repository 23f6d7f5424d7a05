"""A trace that lacks something makes fewer claims, and no wrong ones; and says what to record."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from benchmarks.degrade import DEGRADATIONS, TraceJson
from benchmarks.truth import BLAME, diagnosed, diagnosed_degraded, read_json, wrong_claims
from stepscope.cli.main import main
from stepscope.core.diagnosis import Diagnosis
from stepscope.pipeline.options import Options
from stepscope.pipeline.recording import diagnose
from tests.installed import once_unless
from tests.shared_data import (
    DEMO,
    ROOT,
    SAMPLES,
    SHARED,
    lab_trace,
    needs_shared,
    shared_traces,
    some,
)
from tests.wording import any_mentions, mentions

NOTES = {
    "no-shapes": "record_shapes=True",
    "no-stacks": "with_stack=True",
    "no-marks": "no marks",
    "no-host-operators": "no operators",
    "kernels-only": "no runtime calls",
    "cpu-only": "ProfilerActivity.CUDA",
    "late-start": "record two steps",
    "lost-kernels": "were lost",
    "lost-launches": "were lost",
    "no-device": "device is not in",
    "one-step": "record two steps",
    "graphs": "inside CUDA graphs",
}
"""What the notes say of each degradation; ROCm lacks nothing."""

NVIDIA_ONLY = ("tf32", "set_float32_matmul_precision", "cudnn", "cublas", "nvidia")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A recorded run whose answer is known."""

    path: Path
    truth: dict[str, Any]


def lab_case(name: str) -> Sample:
    truth = json.loads((ROOT / "lab" / "truth.json").read_text())["cases"][name]
    return Sample(path=lab_trace(f"traces/{name}.slow"), truth=truth)


DEMO_SLOW_MS = 65.48
DEMO_TRUTH = {"bounds": ["data"], "causes": ["serial-loader"], "slow_ms": DEMO_SLOW_MS}
NUM_SHARDS = 3
NAMES = ("demo", "cnn_pointwise", "upscaler_nchw_fp32")


@cache
def sample(name: str) -> Sample:
    return Sample(path=DEMO, truth=DEMO_TRUTH) if name == "demo" else lab_case(name)


@cache
def recorded(path: Path) -> TraceJson:
    return read_json(str(path))


@cache
def whole(path: Path, slow_ms: float) -> list[Diagnosis]:
    return diagnosed_degraded(recorded(path), "", [slow_ms, None])


@cache
def degraded(path: Path, degradation: str, slow_ms: float) -> list[Diagnosis]:
    return diagnosed_degraded(recorded(path), degradation, [slow_ms, None])


def check(diagnosis: Diagnosis) -> None:
    """Times add up, whatever was recorded."""
    diagnosis.facts.self_check()
    for rank in diagnosis.facts.ranks:
        if rank.partition is not None:
            assert [
                sum(parts) for parts in zip(*rank.partition.parts.values(), strict=True)
            ] == list(rank.partition.totals)
    assert all(0 <= share <= 1 for share in diagnosis.verdict.shares.values())
    assert diagnosis.verdict.summary


@pytest.mark.parametrize(
    ("name", "degradation"),
    [
        (name, degradation)
        for turn, degradation in enumerate(DEGRADATIONS)
        for name in ("demo", NAMES[1 + turn % 2])
    ],
)
def test_a_degraded_trace_makes_no_wrong_claims(name: str, degradation: str) -> None:
    case = sample(name)
    slow_ms = case.truth["slow_ms"]
    for told, complete in zip(
        degraded(case.path, degradation, slow_ms), whole(case.path, slow_ms), strict=True
    ):
        check(told)
        assert wrong_claims(told, complete, case.truth, fixed=False) == []


@pytest.mark.parametrize("degradation", NOTES)
def test_the_notes_say_what_is_missing(degradation: str) -> None:
    notes = degraded(DEMO, degradation, DEMO_SLOW_MS)[-1].notes
    assert any(NOTES[degradation] in note for note in notes), notes


def test_a_degradation_leaves_the_original_as_it_was() -> None:
    trace = recorded(sample("upscaler_nchw_fp32").path)
    before = json.dumps(trace)
    for degrade in DEGRADATIONS.values():
        degrade(trace)
    assert json.dumps(trace) == before


TRUTH = json.loads((SAMPLES / "truth.json").read_text())["cases"]


def shared_cases() -> list[tuple[str, str]]:
    """Each run of the first lab with a degradation, and those that lie in the repository with two:
    in turn, so that every one is tried; a long one with what is quick."""
    names, cases = list(DEGRADATIONS), [name for name in TRUTH if "/" not in name]
    runs = [
        name
        for name in cases
        for _ in range(2 if lab_trace(f"single/{name}.slow").is_file() else 1)
    ]
    return [
        (name, "kernels-only" if name == "small_batch" else names[turn % len(names)])
        for turn, name in enumerate(runs)
    ]


def names_no_wrong_bound_and_blames_nothing_innocent(
    path: Path, name: str, degradation: str
) -> None:
    truth = TRUTH[name]
    for told in diagnosed_degraded(recorded(path), degradation, [truth["slow_ms"], None]):
        check(told)
        assert told.verdict.bound in (*truth["bounds"], "unknown")
        blamed = [f.code for f in told.findings if f.predicted_speedup > BLAME]
        assert not set(blamed) & set(truth.get("no_gain_from", []))


def sampled_cases() -> list[tuple[str, str]]:
    return [
        (name, degradation)
        for name, degradation in shared_cases()
        if lab_trace(f"single/{name}.slow").is_file()
    ]


@pytest.mark.parametrize(("name", "degradation"), sampled_cases())
def test_a_degraded_sample_names_no_wrong_bound_and_blames_nothing_innocent(
    name: str, degradation: str
) -> None:
    path = lab_trace(f"single/{name}.slow")
    names_no_wrong_bound_and_blames_nothing_innocent(path, name, degradation)


@needs_shared
@pytest.mark.parametrize("shard", once_unless("the shared recordings", range(NUM_SHARDS)))
def test_a_degraded_shared_trace_names_no_wrong_bound_and_blames_nothing_innocent(
    shard: int,
) -> None:
    cases = [case for case in shared_cases() if case not in sampled_cases()]
    for name, degradation in some(cases[shard::NUM_SHARDS], len(cases) // (2 * NUM_SHARDS)):
        path = SHARED / "lab" / "single" / f"{name}.slow.pt.trace.json.gz"
        names_no_wrong_bound_and_blames_nothing_innocent(path, name, degradation)


ROCM = ("hta/amd_trace.*.json.gz", "tracelens/mi300.*.json.gz", "tracelens/inference.vllm*.json.gz")


@needs_shared
def test_a_rocm_trace_gets_no_advice_that_is_nvidias_alone() -> None:
    paths = shared_traces(*(f"public/{pattern}" for pattern in ROCM))
    assert len(paths) >= len(ROCM)
    for path in paths:
        diagnosis = diagnosed([str(path)], None)
        check(diagnosis)
        for finding in diagnosis.findings:
            assert not any(word in finding.action.lower() for word in NVIDIA_ONLY), finding.action


@needs_shared
def test_a_graph_of_one_step_is_not_judged_by_how_it_looks() -> None:
    """vLLM's decode step in a graph: one step, with gaps whose cause was not recorded."""
    (path,) = shared_traces("public/tracelens/inference.vllm_decode_full*.json.gz")
    diagnosis = diagnosed([str(path)], None)
    assert diagnosis.verdict.bound == "unknown"
    assert diagnosis.findings == ()
    assert any_mentions(diagnosis.notes, "CUDA graphs")


@pytest.mark.parametrize("name", ["upscaler_nchw_fp32"])
def test_fp32_products_on_an_amd_device_are_not_told_to_use_tf32(name: str) -> None:
    case = lab_case(name)
    for diagnosis in degraded(case.path, "rocm", case.truth["slow_ms"]):
        assert diagnosis.facts.ranks[0].device_name == "AMD Instinct MI300X"
        for finding in diagnosis.findings:
            assert not any(word in finding.action.lower() for word in NVIDIA_ONLY), finding.action


@pytest.mark.parametrize("share", [0.7, 0.85, 0.9, 0.95])
def test_a_file_that_ends_before_the_devices_work_claims_nothing_of_it(
    tmp_path: Path, share: float
) -> None:
    """As a killed job or a full disk leaves it: the host's operators are there, of its launches the
    first."""
    text, cut = gzip.decompress(DEMO.read_bytes()), tmp_path / "cut.json"
    cut.write_bytes(text[: int(share * len(text))])
    diagnosis = diagnose([cut], Options(use_cache=False))
    assert diagnosis.verdict.bound == "unknown"
    assert mentions(diagnosis.verdict.summary, "ends early")
    assert diagnosis.findings == ()
    assert diagnosis.step.ms is None
    assert any("record anew" in note for note in diagnosis.notes)


def test_a_timeline_that_ends_before_the_devices_work_claims_nothing_of_it(tmp_path: Path) -> None:
    """Calls are there, and their work is not."""
    whole, cut = tmp_path / "whole.pftrace", tmp_path / "cut.pftrace"
    assert main(["export", "perfetto", str(DEMO), "-o", str(whole), "--no-cache"]) == 0
    packets = whole.read_bytes()
    cut.write_bytes(packets[: int(0.97 * len(packets))])
    diagnosis = diagnose([cut], Options(use_cache=False))
    launches = diagnosis.facts.ranks[0].launches
    assert launches is not None
    assert launches.cut_share > 0.01
    assert diagnosis.verdict.bound == "unknown"
    assert diagnosis.step.ms is None


def test_a_file_that_lacks_its_last_lines_alone_is_judged(tmp_path: Path) -> None:
    text, cut = gzip.decompress(DEMO.read_bytes()), tmp_path / "cut.json"
    cut.write_bytes(text[: text.rindex(b"]")])
    diagnosis = diagnose([cut], Options(use_cache=False))
    assert diagnosis.verdict.bound == "data"
    assert diagnosis.step.ms is not None
