"""The parent's side of the bench.

Starts its processes, asks with a time limit, and replaces one that hung or died.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from typing import IO

import msgspec

from stepscope.errors import InputError, UsageError
from stepscope.process.isolation import isolated_python, tool_environment, trusted_path
from stepscope.process.job import OwnedJob
from stepscope.tune.kernels.checking import CheckResult, ReferenceResult, SampleResult
from stepscope.tune.kernels.space import Settings, process_of
from stepscope.tune.kernels.worker import Answer, Described, Opening, Request
from stepscope.tune.shapes.kernel_tuning import Case, Error

START_S = 180.0
"""Seconds for importing torch, the user's module and taking the device."""
TAIL_BYTES = 2000
COMPILERS_PATH = "TORCH_CUSTOM_PYTHONPATH"


class _GoneError(Exception):
    """The process ended, or did not answer in time."""


class _Worker:
    def __init__(self, opening: Opening) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - open for as long as the process
        self._job = OwnedJob(
            isolated_python("stepscope.tune.kernels.worker"),
            # Processes that compile for torch look where this one began to: torch would give them
            # the user's folder too.
            tool_environment({**os.environ, COMPILERS_PATH: os.pathsep.join(trusted_path())}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        self._process = self._job.process
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        assert self._process.stdout is not None and self._process.stdin is not None
        threading.Thread(
            target=_read, args=(self._process.stdout, self._lines), daemon=True
        ).start()
        try:
            self._send(msgspec.json.encode(opening))
            self._receive(START_S)
        except BaseException:
            self.close()
            raise

    def ask(self, request: Request, limit_s: float) -> Answer:
        self._send(msgspec.json.encode(request))
        return self._receive(limit_s)

    def close(self) -> None:
        # Its compilers too, and at once: it has nothing to put away.
        self._job.end(grace_s=0.0)
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()
        self._errors.close()

    def tail(self) -> str:
        """The last that it said on stderr."""
        with contextlib.suppress(OSError, ValueError):
            size = self._errors.seek(0, os.SEEK_END)
            self._errors.seek(max(0, size - TAIL_BYTES))
            lines = self._errors.read().decode("utf-8", "replace").strip().splitlines()
            return lines[-1].strip()[:300] if lines else ""
        return ""

    def _send(self, line: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise _GoneError(self._ended()) from None

    def _receive(self, limit_s: float) -> Answer:
        try:
            line = self._lines.get(timeout=max(limit_s, 0.01))
        except queue.Empty:
            raise _GoneError(f"took longer than {limit_s:.3g} s and was ended") from None
        if line is None:
            raise _GoneError(self._ended())
        answer = msgspec.json.decode(line, type=Answer)
        if answer.usage is not None:
            raise UsageError(answer.usage)
        return answer

    def _ended(self) -> str:
        code = self._process.wait()
        how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with code {code}"
        tail = self.tail()
        return f"its process ended {how}" + (f": {tail}" if tail else "")


class RemoteBench:
    """The bench in processes of its own, one for each set of process-wide settings."""

    def __init__(self, opening: Opening, limit_s: float) -> None:
        self._opening = opening
        self._limit_s = limit_s
        self._workers: dict[tuple[str, ...], _Worker] = {}

    def describe(self) -> Described:
        described = self._must(Request(do="describe")).described
        assert described is not None
        return described

    def warm_up(self) -> None:
        self._must(Request(do="warm"))

    def refer(self, case: Case) -> ReferenceResult:
        request, limit_s = Request(do="refer", case=case), max(self._limit_s, START_S)
        try:
            result = self._ask((), request, limit_s).referred
        except _GoneError as gone:
            return ReferenceResult(problem=str(gone))
        assert result is not None
        return result

    def begin(self, settings: Settings) -> None:
        """Starts the process that checks it; one that cannot be started says so when it is
        asked."""
        with contextlib.suppress(_GoneError):
            self._worker(process_of(settings))

    def check(self, settings: Settings, case: Case, allowed: Error, limit_s: float) -> CheckResult:
        request = Request(do="check", settings=settings, case=case, allowed=allowed)
        try:
            result = self._ask(process_of(settings), request, limit_s).compared
        except _GoneError as gone:
            return CheckResult(why=str(gone))
        assert result is not None
        return result

    def sample(
        self, settings: Settings | None, case: Case, inner: int, limit_s: float
    ) -> SampleResult:
        request = Request(do="sample", settings=settings, case=case, inner=inner)
        try:
            result = self._ask(process_of(settings or {}), request, limit_s).sampled
        except _GoneError as gone:
            return SampleResult(ns=None, why=str(gone))
        assert result is not None
        return result

    def close(self) -> None:
        for process in list(self._workers):
            self._drop(process)

    def _ask(self, process: tuple[str, ...], request: Request, limit_s: float) -> Answer:
        try:
            answer = self._worker(process).ask(request, limit_s)
        except _GoneError:
            self._drop(process)
            raise
        result = answer.compared or answer.sampled
        if result is not None and result.is_broken:
            self._drop(process)
        return answer

    def _worker(self, process: tuple[str, ...]) -> _Worker:
        if process not in self._workers:
            self._workers[process] = _Worker(self._opening)
        return self._workers[process]

    def _must(self, request: Request) -> Answer:
        try:
            return self._ask((), request, START_S)
        except _GoneError as gone:
            raise InputError(
                f"the process that tunes {self._opening.target} could not be started: {gone}"
            ) from None

    def _drop(self, process: tuple[str, ...]) -> None:
        worker = self._workers.pop(process, None)
        if worker is not None:
            worker.close()


@contextlib.contextmanager
def remote_bench(opening: Opening, limit_s: float) -> Iterator[RemoteBench]:
    bench = RemoteBench(opening, limit_s)
    try:
        yield bench
    finally:
        bench.close()


def _read(pipe: IO[bytes], lines: queue.SimpleQueue[bytes | None]) -> None:
    with contextlib.suppress(OSError, ValueError):
        for line in pipe:
            lines.put(line)
    lines.put(None)
