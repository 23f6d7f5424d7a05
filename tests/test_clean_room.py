"""The clean room has what a plain machine has, and nothing of this one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.installed import need
from tests.shared_data import ROOT

need("a git checkout")
LOOK = """
ls -a ..; ls -a "$HOME"; env | sed 's/=.*//' | sort
for name in cc gcc uv chromium pip python3 git; do command -v $name && echo "has $name"; done
python3 -c 'import sys; print(sys.version_info[0])'
"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment with programs and settings that a stranger does not have."""
    folder = tmp_path_factory.mktemp("machine")
    (folder / "bin").mkdir()
    for name in ("cc", "gcc", "uv", "chromium"):
        (folder / "bin" / name).write_text("#!/bin/sh\n")
        (folder / "bin" / name).chmod(0o755)
    (folder / ".config" / "pip").mkdir(parents=True)
    (folder / ".config" / "pip" / "pip.conf").write_text("[global]\ntimeout = 7\n")
    ours = {"STEPSCOPE_EVERY": "1", "PIP_RETRIES": "3", "PIP_CACHE_DIR": str(folder)}
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    return {**os.environ, **ours, "HOME": str(folder), "XDG_CONFIG_HOME": "", "PATH": path}


def look(machine: dict[str, str], *words: str) -> list[str]:
    script = ROOT / "scripts" / "clean-room"
    done = subprocess.run(
        [script, *words, "--", "sh", "-c", LOOK],
        env=machine,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "clean room: " in done.stderr
    return done.stdout.splitlines()


def test_nothing_of_this_machine_is_in_the_room(machine: dict[str, str]) -> None:
    seen = look(machine, "--without-compiler")
    assert {"has python3", "has git"} <= set(seen)
    assert not {"has cc", "has gcc", "has uv", "has chromium", "has pip"} & set(seen)
    assert not {"shared", "STEPSCOPE_EVERY", "PIP_CACHE_DIR", "VIRTUAL_ENV"} & set(seen)
    assert {"PIP_RETRIES", ".config", "HOME"} <= set(seen), "pip's own settings are handed on"


def test_a_compiler_is_there_unless_it_is_hidden(machine: dict[str, str], tmp_path: Path) -> None:
    seen = look(machine, "--in", str(tmp_path / "room"))
    assert {"has cc", "has gcc"} <= set(seen)
    assert not {"has uv", "has chromium"} & set(seen)
    assert (tmp_path / "room" / "stepscope" / "README.md").is_file(), "it stays where it was asked"
    assert (tmp_path / "room" / "home" / ".config" / "pip" / "pip.conf").is_file()


def test_a_command_that_fails_fails_the_room(machine: dict[str, str]) -> None:
    words = [str(ROOT / "scripts" / "clean-room"), "--", "sh", "-c", "exit 3"]
    assert subprocess.run(words, env=machine, capture_output=True, check=False).returncode == 3
