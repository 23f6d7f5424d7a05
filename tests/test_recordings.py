"""Where the benchmarks look for the lab's recordings, and what they say where there are none."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from benchmarks import agree, board, memory, peak, recordings, truth
from benchmarks.agree import cases_below
from benchmarks.recordings import LAB, VARIABLE, demand, recorded
from tests.shared_data import lab_trace
from tests.wording import mentions


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that the environment names."""
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    return tmp_path


def test_folders_of_the_lab_lie_where_the_environment_says_and_others_where_they_are(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(LAB.parent)
    for path in (Path("lab/board"), LAB / "board"):
        assert recorded(path) == folder / "board"
    assert recorded(Path("lab")) == folder
    assert recorded(Path("tests")) == Path("tests")


def test_without_the_variable_they_lie_beside_the_checkout_else_in_the_lab(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(recordings, "ROOT", tmp_path / "clone")
    assert recorded(LAB / "held") == LAB / "held"
    (tmp_path / "shared" / "recordings").mkdir(parents=True)
    assert recorded(LAB / "held") == tmp_path / "shared" / "recordings" / "held"


def test_ranks_of_a_recorded_job_keep_the_name_of_the_labs_folder(folder: Path) -> None:
    (folder / "rank_traces").mkdir()
    for rank in (0, 1):
        name = f"rank_traces/gloo_late_rank.slow.rank{rank}"
        shutil.copy(lab_trace(name), folder / f"{name}.pt.trace.json.gz")
    demand([LAB, LAB / "rank_traces"])
    (name,) = cases_below(LAB)
    assert name == "lab/rank_traces/gloo_late_rank.slow"


@pytest.mark.parametrize("command", [agree, board, memory, peak, truth])
def test_a_command_without_recordings_ends_in_one_line(
    command: object, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = [] if command is memory else [str(LAB / "memory")]
    monkeypatch.setattr(sys, "argv", ["benchmark", *where])
    assert hasattr(command, "main")
    with pytest.raises(SystemExit) as ended:
        command.main()
    said = str(ended.value.code)
    assert mentions(said, "no traces", str(folder / "memory"))
    assert VARIABLE in said
    assert "\n" not in said
