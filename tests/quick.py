"""The first tier: with `--quick` a test that would start a process is left out as it tries to.

Nobody keeps a list of these tests: Python itself tells of every process that is about to start.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from multiprocessing import util
from typing import Any

import pytest

STARTS = {"os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "subprocess.Popen"}
LEFT_OUT = "it starts a process, which --quick leaves to the whole suite"


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

    def refuse(self, event: str, _: object) -> None:
        if event in STARTS and self.is_in_test:
            self.is_refused = True
            pytest.skip(LEFT_OUT)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        self.is_in_test, self.is_refused = True, False
        try:
            return (yield)
        finally:
            self.is_in_test = False

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        refused = self.is_refused and (report.when == "call" or report.failed)
        if refused or (report.skipped and LEFT_OUT in str(report.longrepr)):
            # One place for all of them: the summary is one line.
            report.outcome, report.longrepr = "skipped", (__file__, 1, f"Skipped: {LEFT_OUT}")
        return report
