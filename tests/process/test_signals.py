"""A signal reaches the job once, whoever it was sent to; a launcher that is killed leaves no job
behind."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import closing
from pathlib import Path
from typing import cast

import pytest

from stepscope.process import members
from stepscope.process.signals import Relay, _in_effect
from stepscope.process.table import processes, read_process
from stepscope.process.watchdog import Watchdog
from tests.capture.jobs import environment, stepscope
from tests.installed import needs
from tests.process.terminals import JOB, Terminal, launcher, python, started
from tests.waiting import LONGEST_S, until

HANDLED = ("SIGINT", "SIGQUIT", "SIGTERM", "SIGHUP", "SIGTSTP", "SIGUSR1")


@pytest.mark.parametrize("name", ["SIGINT", "SIGQUIT", "SIGALRM", "SIGRTMIN"])
def test_a_signal_to_the_launcher_alone_ends_the_job_as_it_would_alone(
    tmp_path: Path, name: str
) -> None:
    number = getattr(signal, name)
    with started(tmp_path, *python(JOB)) as launched:
        launched.process.send_signal(number)
        # The job has this pipe too: its end is the job's.
        out, code, err = launched.rest()
    assert (out, code) == ([], 128 + number)
    assert ("KeyboardInterrupt" in err) is (number == signal.SIGINT)


@pytest.mark.parametrize(
    "is_to_group", [False, True], ids=["to the launcher alone", "to the group"]
)
def test_each_signal_comes_once(tmp_path: Path, is_to_group: bool) -> None:
    sent = [signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP]
    with started(tmp_path, *python(JOB, *HANDLED)) as launched:
        # One while the one before is still being looked at, too.
        for number in sent * 5:
            (os.killpg if is_to_group else os.kill)(launched.process.pid, number)
            assert launched.read_line() == f"got {number}"
        launched.process.send_signal(signal.SIGUSR1)
        out, code, err = launched.rest()
    assert (out, code, err) == ([f"got {signal.SIGUSR1}"], 3, "")


def test_what_nohup_has_ignored_stays_ignored(tmp_path: Path) -> None:
    words = launcher(tmp_path, *python(JOB, "SIGUSR1"))
    with subprocess.Popen(
        ["nohup", *words], stdout=subprocess.PIPE, env=environment(), start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"ready")
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGUSR1)
        out, _ = process.communicate(timeout=LONGEST_S)
    assert (out, process.returncode) == (f"got {signal.SIGUSR1}\n".encode(), 3)


@pytest.mark.parametrize(("key", "number"), [(b"\x03", signal.SIGINT), (b"\x1c", signal.SIGQUIT)])
def test_a_key_reaches_the_job_once(tmp_path: Path, key: bytes, number: int) -> None:
    with closing(Terminal(tmp_path, *python(JOB, *HANDLED))) as terminal:
        for _ in range(2):
            terminal.press(key)
            assert terminal.line("got") == f"got {number}"
        os.kill(terminal.launcher_pid, signal.SIGUSR1)
        assert terminal.rest() == [f"got {signal.SIGUSR1}", "code 3"]


@needs("timeout")
def test_a_key_reaches_a_job_that_has_put_itself_into_another_group(tmp_path: Path) -> None:
    with closing(Terminal(tmp_path, "timeout", "600", *python(JOB, *HANDLED))) as terminal:
        terminal.press(b"\x03")
        assert terminal.line("got") == f"got {signal.SIGINT}"


def test_ctrl_z_stops_launcher_and_job_and_both_go_on(tmp_path: Path) -> None:
    with closing(Terminal(tmp_path, *python(JOB, "SIGUSR1"))) as terminal:
        terminal.press(b"\x1a")
        terminal.line("stopped")
        until(lambda: _state(terminal.job_pid) == "T")
        os.killpg(terminal.launcher_pid, signal.SIGCONT)
        os.kill(terminal.launcher_pid, signal.SIGUSR1)
        assert terminal.rest() == [f"got {signal.SIGUSR1}", "code 3"]


def test_a_launcher_that_is_stopped_alone_stops_its_job(tmp_path: Path) -> None:
    with closing(Terminal(tmp_path, *python(JOB, "SIGUSR1"))) as terminal:
        os.kill(terminal.launcher_pid, signal.SIGTSTP)
        terminal.line("stopped")
        until(lambda: _state(terminal.job_pid) == "T")
        os.kill(terminal.launcher_pid, signal.SIGCONT)
        os.kill(terminal.launcher_pid, signal.SIGUSR1)
        assert terminal.rest() == [f"got {signal.SIGUSR1}", "code 3"]


def test_a_terminal_that_closes_ends_the_job(tmp_path: Path) -> None:
    with closing(Terminal(tmp_path, *python(JOB))) as terminal:
        terminal.hang_up()
        until(lambda: read_process(terminal.job_pid) is None)


@pytest.mark.parametrize("shell", [False, True], ids=["python", "a shell that started python"])
def test_a_launcher_that_is_killed_takes_the_job_with_it(tmp_path: Path, shell: bool) -> None:
    command = python(JOB)
    if shell:
        # Two commands, so that the shell stays.
        command = ["sh", "-c", '"$@"; true', "sh", *command]
    with started(tmp_path, *command) as launched:
        launched.process.kill()
        out, code, _ = launched.rest()
        assert (out, code) == ([], -signal.SIGKILL)


def test_a_launcher_that_is_killed_closes_the_terminal_of_its_job(tmp_path: Path) -> None:
    """The signal is SIGHUP, once."""
    with started(tmp_path, *python(JOB, *HANDLED)) as launched:
        watchdog = launched.watchdog()
        launched.process.kill()
        assert launched.read_line() == f"got {signal.SIGHUP}"
        until(lambda: read_process(watchdog) is None)
        os.kill(launched.job_pid, signal.SIGUSR1)
        assert launched.rest()[0] == [f"got {signal.SIGUSR1}"]


@pytest.mark.parametrize("how", ["nohup", "setsid"])
def test_a_job_that_was_detached_outlives_a_killed_launcher(tmp_path: Path, how: str) -> None:
    with started(tmp_path, how, *python(JOB, "SIGUSR1")) as launched:
        watchdog = launched.watchdog()
        launched.process.kill()
        until(lambda: read_process(watchdog) is None)
        os.kill(launched.job_pid, signal.SIGUSR1)
        assert launched.rest()[0] == [f"got {signal.SIGUSR1}"]


def test_a_watchdog_that_is_gone_costs_the_job_nothing(tmp_path: Path) -> None:
    with started(tmp_path, *python(JOB, *HANDLED)) as launched:
        os.kill(launched.watchdog(), signal.SIGKILL)
        os.killpg(launched.process.pid, signal.SIGINT)
        assert launched.read_line() == f"got {signal.SIGINT}"
        launched.process.send_signal(signal.SIGUSR1)
        assert launched.rest() == ([f"got {signal.SIGUSR1}"], 3, "")


WAITED_FOR = """
import os, sys
from stepscope.process.job import run_owned
run_owned(sys.argv[2:], dict(os.environ))
"""
TALKED_TO = """
import os, sys
from stepscope.process.job import OwnedJob
OwnedJob(sys.argv[2:], dict(os.environ)).process.wait()
"""
APART = """
import signal, subprocess, sys
{ignored}
subprocess.Popen(["tail", "-f", "/dev/null", sys.argv[1]], start_new_session=True)
signal.pause()
"""
"""A job that starts a process in a session of its own."""


@pytest.mark.parametrize(
    "starter", [WAITED_FOR, TALKED_TO], ids=["jobs that are waited for", "jobs that are talked to"]
)
def test_jobs_of_our_own_end_with_us_all_of_them(tmp_path: Path, starter: str) -> None:
    (tmp_path / "log").touch()
    job = python(APART.format(ignored=""), str(tmp_path / "log"))
    process = subprocess.Popen(python(starter, str(tmp_path), *job), start_new_session=True)
    apart = ("tail", "-f", "/dev/null", str(tmp_path / "log"))

    until(lambda: apart in [each.command for each in processes().values()])
    # Whoever kills our whole group leaves the job to the watchdog.
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    until(
        lambda: not [each for each in processes().values() if str(tmp_path / "log") in each.command]
    )
    assert process.returncode == -signal.SIGKILL


def test_a_job_of_our_own_that_will_not_end_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "GRACE_S", 0.2)
    (tmp_path / "log").touch()
    code = APART.format(ignored="signal.signal(signal.SIGTERM, signal.SIG_IGN)")
    mark = {"MARKED": str(tmp_path)}
    with subprocess.Popen(
        python(code, str(tmp_path / "log")), env=environment(**mark), start_new_session=True
    ) as process:
        until(lambda: len(members.members(None, str(tmp_path).encode())) == 2)
        members.end(members.first_process(process.pid), str(tmp_path).encode())
        assert not members.members(None, str(tmp_path).encode())
    assert process.returncode == -signal.SIGKILL


def test_a_number_that_is_another_processs_by_now_is_left_alone() -> None:
    with subprocess.Popen(python(JOB), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        first = members.first_process(process.pid)
        assert first.started_ticks is not None
        assert members.members(first, b"") == {process.pid}
        assert members.members(first._replace(started_ticks=first.started_ticks - 1), b"") == set()
        process.kill()


def test_a_reader_of_stderr_that_has_gone_costs_the_job_nothing(tmp_path: Path) -> None:
    """Neither what is said while it runs, nor the diagnosis after it."""
    code = (
        "import sys; from stepscope.process.launch import launch; from stepscope.process.stderr "
        "import say\n"
    )
    code += "sys.exit(launch(None, sys.argv[1:], {}, meanwhile=lambda: say('a word')))"
    job = python("import sys, time; time.sleep(0.6); sys.exit(7)")
    for words in (python(code, *job), stepscope("run", "--out", str(tmp_path / "run"), "--", *job)):
        ours, theirs = os.pipe()
        os.close(ours)
        assert (
            subprocess.run(
                words, stderr=theirs, check=False, env=environment(), timeout=LONGEST_S
            ).returncode
            == 7
        )
        os.close(theirs)


class FakeWatchdog:
    """Another signal comes to the whole group just before the first answer."""

    def __init__(self, second: signal.Signals) -> None:
        self._second: signal.Signals | None = second

    def group_signals(self) -> set[int]:
        second, self._second = self._second, None
        if second is None:
            return set()
        signal.raise_signal(second)
        return {signal.SIGINT, second}


class FakeJob:
    """In our process group."""

    pid = os.getpid()

    def __init__(self) -> None:
        self.sent: list[int] = []

    def send_signal(self, number: int) -> None:
        self.sent.append(number)


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGQUIT])
def test_a_signal_to_the_group_that_comes_with_the_answer_is_not_passed_on(
    second: signal.Signals,
) -> None:
    job, watchdog = FakeJob(), FakeWatchdog(second)
    relay = Relay(cast("Watchdog", watchdog))
    with relay:
        relay.attach(cast("subprocess.Popen[bytes]", job))
        signal.raise_signal(signal.SIGINT)
        assert job.sent == []
        # It is forgotten then.
        signal.raise_signal(second)
        assert job.sent == [second]


def test_a_stop_and_its_continuation_undo_each_other() -> None:
    stop, go, end = signal.SIGTSTP, signal.SIGCONT, signal.SIGTERM
    assert _in_effect([stop, end, end, go]) == [end, go]
    assert _in_effect([go, stop]) == [stop]
    assert _in_effect([stop, go, stop]) == [stop]


def _state(pid: int) -> str:
    process = read_process(pid)
    assert process is not None
    return process.state
