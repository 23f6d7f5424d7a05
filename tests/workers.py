"""Tests in several processes: collected once, then run by workers forked from what was collected.

A worker takes a file at a time, so that what its tests share is made once; when no file is left, it
takes the second half of what another one has before it.
"""

from __future__ import annotations

import gc
import importlib
import os
import resource
import signal
import sys
import traceback
import warnings
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from time import process_time
from typing import Any, Literal

import pytest

from tests import quick
from tests.forked_jobs import Forked

IN_MANY_FILES = "torch._dynamo"
"""The first optimizer of a process imports it, which takes as long as torch itself. Where the tests
are many, every worker would."""
MANY = 100
"""Files."""
Share = deque[int]
"""The tests that a worker has before it, by their places in the session."""


@dataclass(kw_only=True)
class Worker:
    process_id: int
    pipe: Connection
    share: Share = field(default_factory=Share)
    promised: int | None = None
    """What it runs next: a test is told of the one after it, for what the two share."""
    running: int | None = None
    problem: str = ""


class Workers:
    """A plugin: `num` forked processes run a session's tests, and this one reports them."""

    def __init__(self, num: int) -> None:
        self.num = num
        self.num_forked = 0
        self.workers: list[Worker] = []
        self.files: deque[Share] = deque()
        self.cpu_s: dict[str, float] = {}
        """Of this session's tests, by name: without what the processes take that they start."""
        self.left_out: set[str] = set()
        """Tests that started a process, or would have."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.testsfailed or session.config.option.collectonly or len(session.items) < 2:
            return None
        places = groupby(range(len(session.items)), lambda place: session.items[place].path)
        self.files.extend(Share(same) for _, same in places)
        if len(self.files) > MANY and "torch" in sys.modules:
            importlib.import_module(IN_MANY_FILES)
        # What is there now lives as long as the session: no worker need look through it again, or
        # have a copy of it for the looking.
        gc.collect()
        gc.freeze()
        try:
            for _ in range(self.num):
                self._fork(session)
            while self.workers:
                for pipe in wait([worker.pipe for worker in self.workers]):
                    self._hear(session, next(each for each in self.workers if each.pipe is pipe))
        finally:
            gc.unfreeze()
            for worker in self.workers:
                os.kill(worker.process_id, signal.SIGTERM)
                os.waitpid(worker.process_id, 0)
            quick.remember(session.config, self.cpu_s, self.left_out)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        return True

    def _fork(self, session: pytest.Session) -> None:
        self.num_forked += 1
        ours, theirs = Pipe()
        with warnings.catch_warnings():
            # Python 3.12 warns where there are threads. A test module starts none; a library may
            # have, for itself.
            warnings.simplefilter("ignore", DeprecationWarning)
            process_id = os.fork()
        if process_id == 0:
            # An end that another process holds too would never be seen to close.
            for pipe in (ours, *(worker.pipe for worker in self.workers)):
                pipe.close()
            status = 1
            try:
                _work(session, self.num_forked, theirs)
                status = 0
            finally:
                # Where the first process is gone, nobody is there to be told.
                with suppress(OSError):
                    if status != 0:
                        theirs.send(("broken", traceback.format_exc()))
                os._exit(status)
        theirs.close()
        self.workers.append(Worker(process_id=process_id, pipe=ours))

    def _hear(self, session: pytest.Session, worker: Worker) -> None:
        """Do what a worker's message says: give it a test, or report what it has done."""
        hook = session.config.hook
        try:
            message, content = worker.pipe.recv()
        except EOFError:
            self._bury(session, worker)
            return
        if message == "next":
            worker.running = worker.promised
            stopped = session.shouldfail or session.shouldstop
            worker.promised = None if stopped else self._take(worker)
            worker.pipe.send(worker.promised)
        elif message == "report":
            report = hook.pytest_report_from_serializable(config=session.config, data=content)
            self._report(session, report)
        elif message == "warning":
            hook.pytest_warning_recorded.call_historic(kwargs=content)
        elif message == "broken":
            worker.problem = content
        else:
            worker.running = None
            place, cpu_s, had_processes, passed = content
            item = session.items[place]
            self.cpu_s[item.nodeid] = cpu_s
            if had_processes:
                self.left_out.add(item.nodeid)
            keywords: dict[str, Literal[1]] = dict.fromkeys(item.keywords, 1)
            for when, told in passed:
                where = item.nodeid, item.location, keywords
                self._report(session, pytest.TestReport(*where, "passed", None, when, **told))
            hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)

    def _report(self, session: pytest.Session, report: pytest.TestReport) -> None:
        session.config.hook.pytest_runtest_logreport(report=report)
        if report.skipped and quick.LEFT_OUT in str(report.longrepr):
            self.left_out.add(report.nodeid)

    def _take(self, worker: Worker) -> int | None:
        if not worker.share and self.files:
            worker.share = self.files.popleft()
        if not worker.share:
            most = max(self.workers, key=lambda each: len(each.share)).share
            worker.share = Share(most.pop() for _ in range((len(most) + 1) // 2))
            worker.share.reverse()
        return worker.share.popleft() if worker.share else None

    def _bury(self, session: pytest.Session, worker: Worker) -> None:
        """Let go of a worker that has ended. Where it was not told to, the test that it ran has
        failed, and another worker takes the rest."""
        worker.pipe.close()
        self.workers.remove(worker)
        _, status = os.waitpid(worker.process_id, 0)
        if status == 0:
            return
        text = f"the worker ended with status {os.waitstatus_to_exitcode(status)}\n{worker.problem}"
        if worker.running is None:
            raise RuntimeError(text)
        report = _crashed(session.items[worker.running], text)
        session.config.hook.pytest_runtest_logreport(report=report)
        if worker.promised is not None:
            worker.share.appendleft(worker.promised)
        if worker.share:
            self.files.appendleft(worker.share)
        if self.files:
            self._fork(session)


def _crashed(item: pytest.Item, text: str) -> pytest.TestReport:
    keywords: dict[str, Literal[1]] = dict.fromkeys(item.keywords, 1)
    return pytest.TestReport(item.nodeid, item.location, keywords, "failed", text, "call")


TOLD = ("sections", "duration", "start", "stop", "user_properties")
"""Of a report of what passed, beside whose it is."""


class _Teller:
    """A worker's plugin that sends what happens to the first process."""

    def __init__(self, config: pytest.Config, pipe: Connection) -> None:
        self.config = config
        self.pipe = pipe
        self.passed: list[tuple[str, dict[str, Any]]] = []
        """Of the running test: what a report has that no other test's would have. Most have no
        more, and are told with the test's end: to write a report out takes longer than they do."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.passed and report.longrepr is None and not hasattr(report, "wasxfail"):
            self.passed.append((report.when, {name: getattr(report, name) for name in TOLD}))
            return
        hook = self.config.hook
        data = hook.pytest_report_to_serializable(config=self.config, report=report)
        self.pipe.send(("report", data))

    def pytest_warning_recorded(self, **warning: Any) -> None:
        self.pipe.send(("warning", warning))


def _work(session: pytest.Session, number: int, pipe: Connection) -> None:
    config = session.config
    _have_own(config, number)
    teller = _Teller(config, pipe)
    config.pluginmanager.register(teller)

    def ask() -> int | None:
        pipe.send(("next", None))
        place: int | None = pipe.recv()
        return place

    place = ask()
    while place is not None:
        following, begun, processes = ask(), process_time(), _processes()
        config.hook.pytest_runtest_protocol(
            item=session.items[place],
            nextitem=None if following is None else session.items[following],
        )
        had_processes = _processes() != processes
        pipe.send(("finish", (place, process_time() - begun, had_processes, teller.passed)))
        teller.passed = []
        place = following


def _processes() -> tuple[int, int]:
    """It is another one after a test that had processes: page faults of those that have ended, and
    how many were forked of the process that has torch."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt, Forked.num_runs


def _have_own(config: pytest.Config, number: int) -> None:
    """Give a worker what processes cannot share: where output is kept, a folder for its tests'
    files. The first process alone reports."""
    capture = config.pluginmanager.getplugin("capturemanager")
    if capture is not None:
        capture.stop_global_capturing()
        capture.start_global_capturing()
        capture.suspend_global_capture()
    config.pluginmanager.unregister(name="terminalreporter")
    factory = config._tmp_path_factory  # type: ignore[attr-defined]
    base: Path = factory.getbasetemp() / f"worker{number}"
    base.mkdir(exist_ok=True)
    factory._basetemp = base
