"""The fixture `measured_once`: what is measured once, and what is not taken for it."""

from __future__ import annotations

import dataclasses
import inspect
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from stepscope.core.diagnosis import Diagnosis
from stepscope.pipeline import measure
from stepscope.pipeline.contexts import RankContexts
from stepscope.pipeline.options import Options
from stepscope.pipeline.recording import Recording
from stepscope.readers.format import Source
from stepscope.readers.hardware_file import read_hardware
from stepscope.readers.inputs import find_sources
from stepscope.rules import judge_job as judge_job_module
from stepscope.rules.job_case import Job
from tests.live_runs import add_steps, row, write_rank, write_run
from tests.measured import MeasuredOnce
from tests.readers.test_hardware_file import told as hardware_told
from tests.shared_data import DEMO, SAMPLES, SMALL


@pytest.fixture
def counted() -> tuple[MeasuredOnce, list[Any]]:
    """A fresh one of its own, and what it really measured."""
    calls: list[Any] = []
    real = measure.measure_job

    def measured(*args: Any, **options: Any) -> Job:
        calls.append(options)
        return real(*args, **options)

    measured.__signature__ = inspect.signature(real)  # type: ignore[attr-defined]
    return MeasuredOnce(measured, judge_job_module.judge_job), calls


def demo() -> list[Source]:
    return list(find_sources([SMALL]).sources)


def test_a_plain_job_is_measured_once_for_each_step_time(
    counted: tuple[MeasuredOnce, list[Any]],
) -> None:
    once, calls = counted
    plain = once.measure(demo())
    assert once.measure(demo(), contexts=RankContexts(use_cache=False), step_ns=None) is plain
    assert len(calls) == 1
    given = once.measure(demo(), step_ns=60_000_000)
    assert given.facts.given_step_ns == 60_000_000
    assert len(calls) == 2
    assert once.measure(demo()) is plain


def nccl(_: Path) -> dict[str, Any]:
    return {"logs": find_sources([SAMPLES / "formats" / "nccl_2rank.txt"]).logs}


def auxiliary(_: Path) -> dict[str, Any]:
    with Recording([SAMPLES / "formats" / "ncu_raw.csv"], Options(use_cache=False)) as recording:
        return {"auxiliary": recording.auxiliary}


def run(folder: Path) -> dict[str, Any]:
    made = write_run(folder / "run")
    add_steps(write_rank(made, 0), [row(step) for step in range(1, 60)])
    with Recording([made], Options(use_cache=False)) as recording:
        return {"run": recording.run}


def machine(folder: Path) -> dict[str, Any]:
    path = folder / "machine.json"
    path.write_text(json.dumps(hardware_told()))
    return {"contexts": RankContexts(use_cache=False, hardware=read_hardware(path))}


def cache(_: Path) -> dict[str, Any]:
    return {"contexts": RankContexts(use_cache=True)}


@pytest.mark.parametrize("more", [nccl, auxiliary, run, machine, cache])
def test_a_job_with_more_than_traces_is_measured_for_itself(
    counted: tuple[MeasuredOnce, list[Any]],
    more: Callable[[Path], dict[str, Any]],
    tmp_path: Path,
) -> None:
    once, calls = counted
    plain = once.measure(demo())
    options = more(tmp_path)
    assert all(options.values())
    assert once.measure(demo(), **options) is not plain
    assert calls[1:] == [options]
    assert once.measure(demo()) is plain


def test_a_trace_that_a_test_wrote_is_measured_each_time(
    counted: tuple[MeasuredOnce, list[Any]], tmp_path: Path
) -> None:
    once, calls = counted
    shutil.copy(SMALL, tmp_path)
    for _ in range(2):
        once.measure(find_sources([tmp_path / SMALL.name]).sources)
    assert len(calls) == 2


def test_a_job_whose_facts_were_changed_is_judged_for_itself(
    counted: tuple[MeasuredOnce, list[Any]],
) -> None:
    once, _ = counted
    plain = once.measure(demo())
    judged = once.judge(plain)
    assert once.judge(dataclasses.replace(plain, notes=("more",))) is judged
    slower = replace(plain.facts, given_step_ns=10**9)
    assert once.judge(dataclasses.replace(plain, facts=slower)) is not judged


def test_a_parameter_that_it_does_not_know_is_an_error(
    counted: tuple[MeasuredOnce, list[Any]],
) -> None:
    def renamed(sources: Any, *, step_ns: Any = None, beside: Any = None) -> Job:
        raise AssertionError

    with pytest.raises(TypeError, match="auxiliary, beside, contexts"):
        MeasuredOnce(renamed, judge_job_module.judge_job)
    with pytest.raises(TypeError, match="beside"):
        counted[0].measure(demo(), beside=())


@pytest.mark.usefixtures("measured_once")
def test_under_the_fixture_a_recording_keeps_what_lies_beside_its_trace() -> None:
    def diagnosed(*paths: Path) -> Diagnosis:
        with Recording(paths, Options(use_cache=False, jobs=1)) as recording:
            return recording.diagnosis

    alone = diagnosed(DEMO)
    beside = diagnosed(DEMO, SAMPLES / "formats" / "ncu_raw.csv")
    assert alone.facts.auxiliary is None
    assert beside.facts.auxiliary is not None
    assert beside.facts.auxiliary.kernels is not None
    assert beside.advice
    assert diagnosed(DEMO).facts is alone.facts
