"""What a run skipped can be read afterwards, and run elsewhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.shared_data import ROOT
from tests.skipped import FILE, main

MODULE = """
import pytest
if {is_absent}:
    pytest.skip("needs a: get it", allow_module_level=True)

def test_it(): ...
"""
TESTS = """
import pytest

@pytest.mark.skipif({is_absent}, reason="needs b: get it")
@pytest.mark.parametrize("case", [0, 1])
def test_b(case): ...

@pytest.mark.parametrize("case", [] if {is_absent} else [3])
def test_cases(case): ...

def test_always(): ...
"""


def run(folder: Path, *words: str, is_absent: bool) -> str:
    (folder / "test_module.py").write_text(MODULE.format(is_absent=is_absent))
    (folder / "test_tests.py").write_text(TESTS.format(is_absent=is_absent))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.skipped", "--rootdir", "."]
    done = subprocess.run(
        [*command, *words],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout.splitlines()[-1]


def test_what_was_skipped_is_said_and_runs_where_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, is_absent=True).startswith("1 passed, 4 skipped")
    monkeypatch.chdir(tmp_path)
    main()
    said = capsys.readouterr().out.splitlines()
    assert said[:2] == ["skipped: 4", "    2  needs b: get it"]
    assert "    1  needs a: get it" in said
    main("--ids")
    selected = capsys.readouterr().out
    assert selected.splitlines() == [
        "test_module.py",
        "test_tests.py::test_b[0]",
        "test_tests.py::test_b[1]",
        "test_tests.py::test_cases",
    ]
    (tmp_path / "ids").write_text(selected)
    assert run(tmp_path, "@ids", is_absent=False).startswith("4 passed"), "all but test_always"
    assert FILE.read_text() == "{}"
