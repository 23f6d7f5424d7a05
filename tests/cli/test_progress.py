"""The bar on stderr: on a terminal alone, with the time left, in every command that reads."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from stepscope.cli import progress
from stepscope.cli.main import main
from stepscope.core.progress import counted
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


def test_a_long_loop_has_a_bar_and_a_short_one_none(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, now = Terminal(), [0.0]
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr("stepscope.cli.progress.time.monotonic", lambda: now[0])
    with progress.loops_shown():
        for _ in counted("short", range(3), 3):
            now[0] += 0.1
        assert terminal.getvalue() == ""
        with progress.progress_bar([]):
            for _ in counted("long", range(3), 3):
                now[0] += 1.0
    drawn = terminal.getvalue()
    assert "long" in drawn
    assert "short" not in drawn
    assert drawn.count("\x1b[?25l") == drawn.count("\x1b[?25h") == 1


def test_a_loop_that_nobody_shows_is_a_loop() -> None:
    assert list(counted("loop", [3, 1, 2], 3)) == [3, 1, 2]
