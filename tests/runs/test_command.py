"""`stepscope runs`: the list, names, tags and the clean-up."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest

from stepscope.cli.main import main
from stepscope.core.contract.runs import RunEntry
from stepscope.protocol.run_folder import write_json
from stepscope.readers.run_folder.kept_runs import resolve
from stepscope.runs.command import prunable
from tests.installed import need
from tests.live_runs import write_run
from tests.shared_data import ROOT
from tests.wording import mentions

KEPT = ROOT / "tests" / "kept" / "run"
DAY_NS = 86_400 * 10**9


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three real runs, one a day, in the folder where `run` keeps them."""
    monkeypatch.chdir(tmp_path)
    folder = Path("stepscope-runs")
    for number, name in enumerate(("first", "second", "third")):
        shutil.copytree(KEPT, folder / name)
        told = json.loads((KEPT / "run.json").read_text())
        told["started_wall_ns"] = time.time_ns() - (3 - number) * DAY_NS
        write_json(folder / name / "run.json", told)
    return folder


def listed(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    assert main(["runs", "--format", "json"]) == 0
    found: list[dict[str, object]] = json.loads(capsys.readouterr().out)["runs"]
    return found


def test_runs_are_listed_the_newest_first(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entries = listed(capsys)
    assert [entry["name"] for entry in entries] == ["third", "second", "first"]
    kept = json.loads((KEPT / "diagnosis.json").read_text())
    for entry in entries:
        assert entry["verdict"] == kept["verdict"]["summary"]
        assert entry["step_ms"] == kept["step"]["ms"]
        assert entry["state"] == "ended"
    sizes = sum(file.stat().st_size for file in (runs / "third").rglob("*") if file.is_file())
    assert entries[0]["size_bytes"] == sizes
    assert main(["runs"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0].startswith("3 runs in stepscope-runs")
    assert "Compute-bound" in out
    assert "python train.py" in out


def test_an_empty_folder_says_how_to_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["runs"]) == 0
    assert "stepscope run -- python train.py" in capsys.readouterr().out


def test_names_stand_for_paths(runs: Path) -> None:
    assert resolve("last") == str(runs / "third")
    assert resolve("last~0") == str(runs / "third")
    assert resolve("last~2") == str(runs / "first")
    assert resolve("second") == str(runs / "second")
    for text in ("no-such-run", "last/x", "../last", "s3://bucket/last", "select 1", ""):
        assert resolve(text) == text
    Path("last").write_text("a file is what it is")
    assert resolve("last") == "last"


def test_a_name_that_reaches_too_far_is_a_sentence(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["diagnose", "last~3"])
    assert stopped.value.code == 2
    assert mentions(capsys.readouterr().err, "3 runs", "last~2")


def test_commands_take_names(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    need("duckdb", "pyarrow")
    assert main(["compare", "last~1", "last", "--format", "json", "--no-cache"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["before"]["label"].endswith("second")
    assert told["after"]["label"].endswith("third")
    for words in (
        ["diagnose", "last", "--no-cache"],
        ["report", "last", "--no-cache"],
        ["query", "last", "select count(*) from kernels"],
        ["export", "perfetto", "last", "-o", "out.json", "--no-cache"],
        ["watch", "last", "--once"],
        ["fix", "last"],
        ["plan", "--from", "last", "--nodes", "2", "--no-cache"],
    ):
        assert main(words) in (0, 1), (words, capsys.readouterr().err)
        assert "does not exist" not in capsys.readouterr().err


def test_a_tag_is_a_baseline(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "tag", "main", "last~2"]) == 0
    assert resolve("main") == str(runs / "first")
    gate = ["--baseline", "main", "--fail-if", "step_ms > baseline * 1.05", "--no-cache"]
    assert main(["diagnose", "last", *gate]) == 0
    gate[3] = "step_ms > baseline * 0.9"
    assert main(["diagnose", "last", *gate]) == 1
    Path("budget.toml").write_text('baseline = "main"\n[limits]\nstep_ms = "baseline * 0.9"\n')
    assert main(["diagnose", "last", "--budget", "budget.toml", "--no-cache"]) == 1
    Path("budget.toml").write_text('baseline = "nothing"\n[limits]\nstep_ms = "baseline"\n')
    assert main(["diagnose", "last", "--budget", "budget.toml", "--no-cache"]) == 2
    capsys.readouterr()
    assert listed(capsys)[2]["tags"] == ["main"]
    assert main(["runs", "untag", "main"]) == 0
    assert resolve("main") == "main"


def test_a_tag_may_name_what_lies_elsewhere(runs: Path) -> None:
    shutil.copy(KEPT / "diagnosis.json", "main.json")
    assert main(["runs", "tag", "main", "main.json"]) == 0
    assert Path(resolve("main")).samefile("main.json")


@pytest.mark.parametrize("name", ["last", "last~1", "a/b", "..", "", "a b", "-x\x1b[2J"])
def test_a_tag_that_can_be_none_is_refused(
    name: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(["runs", "tag", name])
    except SystemExit as stopped:
        code = int(str(stopped.code))
    assert code == 2
    assert not (runs / "tags.json").exists()
    assert "\x1b" not in capsys.readouterr().err


def test_a_tag_of_a_run_that_is_gone_says_so(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["runs", "tag", "main"]) == 0
    shutil.rmtree(runs / "third")
    with pytest.raises(SystemExit):
        main(["diagnose", "main"])
    assert "no longer there" in capsys.readouterr().err


def test_prune_removes_nothing_without_yes(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "tag", "main", "first"]) == 0
    assert main(["runs", "prune", "--keep", "1"]) == 0
    out = capsys.readouterr().out
    assert "Would remove 1 run" in out
    assert "second" in out
    assert "first" not in out
    assert sorted(path.name for path in runs.iterdir()) == ["first", "second", "tags.json", "third"]
    assert main(["runs", "prune", "--keep", "1", "--yes"]) == 0
    assert sorted(path.name for path in runs.iterdir()) == ["first", "tags.json", "third"]


def test_prune_follows_no_link_and_leaves_what_is_not_ours(runs: Path, tmp_path: Path) -> None:
    elsewhere = write_run(tmp_path / "elsewhere")
    os.symlink(elsewhere, runs / "linked")
    os.symlink(elsewhere, runs / "first" / "inside")
    (runs / "notes").mkdir()
    (runs / "notes" / "keep.txt").write_text("mine")
    assert main(["runs", "prune", "--older-than", "1h", "--yes"]) == 0
    assert (elsewhere / "run.json").is_file()
    assert (runs / "notes" / "keep.txt").is_file()
    assert not (runs / "first").exists()


def test_prune_asks_which(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "prune", "--yes"]) == 2
    assert "--keep N" in capsys.readouterr().err
    assert len(list(runs.iterdir())) == 3


def test_a_run_that_still_writes_is_never_pruned(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(runs / "now", started_wall_ns=time.time_ns() - 30 * DAY_NS)
    (states,) = [entry["state"] for entry in listed(capsys) if entry["name"] == "now"]
    assert states == "running"
    assert main(["runs", "prune", "--older-than", "1m", "--yes"]) == 0
    assert (runs / "now").is_dir()
    long_ago = time.time() - 3600
    os.utime(runs / "now" / "run.json", (long_ago, long_ago))
    capsys.readouterr()
    (broken,) = [entry["state"] for entry in listed(capsys) if entry["name"] == "now"]
    assert broken == "broken off"


def test_a_run_ends_when_all_its_ranks_say_so(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A job that records itself from its code has no launcher of ours that writes its end."""
    run = write_run(runs / "now", started_wall_ns=time.time_ns())
    for number, notes in enumerate(({"ended_ns": 5}, {})):
        rank = run / f"rank-{number}"
        rank.mkdir()
        write_json(rank / "rank.json", {"rank": number, **notes})
    assert [entry["state"] for entry in listed(capsys) if entry["name"] == "now"] == ["running"]
    write_json(run / "rank-1" / "rank.json", {"rank": 1, "ended_ns": 6})
    assert [entry["state"] for entry in listed(capsys) if entry["name"] == "now"] == ["ended"]


def test_trials_are_listed_with_their_size(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(KEPT, runs / "verify" / "round-1" / "a")
    (entry,) = [entry for entry in listed(capsys) if entry["name"] == "verify"]
    assert entry["kind"] == "trials"
    assert resolve("last") == str(runs / "third")


def test_both_limits_must_allow_it() -> None:
    entries = [
        RunEntry(
            name=str(day),
            path=str(day),
            kind="run",
            state="ended",
            started_wall_ns=100 * DAY_NS - day * DAY_NS,
            size_bytes=1,
        )
        for day in range(6)
    ]
    names = [entry.name for entry in prunable(entries, 2, 3 * DAY_NS, 100 * DAY_NS)]
    assert names == ["4", "5"]
    assert len(prunable(entries, 4, None, 100 * DAY_NS)) == 2
