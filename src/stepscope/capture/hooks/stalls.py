"""Hooks on what stops a step: saves, evaluations and collections of garbage."""

from __future__ import annotations

import functools
import gc
import io
import os
import time
from collections.abc import Callable
from pathlib import PurePath
from typing import Any

from stepscope.capture.caller import calling_line
from stepscope.capture.guard import Guard
from stepscope.capture.hooks.patches import compiling_asker, replace, replace_function, timed
from stepscope.capture.session import Session
from stepscope.capture.tape import COLLECTED, EVALUATED, NOTED_NS, SAVED

MOST_NOTED = 200
"""Evaluations whose line is looked up: a teacher's may be told so in every step."""


def hook_stalls(guard: Guard, torch: Any, session: Session) -> None:
    replace_function(guard, torch, "save", _around_save(guard, session))
    _hook_evaluations(guard, torch, session)
    _hook_collections(guard, session)


def _around_save(guard: Guard, session: Session) -> Callable[[Any], Any]:
    """With the time on a core, and the size of what was written."""
    watched, sized = guard.watch(functools.partial(saved, session)), guard.watch(_position)
    is_compiling = compiling_asker()
    clock, cpu_clock = time.perf_counter_ns, time.thread_time_ns

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if not guard.is_on or is_compiling():
                return original(*args, **kwargs)
            file = args[1] if len(args) > 1 else kwargs.get("f")
            before = sized(file)
            begun, cpu_ns = clock(), cpu_clock()
            try:
                return original(*args, **kwargs)
            finally:
                ended, cpu_ns = clock(), cpu_clock() - cpu_ns
                watched(begun, ended, cpu_ns=cpu_ns, file=file, before=before)

        return wrapper

    return make


def saved(
    session: Session,
    begun: int,
    ended: int,
    *,
    cpu_ns: int | None = None,
    file: Any = None,
    before: int | None = None,
) -> None:
    # What another thread writes, as an asynchronous save's does, holds no step up.
    if session.writer is not None and not session.writer.is_in_training_thread:
        return
    line, after = calling_line(), _position(file)
    size = after
    if after is not None and type(file) is io.BytesIO:
        size = after - (before or 0)
    session.tape.append((SAVED, begun, ended, {"line": line, "cpu_ns": cpu_ns, "bytes": size}))
    if session.window is not None:
        session.window.mark("torch.save", begun, ended, line)


def _position(file: Any) -> int | None:
    """The bytes of a file that is there under this path, or before the place in memory that is
    written to. Of any other file None: to ask it would run the job's code."""
    kind = type(file)
    if kind is io.BytesIO:
        return int(file.tell())
    if kind is not str and not issubclass(kind, PurePath):
        return None
    try:
        return os.stat(file).st_size
    except (OSError, ValueError):
        return None


def evaluated(session: Session, begun: int, ended: int, *, is_noted: bool) -> None:
    """A module was told to evaluate."""
    session.tape.append((EVALUATED, begun, ended, calling_line() if is_noted else None))


def collected(session: Session, begun: int, ended: int, *, is_asked: bool) -> None:
    # Any allocation may come to this, one of our own too: nothing is waited for here.
    is_long = ended - begun >= NOTED_NS
    line = calling_line() if is_long and is_asked else None
    session.tape.append((COLLECTED, begun, ended, line))
    if is_long and session.window is not None:
        session.window.mark("gc.collect()" if is_asked else "Python GC", begun, ended, line)


def _hook_evaluations(guard: Guard, torch: Any, session: Session) -> None:
    num_noted = 0

    def on_eval(_: Any, begun: int, ended: int) -> None:
        nonlocal num_noted
        is_noted = num_noted < MOST_NOTED
        num_noted += is_noted
        evaluated(session, begun, ended, is_noted=is_noted)

    replace(guard, torch.nn.Module, "eval", timed(guard, on_eval))


def _hook_collections(guard: Guard, session: Session) -> None:
    begun, is_asked = 0, False

    def on_collection(phase: str, info: dict[str, int]) -> None:
        # The youngest objects are collected within microseconds, and many times a second.
        if info["generation"] > 0:
            watched(phase)

    def timed_collection(phase: str) -> None:
        nonlocal begun, is_asked
        now = time.perf_counter_ns()
        if phase == "start":
            begun, is_asked = now, not is_due()
        elif begun:
            collected(session, begun, now, is_asked=is_asked)

    def is_due() -> bool:
        """Whether there are objects enough for Python to begin a collection by itself."""
        threshold = gc.get_threshold()[0]
        return gc.isenabled() and 0 < threshold < gc.get_count()[0]

    watched = guard.watch(timed_collection)
    gc.callbacks.append(on_collection)
    guard.at_end(lambda: gc.callbacks.remove(on_collection))
