"""What our profiler's library has to say is not for the job's stderr."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from stepscope.capture.recording import quiet
from tests.capture.jobs import environment, record, script
from tests.installed import absent, package
from tests.waiting import LONGEST_S

torch = package("torch")

JOB = """
sys.stderr.write("the job's own line\\n")
train(20)
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
    train(1)
sys.stderr.write("the job's last line\\n")
"""


def kineto_lines(text: str) -> list[str]:
    """Without what differs from run to run: time, process, thread."""
    return re.findall(r"^(\w+):\d{4}-.*\.cpp:\d+\] (.*)$", text, re.MULTILINE)


def test_a_recording_adds_nothing_to_the_jobs_stderr(tmp_path: Path) -> None:
    """The job's own profiler, after ours, says what it says without us."""
    words = [sys.executable, str(script(tmp_path, JOB, "plain.py"))]
    plain = subprocess.run(
        words, capture_output=True, text=True, timeout=LONGEST_S, check=False, env=environment()
    )
    ended = record(tmp_path, JOB, "--start-step", "8", "--steps", "2")
    (rank,) = ended.run.ranks
    assert list(rank.windows) == [8], "else this says nothing"
    assert kineto_lines(ended.err) == kineto_lines(plain.stderr)
    assert len(ended.err.splitlines()) == len(plain.stderr.splitlines()), ended.err


@pytest.mark.parametrize(("setting", "is_quiet"), [(None, True), ("", True), ("4", False)])
def test_a_threshold_that_the_user_has_set_stays(
    monkeypatch: pytest.MonkeyPatch, setting: str | None, is_quiet: bool
) -> None:
    level = quiet._level(torch.__file__)
    if level is None:
        absent("needs a torch that shows Kineto's threshold: pip install torch==2.13.0")
    monkeypatch.delenv("KINETO_LOG_LEVEL", raising=False)
    if setting is not None:
        monkeypatch.setenv("KINETO_LOG_LEVEL", setting)
    before = level.value
    with quiet.quiet_kineto(torch):
        assert (level.value == quiet.SILENT) is is_quiet
    assert level.value == before


def test_a_warning_of_the_profiler_is_kept_for_the_jobs_own() -> None:
    warners = [(sys.modules[module], name) for module, name in quiet.WARNERS]
    before = [getattr(module, name) for module, name in warners]
    with quiet.quiet_kineto(torch):
        for module, name in warners:
            # Here a warning is an error.
            getattr(module, name)("planted")
    assert [getattr(module, name) for module, name in warners] == before
    with pytest.warns(UserWarning, match="planted"):
        torch.profiler.profiler._warn_once("planted")
