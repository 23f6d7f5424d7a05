"""The first word of the command line."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from stepscope.cli.main import main
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
