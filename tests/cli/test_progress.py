"""The bar on stderr: on a terminal alone, with the time left, in every command that reads."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from stepscope.cli import printing
from stepscope.cli.main import main
from stepscope.core.experiments.experiment import Side
from stepscope.core.experiments.trials import Trial
from stepscope.core.timings import counted
from stepscope.errors import UsageError
from stepscope.experiments.verify.experiment import verify
from stepscope.experiments.verify.schedule import VerifyPolicy
from stepscope.live.cli import health
from tests.clocked_searches import Clocked, searched, space
from tests.installed import need
from tests.live_runs import write_rank, write_run
from tests.shared_data import SMALL


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    "arguments",
    [
        ["diagnose", str(SMALL)],
        ["report", str(SMALL), "-o", "report.html"],
        ["query", str(SMALL), "select count(*) from events"],
        ["export", "perfetto", str(SMALL), "-o", "run.pftrace"],
        ["compare", str(SMALL), str(SMALL)],
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
    assert main(["diagnose", str(SMALL), "--no-cache"]) == 0
    assert capsys.readouterr().err == ""


def test_a_long_loop_has_a_bar_and_a_short_one_none(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, now = Terminal(), [0.0]
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr("stepscope.cli.printing.time.monotonic", lambda: now[0])
    with printing.loops_shown():
        for _ in counted("short", range(3), 3):
            now[0] += 0.1
        assert terminal.getvalue() == ""
        with printing.progress_bar([]):
            for _ in counted("long", range(3), 3):
                now[0] += 1.0
    drawn = terminal.getvalue()
    assert "long" in drawn
    assert "short" not in drawn
    assert drawn.count("\x1b[?25l") == drawn.count("\x1b[?25h") == 1


def test_runs_that_take_long_have_a_bar_from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal)
    during: list[str] = []

    def measure(_side: Side) -> Trial:
        during.append(terminal.getvalue())
        raise UsageError("no run is made here")

    with printing.loops_shown(), pytest.raises(UsageError):
        verify(measure, VerifyPolicy(max_rounds=3))
    assert "at most 14 runs" in during[0]
    assert "left" in during[0]
    drawn = terminal.getvalue()
    assert drawn.count("\x1b[?25l") == drawn.count("\x1b[?25h") == 1


def test_trials_of_a_search_have_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    need("optuna")
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal)
    with printing.loops_shown():
        search = searched(space("num_workers=0..2"), Clocked(lambda _change: 10.0), num_trials=2)
    assert search.study is not None
    assert len(search.study.trials()) == 2
    assert "at most 2 trials" in terminal.getvalue()


@pytest.mark.parametrize("is_terminal", [True, False])
def test_health_says_how_many_steps_were_made(
    is_terminal: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    now, made = [100.0], [0]
    run = write_run(tmp_path / "run")
    write_rank(run, 0)
    monkeypatch.setattr("stepscope.live.cli.health.time.monotonic", lambda: now[0])
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    monkeypatch.setattr("stepscope.live.samples.last_step", lambda _rank: made[0])
    far = health._Progress(run)
    for made[0] in (0, 0, 2, 4):
        now[0] += 2.5
        assert far.is_wanted()
    said = capsys.readouterr().err.splitlines()
    wanted = ["0 of 10 steps after 2 s", "0 of 10 steps after 5 s", "2 of 10 steps after 8 s"]
    wanted.append("4 of 10 steps after 10 s, about 8 s left")
    assert said == ([f"stepscope: {words}" for words in wanted] if is_terminal else [])


def test_a_loop_that_nobody_shows_is_a_loop() -> None:
    assert list(counted("loop", [3, 1, 2], 3)) == [3, 1, 2]
