"""The first tier: with `--quick` a test that would start a process is left out as it tries to, and
one that took long when it last ran here is not begun.

Nobody keeps a list of these tests. Python itself tells of every process that is about to start; and
each run notes in pytest's cache which tests it left out, which had processes and which took long in
it: the next quick one does not begin them.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Generator, Mapping
from multiprocessing import util
from typing import Any

import pytest

LONG_S = 0.1
"""Of a core. Nine of a hundred tests take longer, and two thirds of the time of all."""
KEY = "stepscope/not-quick"
STARTS = {"os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "subprocess.Popen"}
LEFT_BY_CUT_OFF = (
    "ResourceWarning",
    "pytest.PytestUnraisableExceptionWarning",
    "pytest.PytestUnhandledThreadExceptionWarning",
)
LEFT_OUT = "it starts a process, which --quick leaves to the whole suite"


def remember(config: pytest.Config, cpu_s: Mapping[str, float], refused: set[str]) -> None:
    """Note which tests were long or left out, beside what is known of those that were not run."""
    known = {name for name in config.cache.get(KEY, []) if name not in cpu_s}
    long = {name for name, s in cpu_s.items() if s > LONG_S}
    config.cache.set(KEY, sorted(known | long | refused))


class Quick:
    """A plugin. Whatever became of a test that was refused a process, it counts as skipped."""

    def __init__(self) -> None:
        self.is_in_test = False
        self.is_refused = False
        # The one way to a process that tells nobody.
        spawn = util.spawnv_passfds

        def told(path: Any, *more: Any) -> int:
            sys.audit("os.posix_spawn", path)
            return spawn(path, *more)

        vars(util)["spawnv_passfds"] = told
        sys.addaudithook(self.refuse)
        signal.signal(signal.SIGURG, self.stop)

    def refuse(self, event: str, _: object) -> None:
        if event not in STARTS or not self.is_in_test:
            return
        self.is_refused = True
        if threading.current_thread() is threading.main_thread():
            pytest.skip(LEFT_OUT)
        # The test may wait for this thread, and would for ever.
        os.kill(os.getpid(), signal.SIGURG)
        raise PermissionError(LEFT_OUT)

    def stop(self, *_: object) -> None:
        if self.is_in_test:
            pytest.skip(LEFT_OUT)

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        long = set(config.cache.get(KEY, []))
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in long])
        items[:] = [item for item in items if item.nodeid not in long]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        self.is_refused = False
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def _in_test(self) -> Generator[None, object, object]:
        self.is_in_test = True
        try:
            return (yield)
        finally:
            self.is_in_test = False

    pytest_runtest_setup = pytest_runtest_call = pytest_runtest_teardown = _in_test

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        refused = self.is_refused and (report.when == "call" or report.failed)
        if refused or (report.skipped and LEFT_OUT in str(report.longrepr)):
            # One place for all of them: the summary is one line.
            report.outcome, report.longrepr = "skipped", (__file__, 1, f"Skipped: {LEFT_OUT}")
        return report
