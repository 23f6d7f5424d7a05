"""What reads where the compiled library is absent, or is not to be used."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stepscope.core import compiled
from stepscope.readers.kineto import native
from stepscope.readers.kineto.event_decoder import Scanner
from tests.wording import mentions


def test_without_library_the_python_scanner_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert compiled.load(tmp_path / "absent.so") is None
    (tmp_path / "rubbish.so").write_bytes(b"no library")
    assert compiled.load(tmp_path / "rubbish.so") is None
    monkeypatch.setattr(compiled, "load", lambda: None)
    assert type(native.scanner_for_file()) is Scanner


def test_environment_forces_the_python_scanner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(compiled.PURE, "1")
    assert type(native.scanner_for_file()) is Scanner
    assert mentions(compiled.in_use(), "pure Python", "STEPSCOPE_PURE")


def test_version_says_which_scanner_is_used() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "stepscope", "--version"],
        env={**os.environ, compiled.PURE: "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert mentions(done.stdout.splitlines()[1], "scanner", "pure Python", "STEPSCOPE_PURE")
