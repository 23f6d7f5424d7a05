from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from stepscope.process.launch import finish, prepare
from stepscope.protocol import made_here
from stepscope.protocol.made_here import MARK, STARTED_IN, doubt, state_folder
from stepscope.protocol.options import Options
from stepscope.protocol.run_folder import RUN_FILE
from tests.wording import mentions

COMMAND = ["python", "train.py", "--name", "a\x1bb\udcff"]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that this user made here, with a key of its own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    folder = tmp_path / "project" / "stepscope-runs" / "one"
    finish(folder, prepare(folder, COMMAND, Options(), "1"), 0)
    return folder


def told(run: Path) -> dict[str, Any]:
    value = json.loads((run / RUN_FILE).read_text())
    assert isinstance(value, dict)
    return value


def key_file() -> Path:
    (file,) = state_folder().iterdir()
    return file


def test_a_run_of_this_user_here_is_not_doubted(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert doubt(run, told(run)) is None
    assert doubt(Path("stepscope-runs/../stepscope-runs/one"), told(run)) is None
    assert told(run)[STARTED_IN] == str(Path.cwd())
    assert key_file().stat().st_mode & 0o777 == 0o600
    assert state_folder().stat().st_mode & 0o777 == 0o700
    key = key_file().read_bytes()
    prepare(run.with_name("two"), ["other"], Options(), "1")
    assert key_file().read_bytes() == key
    assert key.hex() not in (run / RUN_FILE).read_text()


@pytest.mark.parametrize(
    "edit",
    [
        {"command": ["sh", "-c", "evil"]},
        {"command": [*COMMAND, "--more"]},
        {"command": " ".join(COMMAND)},
        {"command": {"0": "python"}},
        {"command": None},
        {STARTED_IN: "/"},
        {STARTED_IN: 1},
        {MARK: "0" * 64},
        {MARK: "\udcff"},
        {MARK: ""},
        {MARK: None},
        {MARK: ["a"]},
    ],
)
def test_an_edited_run_is_doubted(run: Path, edit: dict[str, Any]) -> None:
    assert doubt(run, told(run) | edit) is not None


def test_a_copied_and_a_moved_run_are_doubted(run: Path) -> None:
    copy = run.with_name("copy")
    shutil.copytree(run, copy)
    assert "copied" in str(doubt(copy, told(copy)))
    run.rename(run.with_name("moved"))
    assert doubt(run.with_name("moved"), told(copy)) is not None


def test_another_working_folder_is_doubted(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`python train.py` is another command where another train.py lies."""
    (tmp_path / "downloaded").mkdir()
    monkeypatch.chdir(tmp_path / "downloaded")
    assert f"started in {run.parents[1]}" in str(doubt(run, told(run)))


def test_another_users_and_another_machines_key_is_no_key(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
        assert doubt(run, told(run)) is not None
        prepare(run.with_name("two"), ["other"], Options(), "1")
        assert doubt(run, told(run)) is not None
    with monkeypatch.context() as patch:
        patch.setattr(made_here, "_machine", lambda: "elsewhere")
        assert doubt(run, told(run)) is not None
    assert doubt(run, told(run)) is None


@pytest.mark.parametrize("wrong", ["readable", "short", "link", "folder", "pipe", "gone"])
def test_a_key_that_others_may_know_is_none(run: Path, tmp_path: Path, wrong: str) -> None:
    file = key_file()
    kept = file.read_bytes()
    if wrong == "readable":
        file.chmod(0o640)
    else:
        file.unlink()
    if wrong == "short":
        file.write_bytes(b"")
        file.chmod(0o600)
    elif wrong == "link":
        (tmp_path / "key").write_bytes(kept)
        (tmp_path / "key").chmod(0o600)
        file.symlink_to(tmp_path / "key")
    elif wrong == "folder":
        file.mkdir()
    elif wrong == "pipe":
        os.mkfifo(file, 0o600)
    assert doubt(run, told(run)) is not None
    made = run.with_name("two")
    prepare(made, COMMAND, Options(), "1")
    # One that is gone is made anew; any other is left as it is, and marks nothing.
    assert (MARK in told(made)) == (wrong == "gone")


def test_where_no_key_can_be_kept_a_job_runs_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    prepare(tmp_path / "run", COMMAND, Options(), "1")
    assert told(tmp_path / "run")["command"] == COMMAND
    assert MARK not in told(tmp_path / "run")


def test_a_run_of_before_has_no_mark(run: Path) -> None:
    before = {key: value for key, value in told(run).items() if key not in (MARK, STARTED_IN)}
    assert mentions(doubt(run, before), "no mark")
