"""The first word of the command line."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import stepscope.cli.run as run_command
from stepscope.cli.commands import COMMANDS
from stepscope.cli.main import main
from tests.shared_data import DEMO
from tests.waiting import LONGEST_S
from tests.wording import mentions


@pytest.mark.parametrize(
    ("word", "meant"), [("verfy", "verify"), ("tun", "tune"), ("reprot", "report"), ("RUN", "run")]
)
def test_a_mistyped_command_gets_the_near_one_alone(
    capsys: pytest.CaptureFixture[str], word: str, meant: str
) -> None:
    with pytest.raises(SystemExit):
        main([word])
    assert capsys.readouterr().err.endswith(f" stepscope {meant}?\n")


def test_a_path_alone_is_diagnosed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(DEMO), "--format", "json"]) == 0
    expected = capsys.readouterr().out
    assert main([str(DEMO), "--format", "json"]) == 0
    assert capsys.readouterr().out == expected


def test_a_command_after_two_dashes_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []

    def run(options: run_command.Options) -> int:
        ran.append(list(options.command))
        return 7

    monkeypatch.setattr(run_command, "run", run)
    assert main(["--", "python", "train.py", "--lr", "1"]) == 7
    assert ran == [["python", "train.py", "--lr", "1"]]


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["train.py", "--lr", "1"], "stepscope -- python train.py --lr 1?"),
        ([sys.executable, "train.py"], f"stepscope -- {shlex.quote(sys.executable)} train.py?"),
        (["nothing-of-this-name"], "`stepscope --help`"),
    ],
)
def test_what_is_neither_a_command_nor_a_recording_is_told_what_was_meant(
    capsys: pytest.CaptureFixture[str], words: list[str], meant: str
) -> None:
    with pytest.raises(SystemExit):
        main(words)
    assert meant in capsys.readouterr().err


def test_the_demo_imports_little() -> None:
    """A person who looks how it works reads 200 files at most."""
    count = (
        "import sys, stepscope.cli.main as cli; cli.main(['demo']); "
        "print(sum(name.partition('.')[0] == 'stepscope' for name in sys.modules))"
    )
    out = subprocess.run([sys.executable, "-c", count], capture_output=True, text=True, check=True)
    assert int(out.stdout.split()[-1]) <= 200


def test_the_first_screen_has_every_command_once_in_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    for command in COMMANDS:
        assert [line for line in lines if line.split() == [command.name, *command.about.split()]]
    with pytest.raises(SystemExit):
        main(["--help"])
    assert capsys.readouterr().out.splitlines() == lines


def test_a_wrong_option_is_said_first(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["runs", "prune", "--keep", "many"])
    assert mentions(capsys.readouterr().err.splitlines()[0], "runs prune", "error", "--keep")


def test_the_environment_stays_as_it_was() -> None:
    code = (
        "import os\n"
        "from stepscope.cli.main import BLAS_THREADS, main\n"
        "os.environ.pop(BLAS_THREADS, None)\n"
        "before = dict(os.environ)\n"
        "main(['query', 'absent.json', 'select 1'])\n"
        "import sys\n"
        "assert 'numpy' in sys.modules\n"
        "assert dict(os.environ) == before\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("stream", ["stdin", "stdout", "stderr"])
def test_a_stream_that_was_closed_stays_closed_for_the_job_and_ends_nothing(
    stream: str, tmp_path: Path
) -> None:
    number = ("stdin", "stdout", "stderr").index(stream)
    told = tmp_path / "told"
    job = f"import sys; open({str(told)!r}, 'w').write(str(sys.{stream})); sys.exit(3)"
    words = ["-m", "stepscope", "run", "--no-diagnose", "--out", str(tmp_path / "run"), "--"]
    command = shlex.join([sys.executable, *words, sys.executable, "-c", job])
    done = subprocess.run(
        ["sh", "-c", f"{command} {number}{'<' if number == 0 else '>'}&-"],
        capture_output=True,
        text=True,
        check=False,
        timeout=LONGEST_S,
    )
    assert done.returncode == 3, done.stderr
    assert told.read_text() == "None"
    assert "Traceback" not in done.stderr
