from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stepscope.process.isolation import (
    PACKAGES,
    find_tool,
    isolated_python,
    tool_environment,
    trusted_path,
)
from tests.capture.jobs import environment

LIBRARY = os.path.dirname(os.__file__)


def program(folder: Path, name: str = "tool") -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, which has a program."""
    folder = program(tmp_path / "here").parent
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize("entry", ["", ".", "../here", "{here}", "{here}/", "{link}"])
def test_no_tool_is_of_the_working_folder(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: str
) -> None:
    (tmp_path / "link").symlink_to(here)
    elsewhere = program(tmp_path / "elsewhere")
    named = entry.format(here=here, link=tmp_path / "link")
    monkeypatch.setenv("PATH", os.pathsep.join([named, str(elsewhere.parent)]))
    assert find_tool("tool") == str(elsewhere)
    assert tool_environment()["PATH"] == str(elsewhere.parent)
    monkeypatch.setenv("PATH", named)
    assert find_tool("tool") is None


def test_a_tool_beside_python_is_found_last_and_one_that_cannot_run_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside, found = program(tmp_path / "bin"), program(tmp_path / "found")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    monkeypatch.setenv("PATH", str(found.parent))
    assert find_tool("tool") == str(found)
    found.chmod(0o644)
    assert find_tool("tool") == str(beside)


def test_modules_are_looked_for_in_the_standard_library_first(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, installed = str(tmp_path / "given"), str(tmp_path / "installed")
    before = [entry for entry in sys.path if entry == LIBRARY or entry.endswith("lib-dynload")]
    paths = ["", str(here), "src", given, *before, installed, PACKAGES]
    monkeypatch.setattr(sys, "path", paths)
    assert trusted_path() == [*before, given, installed, PACKAGES]
    monkeypatch.setattr(sys, "path", [str(here), given])
    assert trusted_path() == [given, PACKAGES]
    monkeypatch.setattr(sys, "path", [*before, installed])
    assert trusted_path()[-1] == PACKAGES


def test_a_python_of_ours_finds_what_we_find_and_not_the_folder(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where stepscope and what it needs come from PYTHONPATH or the user's own packages, which
    -I leaves out."""
    given = tmp_path / "given"
    given.mkdir()
    (given / "asked.py").write_text("import sys, statistics, stepscope.errors; print(sys.argv[1:])")
    for name in ("statistics", "asked", "runpy", "stepscope"):
        (here / f"{name}.py").write_text("raise SystemExit(77)")
    monkeypatch.setattr(sys, "path", [str(given), *sys.path])
    ended = subprocess.run(
        isolated_python("asked", "a", "b c"),
        env={**os.environ, "PYTHONPATH": str(here)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, "['a', 'b c']\n"), ended.stderr


# What Python, and the script that pip makes, import before a line of ours runs.
BEFORE_US = {"runpy", "pkgutil", "warnings", "types", "functools", "collections", "contextlib"}
BEFORE_US |= {"keyword", "operator", "reprlib", "weakref", "importlib", "copyreg", "enum", "typing"}
BEFORE_US |= {"sitecustomize", "usercustomize", "re", "encodings"}


@pytest.mark.parametrize("how", ["-m", "script"])
def test_the_command_itself_leaves_the_folder_before_it_imports_anything(
    here: Path, tmp_path: Path, how: str
) -> None:
    for name in {*sys.stdlib_module_names, "msgspec", "numpy"} - BEFORE_US:
        (here / f"{name}.py").write_text("raise SystemExit(77)")
    script = str(Path(sys.executable).with_name("stepscope"))
    words = [sys.executable, "-m", "stepscope"] if how == "-m" else [script]
    # An empty entry of PYTHONPATH is the working folder.
    ended = subprocess.run(
        [*words, "explain", "serial-loader"],
        env=environment(PYTHONPATH=os.pathsep.join(["", "."]) if how == "script" else ""),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "serial-loader" in ended.stdout
