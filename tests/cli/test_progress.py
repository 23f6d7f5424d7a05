"""The bar on stderr: on a terminal alone, with the time left, in every command that reads."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from stepscope.cli.main import main
from tests.shared_data import DEMO


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    "arguments",
    [
        ["diagnose", str(DEMO)],
        ["report", str(DEMO), "-o", "report.html"],
        ["query", str(DEMO), "select count(*) from events"],
        ["export", "perfetto", str(DEMO), "-o", "run.pftrace"],
        ["compare", str(DEMO), str(DEMO)],
    ],
    ids=lambda arguments: arguments[0],
)
def test_what_reads_shows_how_far_it_is(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal)
    assert main([*arguments, "--no-cache"]) == 0
    drawn = terminal.getvalue()
    assert "reading" in drawn
    assert "left" in drawn
    # A bar that has ended is taken away: rich erases its line, and shows the cursor again.
    assert "\x1b[2K" in drawn
    assert drawn.count("\x1b[?25l") == drawn.count("\x1b[?25h")


def test_off_a_terminal_there_is_no_bar(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(DEMO), "--no-cache"]) == 0
    assert capsys.readouterr().err == ""
