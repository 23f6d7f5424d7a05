"""Documents without a published schema: each is written byte by byte as it was."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stepscope.core.codec import encode
from stepscope.plan.from_run import MeasuredCollective, MeasuredRun, extrapolate
from stepscope.plan.report.run import RunPlan, run_plan_json
from stepscope.readers.format import JUDGED
from stepscope.readers.formats import FORMATS
from stepscope.report.formats import formats_json
from stepscope.tune.cache import KeptSetting
from stepscope.tune.report.cache import cache_json
from stepscope.tune.shapes.kernel_tuning import (
    RIGHT,
    WRONG,
    Case,
    CaseResult,
    Check,
    Deviation,
    Device,
    Error,
    Floor,
    Gain,
    KernelTuning,
    Timed,
    Timing,
    Trying,
)
from tests.conftest import Golden

GOLDEN = Path(__file__).parent / "golden"


def kernel_tuning() -> KernelTuning:
    case = Case(shapes=((4096, 1000), ()), dtype="bfloat16", is_timed=True)
    edge = Case(shapes=((1, 1),), dtype="bfloat16", is_timed=False)
    endless = Deviation(
        case=edge, output="output 0", error=float("inf"), allowed=0.01, measure="rms"
    )
    time = Timed(ns=5000.0, low_ns=4950.0, high_ns=5050.5, num_samples=22)
    return KernelTuning(
        what="m:f\x1b",
        reference="m:plain",
        device=Device(name="NVIDIA H200", kind="cuda"),
        versions={"torch": "2.11", "triton": "3.5"},
        measured=Timing(by="device", caches="warm", gradients=False),
        check=Check(
            tolerance=4.0,
            allowed={"bfloat16": Error(worst=0.016, rms=0.009)},
            cases=(edge, case),
            gradients=True,
        ),
        roofs=None,
        tryings=(
            Trying(settings={}, outcome=RIGHT, num_checks=2),
            Trying(settings={"BLOCK": 1024, "mode": "x", "fast": True}, outcome=RIGHT),
            Trying(settings={"BLOCK": 2}, outcome=WRONG, why="off", failed_at=edge, worst=endless),
        ),
        cases=(
            CaseResult(
                case=case,
                floor=Floor(
                    bytes_moved=16_384_000, flops=None, ns=3413.0, bound="memory", fits_cache=True
                ),
                times=(time, time, None),
                reference=time,
                baseline=0,
                winner=1,
                settings={"BLOCK": 1024, "mode": "x", "fast": True},
                gain=Gain(value=4.0, low=3.9, high=float("inf"), num_pairs=31),
                ties=(0,),
            ),
            CaseResult(
                case=edge,
                floor=Floor(bytes_moved=4, flops=1.5, ns=None, bound=None, fits_cache=False),
                times=(None, None, None),
                reference=None,
                baseline=None,
                winner=None,
            ),
        ),
        overall=None,
        wall_s=3.25,
        notes=("a note",),
    )


def run_plan(global_batch: int | None, seq_len: int | None) -> RunPlan:
    collective = MeasuredCollective(
        op="all_reduce", num_ranks=4, size_bytes=1 << 20, count=2.0, seconds=1e-3, is_data=True
    )
    run = MeasuredRun(
        width=4, parts_s={"compute": 0.5, "comms": 0.125}, collectives=(collective,), num_data=4
    )
    return RunPlan(
        path=["run", "other"],
        made=extrapolate(run, [2, 4], per_node=4, is_strong=seq_len is None),
        global_batch=global_batch,
        seq_len=seq_len,
        step_source="measured by `stepscope run`",
        notes=("a note",),
    )


def test_a_kernels_tuning_is_written_as_before(check_golden: Golden) -> None:
    check_golden(GOLDEN / "kernel_tuning.json", encode(kernel_tuning()) + "\n")


@pytest.mark.parametrize(("global_batch", "seq_len"), [(None, None), (64, 2048)])
def test_a_plan_of_a_run_is_written_as_before(
    check_golden: Golden, global_batch: int | None, seq_len: int | None
) -> None:
    text = run_plan_json(run_plan(global_batch, seq_len)) + "\n"
    check_golden(GOLDEN / f"plan_run_{global_batch}.json", text)


def test_a_tuning_cache_is_written_as_before(check_golden: Golden) -> None:
    entry = KeptSetting(
        what="m:f",
        shapes="4096x1000",
        dtype="bfloat16",
        device="NVIDIA H200",
        versions={"torch": "2.11"},
        settings={"BLOCK": 1024, "mode": "x", "fast": True},
        ns=5000.5,
        baseline_ns=None,
        at="2026-11-16T10:00:00",
        checked=True,
    )
    check_golden(GOLDEN / "tuning_cache.json", cache_json([entry, entry], 3) + "\n")


def test_formats_are_written_as_before() -> None:
    rows = [
        {
            "name": each.name,
            "words": each.words,
            "kind": each.kind,
            "record": each.record,
            "judges": list(each.judges),
        }
        for each in FORMATS
    ]
    document = {"schema": "stepscope.formats/1", "judged": list(JUDGED), "formats": rows}
    assert formats_json() == json.dumps(document, indent=2)
