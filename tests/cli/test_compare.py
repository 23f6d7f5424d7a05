"""`stepscope compare` as it is called: every input, every format, the gate's exit codes, and
mistakes in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from stepscope.cli import compare
from stepscope.cli.options import read_options
from stepscope.errors import UsageError
from stepscope.pipeline.options import Options
from stepscope.pipeline.recording import diagnose
from stepscope.report.diagnosis.json import to_json
from tests.live_runs import add_steps, row, write_rank, write_run
from tests.scaling_jobs import strong_series, write_job
from tests.shared_data import DEMO, ROOT
from tests.wording import mentions

pytestmark = pytest.mark.usefixtures("measured_once")

PUBLISHED = json.loads((ROOT / "docs" / "comparison.schema.json").read_text(encoding="utf-8"))
VALIDATOR = Draft202012Validator(PUBLISHED)


def called(*words: str | Path) -> int:
    given = [*map(str, words), "--no-cache", "--jobs", "1"]
    return compare.run(read_options(compare.Options, given, "compare", ""))


def printed(
    capsys: pytest.CaptureFixture[str], *words: str | Path, exit_code: int = 0
) -> dict[str, Any]:
    assert called(*words, "--format", "json") == exit_code
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert [error.message for error in VALIDATOR.iter_errors(told)] == []
    return told


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Two ranks, 12 steps: one rank late by 3 ms, then none."""
    folder = tmp_path_factory.mktemp("jobs")
    late = write_job(folder / "late", 2, late_us=3000, moving_us=500, num_steps=12)
    even = write_job(folder / "even", 2, moving_us=500, num_steps=12)
    return late, even


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's diagnosis."""
    path = tmp_path_factory.mktemp("kept") / "diagnosis.json"
    told = diagnose([str(DEMO)], Options(use_cache=False, jobs=1))
    path.write_text(to_json(told), encoding="utf-8")
    return path


def timed_run(folder: Path, dur_ms: float) -> Path:
    rank = write_rank(
        write_run(folder), 0, loaders=[{"is_feeding": True, "num_workers": 0, "batch_size": 8}]
    )
    add_steps(rank, [row(step, dur_ms=dur_ms + 0.01 * (step % 7)) for step in range(5, 65)])
    return folder


def test_the_schema_is_a_closed_schema() -> None:
    Draft202012Validator.check_schema(PUBLISHED)
    assert PUBLISHED["additionalProperties"] is False
    assert VALIDATOR.is_valid({"schema": "stepscope.comparison/1"}) is False


def test_ranks_that_were_late_are_named_and_every_account_sums(
    jobs: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    told = printed(capsys, *jobs)
    # 8 ms of work, 3 of waiting, 0.5 of moving, against the same without the waiting.
    assert told["speedup"]["value"] == pytest.approx(11.5 / 8.5, rel=0.01)
    assert told["speedup"]["verdict"] == "faster"
    assert told["before"]["num_steps"] >= 8
    assert told["ranks"]["late_before"] == [1]
    assert told["ranks"]["late_after"] == []
    assert told["ranks"]["spread_before_ns"] == pytest.approx(3e6, rel=0.02)
    for account in told["accounts"].values():
        for end in ("before_ns", "after_ns"):
            assert sum(row[end] or 0 for row in [*account["rows"], account["rest"]]) == account[end]
    device = told["device"]
    parts = [*told["changed"], device["rest"], device["overlap"]]
    assert sum(part["change_ns"] for part in parts) == device["change_ns"]
    parts_ns = {row["name"]: row["change_ns"] for row in told["accounts"]["part"]["rows"]}
    assert parts_ns["comms_wait"] == pytest.approx(-1.5e6, rel=0.02)
    assert told["others"] == []


def test_three_runs_are_each_compared_with_the_first(
    jobs: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    told = printed(capsys, jobs[0], jobs[1], jobs[0])
    assert [one["speedup"]["value"] for one in told["others"]] == [1.0]
    assert told["others"][0]["before"] == told["before"]


def test_kept_diagnoses_are_compared(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = printed(capsys, kept, kept)
    assert told["before"]["kind"] == "diagnosis"
    assert told["speedup"]["value"] == pytest.approx(1.0)
    assert told["speedup"]["low"] is None
    assert mentions(told["speedup"]["why"], "kept diagnosis")
    assert all(row["change_ns"] in (-1, 0, 1) for row in told["accounts"]["part"]["rows"])
    assert told["device"] is None


def test_a_kept_diagnosis_and_its_trace_have_the_same_parts(
    kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = printed(capsys, kept, DEMO)
    assert [row for row in told["accounts"]["part"]["rows"] if abs(row["change_ns"]) > 1] == []


def test_given_steps_are_of_the_runs_in_their_order(
    jobs: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    told = printed(capsys, *jobs, "--step-ms", "12", "8")
    assert told["speedup"]["value"] == 1.5
    assert told["before"]["step_ms"] == 12
    with pytest.raises(UsageError, match=r"1 step time.* 2 runs"):
        called(DEMO, DEMO, "--step-ms", "60")


def test_the_gate_fails_with_1_on_a_run_that_is_slower(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fast, slow = timed_run(tmp_path / "fast", 10.0), timed_run(tmp_path / "slow", 12.0)
    assert called(fast, slow, "--fail-if", "step_ms > baseline*1.05", "--format", "json") == 1
    out, err = capsys.readouterr()
    assert "the gate failed" in err
    assert json.loads(out)["gate"]["checks"][0]["status"] == "failed"
    assert [error.message for error in VALIDATOR.iter_errors(json.loads(out))] == []
    assert called(fast, slow, "--fail-if", "speedup_high < 1") == 1
    assert (
        called(slow, fast, "--fail-if", "speedup_high < 1", "--fail-if", "step_ms > baseline*1.05")
        == 0
    )
    assert called(fast, fast, slow, "--fail-if", "speedup < 0.9") == 1
    assert "--fail-if, C" in capsys.readouterr().err
    budget = tmp_path / "budget.toml"
    budget.write_text('[limits]\nstep_ms = "<= baseline * 1.05"\n', encoding="utf-8")
    assert called(fast, slow, "--budget", budget) == 1
    assert called(slow, fast, "--budget", budget) == 0
    budget.write_text(
        'fail_if = ["speedup < 0.95"]\n[limits]\nspeedup = ">= 0.95"\n', encoding="utf-8"
    )
    assert called(fast, slow, "--budget", budget) == 1
    assert called(slow, fast, "--budget", budget) == 0
    budget.write_text("[limits]\nspeedup = 0.95\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"most .*least"):
        called(slow, fast, "--budget", budget)


def test_a_gate_on_what_was_not_measured_fails_and_says_why(
    jobs: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert called(*jobs, "--step-ms", "12", "8", "--fail-if", "speedup_low < 1") == 1
    assert mentions(capsys.readouterr().err, "speedup_low", "given", "no spread")


def test_the_terminal_has_the_answer_first_and_settings_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fast, slow = timed_run(tmp_path / "fast", 10.0), timed_run(tmp_path / "slow", 20.0)
    assert called(slow, fast) == 0
    out = capsys.readouterr().out
    assert out.lstrip().startswith("B is 2.00x (")
    assert "instead of 20.0 ms" in " ".join(out.split())
    assert all(len(line) <= 80 for line in out.splitlines())


def test_scaling_is_what_diagnose_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert called("--scaling", *strong_series(tmp_path), "--format", "json") == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "stepscope.scaling/1"


def test_a_page_and_a_comment_are_written(
    jobs: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called(*jobs, "--format", "html", "-o", tmp_path / "page.html") == 0
    assert (tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert called(*jobs, "--format", "markdown") == 0
    out = capsys.readouterr().out
    assert "## stepscope: B is 1.35x" in out
    assert any(line.startswith("| waiting") and line.endswith("|") for line in out.splitlines())


def test_a_trace_that_was_cut_is_told_of_however_it_comes(
    jobs: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A diagnosis has no step time of it, and so a comparison has none."""
    whole = Path(jobs[1]) / "rank0.json"
    cut = tmp_path / "cut.json"
    cut.write_text(whole.read_text(encoding="utf-8")[:-900], encoding="utf-8")
    kept = tmp_path / "kept.json"
    kept.write_text(
        to_json(diagnose([str(cut)], Options(use_cache=False, jobs=1))), encoding="utf-8"
    )
    for path in (cut, kept):
        told = printed(capsys, whole, path, exit_code=1)
        assert told["after"]["step_ms"] is None
        notes = told["notes"]
        assert any(
            note.startswith(f"{path}: ") and mentions(note, "file ends") for note in notes
        ), notes
        assert not any("not judged: " in note for note in notes)


def test_one_rank_against_all_of_them_is_the_same_work(
    jobs: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    one = Path(jobs[1]) / "rank0.json"
    told = printed(capsys, jobs[0], one)
    assert told["same_work"] is True
    assert told["throughput"] is None
    assert not [held for held in told["predicted"] if held["status"] == "gone"]
    assert called(jobs[0], one) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert mentions(words, "late: rank 1 in A, not known")
    assert mentions(words, "mean", "own ranks")


def test_scaling_takes_no_kept_diagnosis(kept: Path) -> None:
    with pytest.raises(UsageError, match=r"diagnosis\.json .*kept"):
        called("--scaling", DEMO, kept)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((DEMO,), "two runs"),
        ((DEMO, DEMO, "--scaling", "--fail-if", "step_ms > 1"), "leave out one"),
        ((DEMO, DEMO, "--scaling", "--format", "html"), "--scaling has text and JSON"),
        ((DEMO, DEMO, "--scaling-kind", "weak"), "together with --scaling"),
        ((DEMO, DEMO, "--fail-if", "speedup"), "not a condition"),
        ((DEMO, DEMO, "--fail-if", "spedup > 1"), "is speedup meant"),
    ],
)
def test_mistakes_are_told_before_anything_is_read(
    words: tuple[str | Path, ...], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        called(*words)


def test_a_kept_diagnosis_takes_no_step_time(kept: Path) -> None:
    with pytest.raises(UsageError, match="step time"):
        called(kept, DEMO, "--step-ms", "5", "6")


def test_runs_with_no_steps_in_common_are_nothing_to_compare(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    timed = timed_run(tmp_path / "timed", 2.6)
    empty = tmp_path / "empty"
    write_rank(write_run(empty), 0)
    assert called(timed, empty) == compare.NOT_COMPARED == 1
    out, err = capsys.readouterr()
    words = " ".join(out.replace("\u00a0", " ").split())
    assert mentions(words, "A and B", "no step")
    assert mentions(words, "2.63 ms, no profiler, mean of 60 steps")
    assert "while profiled" not in words
    assert mentions(err, "nothing to compare", "A and B")
    assert called(timed, empty, timed, "--format", "json") == 1
    assert called(timed, timed) == 0


def test_other_work_is_no_speedup(
    jobs: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert called(jobs[0], DEMO) == 1
    said = capsys.readouterr()
    assert mentions(said.out, "not", "same work")
    assert mentions(said.err, "no speedup", "exit code 1")
