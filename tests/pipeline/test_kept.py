"""A diagnosis that is kept is the one that would be made, or it is not taken."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from stepscope.core.diagnosis import Diagnosis
from stepscope.pipeline import kept, recording
from stepscope.pipeline.options import Options
from stepscope.pipeline.recording import Recording, diagnose
from stepscope.readers import cache
from stepscope.rules.verdict import diagnose_job
from tests.builders import step_events, trace_text
from tests.live_runs import add_steps, row, write_rank, write_run
from tests.shared_data import SMALL, lab_traces


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of its own, that takes small traces too."""
    monkeypatch.setenv(cache.FOLDER_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(recording, "MIN_KEPT_BYTES", 0)
    # Whatever was edited since these tests were started.
    monkeypatch.setattr(cache, "LOADED_NS", time.time_ns())
    return tmp_path / "cache"


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[Diagnosis]:
    """What was judged, in order."""
    made: list[Diagnosis] = []

    def counted(job: Any, **options: Any) -> Diagnosis:
        made.append(diagnose_job(job, **options))
        return made[-1]

    monkeypatch.setattr(recording, "diagnose_job", counted)
    return made


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "t.json"
    path.write_text(trace_text(step_events()))
    return path


def _run_folder(tmp_path: Path) -> Path:
    run = write_run(tmp_path / "run", command=["python", "train.py"])
    rank = write_rank(run, 0)
    add_steps(rank, [row(step, dur_ms=66.0) for step in range(5, 65)])
    (rank / "window-6.pt.trace.json.gz").write_bytes(SMALL.read_bytes())
    return run


def _ranks(tmp_path: Path) -> Path:
    folder = tmp_path / "ranks"
    folder.mkdir()
    for path in lab_traces("rank_traces/pp_gpipe_w4.slow.*"):
        shutil.copy(path, folder)
    return folder


def _demo(_: Path) -> Path:
    return SMALL


@pytest.mark.parametrize("where", [_demo, _run_folder, _ranks])
def test_the_second_time_nothing_is_judged_and_all_of_it_comes_back(
    tmp_path: Path, judged: list[Diagnosis], where: Callable[[Path], Path]
) -> None:
    path = where(tmp_path)
    first = diagnose([path], Options(jobs=1))
    with Recording([path], Options(jobs=1)) as again:
        assert again.diagnosis == first
        assert "job" not in again.__dict__
    # What a run's own clocks tell of its whole is told anew.
    (alone,) = judged
    assert (alone.verdict, alone.findings, alone.notes) == (
        first.verdict,
        first.findings,
        first.notes,
    )


def test_a_small_trace_is_not_kept(
    trace: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "MIN_KEPT_BYTES", trace.stat().st_size + 1)
    diagnose([trace])
    assert not folder.exists()


def test_without_a_cache_none_is_read_or_written(
    trace: Path, folder: Path, judged: list[Diagnosis]
) -> None:
    diagnose([trace], Options(use_cache=False))
    assert not folder.exists()
    diagnose([trace])
    diagnose([trace], Options(use_cache=False))
    assert len(judged) == 3


def test_every_way_to_ask_has_its_own(
    tmp_path: Path, trace: Path, judged: list[Diagnosis], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ways: list[tuple[str | Path, Options]] = [
        (trace, Options()),
        (trace.name, Options()),
        (trace, Options(step_ms=70.0)),
        (trace, Options(all_findings=True)),
    ]
    first = [diagnose([path], options) for path, options in ways]
    assert [diagnose([path], options) for path, options in ways] == first == judged


def test_a_changed_file_is_judged_anew(trace: Path, judged: list[Diagnosis]) -> None:
    diagnose([trace])
    trace.write_text(trace_text(step_events()[1:]))
    assert diagnose([trace]) != judged[0]
    assert diagnose([trace]) == judged[1]
    assert len(judged) == 2


def test_a_file_that_changes_meanwhile_is_not_kept(
    trace: Path, judged: list[Diagnosis], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = kept.store

    def late(*kept_now: Any) -> None:
        os.utime(trace)
        plain(*kept_now)

    monkeypatch.setattr(kept, "store", late)
    diagnose([trace])
    diagnose([trace])
    assert len(judged) == 2


def test_what_the_run_folder_says_is_part_of_the_question(
    tmp_path: Path, judged: list[Diagnosis]
) -> None:
    run = _run_folder(tmp_path)
    diagnose([run])
    add_steps(run / "rank-0", [row(step, dur_ms=88.0) for step in range(65, 900)])
    assert diagnose([run]) != judged[0]
    assert len(judged) == 2


def test_changed_code_judges_anew(
    trace: Path, judged: list[Diagnosis], monkeypatch: pytest.MonkeyPatch
) -> None:
    diagnose([trace])
    monkeypatch.setattr(np, "__version__", "0.0")
    diagnose([trace])
    assert len(judged) == 2


def test_code_that_was_changed_since_it_was_loaded_keeps_nothing(
    trace: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "LOADED_NS", 0)
    diagnose([trace])
    assert not folder.exists()


def test_what_would_not_come_back_is_not_kept(
    trace: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def endless(job: Any, **options: Any) -> Diagnosis:
        return structs.replace(diagnose_job(job, **options), ladder=(float("nan"),))

    monkeypatch.setattr(recording, "diagnose_job", endless)
    diagnose([trace])
    assert not folder.exists()


def _damaged(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: kept.HEAD.size - 1])


def _others_may_write(path: Path) -> None:
    path.chmod(0o666)


def _link(path: Path) -> None:
    path.rename(path.with_suffix(".moved"))
    path.symlink_to(path.with_suffix(".moved"))


@pytest.mark.parametrize("spoil", [_damaged, _cut, _others_may_write, _link])
def test_a_file_that_is_not_whole_or_not_ours_is_not_taken(
    trace: Path, folder: Path, judged: list[Diagnosis], spoil: Callable[[Path], None]
) -> None:
    diagnose([trace])
    (path,) = folder.iterdir()
    spoil(path)
    assert diagnose([trace]) == judged[0]
    assert len(judged) == 2
