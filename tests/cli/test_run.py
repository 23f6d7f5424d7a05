"""What `stepscope run` says before a job starts, and where one ended early."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from stepscope.cli import run
from stepscope.cli.main import main
from stepscope.cli.options import after_dashes
from stepscope.cli.run import diagnose_run, missing_script
from stepscope.core.run import RankMetadata, RunFacts
from stepscope.readers.run_folder import folder as run_folder
from stepscope.report.diagnosis.short import next_commands, short_document
from stepscope.report.document.terminal import to_text
from stepscope.rules.without_trace import diagnose_without_trace
from tests.wording import mentions


@pytest.mark.parametrize(
    ("command", "script"),
    [
        (("python", "nosuch.py"), "nosuch.py"),
        (("/usr/bin/python3.12", "-u", "nosuch.py", "--lr", "1"), "nosuch.py"),
        (("python", "-m", "nosuch.py"), None),
        (("python", "-c", "nosuch.py"), None),
        (("python", "-X", "dev", "nosuch.py"), None),
        (("python", "-"), None),
        (("python",), None),
        (("torchrun", "nosuch.py"), None),
        (("python", __file__), None),
    ],
)
def test_a_script_that_is_not_there_is_seen_before_the_start(
    command: tuple[str, ...], script: str | None
) -> None:
    assert missing_script(command) == script


def test_nothing_is_made_for_a_script_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["run", "--", "python", "nosuch.py"]) == 2
    assert "nosuch.py is not in" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_script_alone_is_given_to_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["run", "nosuch.py"]) == 2
    assert "nosuch.py is not in" in capsys.readouterr().err
    program, *rest = after_dashes(["--", "train.py", "--lr", "1"])
    assert Path(program).name.startswith("python")
    assert rest == ["train.py", "--lr", "1"]
    script = tmp_path / "own.py"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    assert after_dashes([str(script)]) == (str(script),)


def ended(exit_code: int, *ranks: RankMetadata) -> str:
    run = RunFacts(path="r", command=("python", "t.py"), exit_code=exit_code, ranks=ranks)
    diagnosis = diagnose_without_trace(run)
    commands = next_commands(diagnosis, "stepscope diagnose r")
    return to_text(short_document(diagnosis, commands))


def test_a_job_that_failed_is_said_first_and_is_to_be_run_again() -> None:
    text = ended(1, RankMetadata(rank=0, num_steps=2))
    assert mentions(text, "nothing to judge", "job itself failed", "exit code 1")
    assert "stepscope run -- python t.py" in text
    assert "--start-step" not in text


def test_a_job_that_a_signal_ended_is_not_sent_to_its_output() -> None:
    text = ended(143, RankMetadata(rank=0, num_steps=2))
    assert mentions(text, "nothing to judge", "SIGTERM", "exit code 143")
    assert mentions(ended(255, RankMetadata(rank=0)), "job itself failed", "exit code 255")


def test_an_installation_that_cannot_diagnose_leaves_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "stepscope.pipeline.page", None)
    diagnose_run(tmp_path)
    assert "the diagnosis failed" in capsys.readouterr().err


def test_a_job_that_ended_well_is_told_how_to_be_recorded() -> None:
    assert "stepscope run --start-step 3 -- python t.py" in ended(0, RankMetadata(rank=0))
    assert "use the API" in ended(0)


def test_why_the_recording_stopped_comes_first() -> None:
    text = ended(0, RankMetadata(rank=0, problem="the disk is full"))
    assert mentions(text, "nothing to judge", "recording stopped (the disk is full)")


def test_a_reason_that_had_no_room_is_the_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "problem.txt"
    assert run_folder.problem_of(path) is None
    path.write_text("")
    assert run_folder.problem_of(path) == run_folder.NO_REASON
    monkeypatch.setattr(run_folder, "MIN_FREE_BYTES", 1 << 62)
    assert run_folder.problem_of(path) == run_folder.NO_ROOM
    path.write_text("OSError: no")
    assert run_folder.problem_of(path) == "OSError: no"


def test_runs_begun_in_one_second_have_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert len({run.made_folder(None) for _ in range(5)}) == 5
    # Another process made it between the look and the making.
    names = iter(("taken", "taken", "free"))
    monkeypatch.setattr(run, "dated", lambda parent: parent / next(names))
    assert run.made_folder(None).name == "taken"
    assert run.made_folder(None).name == "free"
    (tmp_path / "stepscope-runs").rename(tmp_path / "aside")
    (tmp_path / "stepscope-runs").write_text("a file where the runs would lie")
    monkeypatch.setattr(run, "dated", lambda parent: parent / "none")
    assert not run.made_folder(None).exists()
