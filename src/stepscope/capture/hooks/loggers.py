"""Hooks on what writes logs: logging, progress bars, TensorBoard, trackers.

A call inside another one is a part of it; those of other threads hold no step up. `print` is left
alone: it is no function of Python's, and whatever stands in its place is noticed.
"""

from __future__ import annotations

import threading
from typing import Any

from stepscope.capture import clocks
from stepscope.capture.caller import calling_line
from stepscope.capture.guard import Guard
from stepscope.capture.hooks.changes import LOGGERS
from stepscope.capture.hooks.libraries import Libraries
from stepscope.capture.hooks.probes import Probe
from stepscope.capture.session import Session
from stepscope.capture.tape import LOGGED, NOTED_NS

MIN_NS = 20_000
"""Shorter calls are not counted."""
LONGEST_NS = 60_000_000_000
"""A call that has begun longer ago is taken for one that a signal's handler cut short."""


class _Loggers:
    def __init__(self, guard: Guard, session: Session) -> None:
        self._session = session
        self._thread = threading.main_thread().ident
        self._inside_ns = 0
        """When the call began that runs."""
        self._watched = guard.watch(self._logged)
        self.probe = Probe(self._enter, self._leave)

    def _enter(self, *_: Any) -> int | None:
        if threading.get_ident() != self._thread:
            return None
        now = clocks.perf_counter_ns()
        if self._inside_ns and now - self._inside_ns < LONGEST_NS:
            return None
        self._inside_ns = now
        return now

    def _leave(self, begun: int | None, _: Any) -> None:
        if begun is not None:
            self._inside_ns = 0
            ended = clocks.perf_counter_ns()
            if ended - begun >= MIN_NS:
                self._watched(begun, ended)

    def _logged(self, begun: int, ended: int) -> None:
        line = calling_line() if ended - begun >= NOTED_NS else None
        self._session.tape.append((LOGGED, begun, ended, line))


def hook_loggers(guard: Guard, session: Session, libraries: Libraries) -> None:
    libraries.add(LOGGERS, _Loggers(guard, session).probe)
