"""Hooks on what stops a step: saves and evaluations. Collections of garbage are in garbage.py."""

from __future__ import annotations

import io
import os
from pathlib import PurePath
from typing import Any, NamedTuple

from stepscope.capture import clocks
from stepscope.capture.caller import calling_line
from stepscope.capture.guard import Guard
from stepscope.capture.hooks.changes import EVALUATIONS, watched_function
from stepscope.capture.hooks.libraries import Libraries
from stepscope.capture.hooks.probes import Probe, timed, watch
from stepscope.capture.session import Session
from stepscope.capture.tape import EVALUATED, SAVED

MAX_NOTED = 200
"""Evaluations whose line is looked up: a teacher's may be told so in every step."""


class _Save(NamedTuple):
    file: Any
    before: int | None
    begun: int
    cpu_ns: int


def hook_stalls(guard: Guard, session: Session, libraries: Libraries) -> None:
    watch(guard, watched_function("torch.save"), _save_probe(guard, session))
    probe = _evaluation_probe(guard, session)
    watch(guard, watched_function("torch.nn.Module.eval"), probe)
    libraries.add(EVALUATIONS, probe)


def _save_probe(guard: Guard, session: Session) -> Probe:
    """Probe with the time on a core, and the size of what was written."""
    watched, sized = guard.watch(saved), guard.watch(_position)
    clock, cpu_clock = clocks.perf_counter_ns, clocks.thread_time_ns

    def enter(_: Any = None, file: Any = None, *__: Any) -> _Save:
        return _Save(file, sized(file), clock(), cpu_clock())

    def leave(save: _Save | None, _: Any) -> None:
        if save is not None:
            ended, cpu_ns = clock(), cpu_clock() - save.cpu_ns
            watched(session, save.begun, ended, cpu_ns=cpu_ns, file=save.file, before=save.before)

    return Probe(enter, leave)


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


def _evaluation_probe(guard: Guard, session: Session) -> Probe:
    num_noted = 0

    def on_eval(_: Any, begun: int, ended: int) -> None:
        nonlocal num_noted
        is_noted = num_noted < MAX_NOTED
        num_noted += is_noted
        evaluated(session, begun, ended, is_noted=is_noted)

    return timed(guard, on_eval)
