"""The probes that every step runs: of a loader's next(), of backward() and an optimizer's step().

Each records on the session's tape when it ran, and does no more where no step is due to be looked
at. After the model has run, the caches are the model's: what counts is how much memory is touched
(so constants and functions are held in closures, not looked up in modules), not how long it would
take in a loop of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

from stepscope.capture import clocks
from stepscope.capture.guard import Guard
from stepscope.capture.hooks.probes import Probe
from stepscope.capture.out_of_memory import note_first_passes
from stepscope.capture.session import Session
from stepscope.capture.tape import PASSED, STEPPED, WAITED

MAX_FRAMES = 40
"""Frames between an optimizer's step and another one around it."""


def next_probe(session: Session, guard: Guard) -> Probe:
    """Probe of `__next__` of a loader's iterator."""
    clock, own_clock, record, free_steps, kind = (
        clocks.perf_counter_ns,
        clocks.thread_time_ns,
        session.tape.append,
        session.free_steps,
        WAITED,
    )
    look, raised = guard.watch(session.took_batch), sys.exc_info

    def enter(batches: Any) -> tuple[Any, int, int | None]:
        # The thread's own clock is a system call, 5 us a step: asked where a step is looked at
        # anyway. What workers take it does not know.
        is_own = not free_steps and getattr(batches, "_num_workers", 1) == 0
        return batches, clock(), own_clock() if is_own else None

    def leave(token: tuple[Any, int, int | None] | None, batch: Any) -> None:
        if token is None:
            return
        batches, begun, own_begun = token
        own_ns: int | None = -1 if own_begun is None else own_clock() - own_begun
        if batch is None and raised()[0] is StopIteration:
            own_ns = None
        record((kind, begun, clock(), own_ns))
        if not free_steps:
            look(batches, batch)

    return Probe(enter, leave)


def backward_probe(session: Session, guard: Guard) -> Probe:
    """Probe of backward passes."""
    clock, record, free_steps, kind = (
        clocks.perf_counter_ns,
        session.tape.append,
        session.free_steps,
        PASSED,
    )
    look, before = guard.watch(session.after_backward), guard.watch(session.before_backward)
    losses = session.losses

    def enter(roots: Any = None, *_: Any) -> tuple[int, Any]:
        if not free_steps:
            before()
        return clock(), roots

    def leave(token: tuple[int, Any] | None, _: Any) -> None:
        if token is None:
            return
        begun, roots = token
        ended = clock()
        record((kind, begun, ended, 0))
        if ended >= losses.due_ns:
            losses.take(roots, ended)
        if not free_steps:
            look(ended)

    return Probe(enter, leave)


class _Looked(NamedTuple):
    optimizer: Any
    begun: int


def step_probe(session: Session, guard: Guard, abandon: Callable[[], None]) -> Probe:
    """Probe of an optimizer's step. One that needs no look is recorded on the tape and no more.
    `abandon` is called after steps where the capture has ended and a recording has not."""
    clock, record, take, name, kind = (
        clocks.perf_counter_ns,
        session.tape.append,
        session.free_steps.pop,
        id,
        STEPPED,
    )
    begin, end = guard.watch(_begin), guard.watch(session.stepped)

    def enter(*args: Any) -> tuple[int, int] | _Looked | None:
        try:
            take()
        except IndexError:
            pass
        else:
            return clock(), name(args[0])
        # Left before the step runs: what it raises must not seem to come of this.
        looked: _Looked | None = begin(session, args, sys._getframe(1))  # noqa: SLF001 - the only way to it
        return looked

    def leave(token: tuple[int, int] | _Looked | None, _: Any) -> None:
        if type(token) is tuple:
            record((kind, token[0], clock(), token[1]))
            return
        if token is not None:
            end(token[0], token[1], clock())
        if not guard.is_on and session.window is not None:
            abandon()

    return Probe(enter, leave)


def _begin(session: Session, args: Any, frame: FrameType) -> _Looked | None:
    if not args:
        return None
    if _is_inside_itself(args[0], frame):
        session.nests = True
        return None
    if session.writer is None:
        note_first_passes(session)
    return _Looked(args[0], clocks.perf_counter_ns())


def _is_inside_itself(optimizer: Any, frame: FrameType) -> bool:
    """Whether a step of the same optimizer is around this one: of a class on top of another. Asked
    of the frames, for a note of ours would stay where a signal's handler cuts a step short."""
    around = frame.f_back
    for _ in range(MAX_FRAMES):
        if around is None:
            return False
        if around.f_code is frame.f_code:
            args = around.f_locals.get("args")
            if isinstance(args, tuple) and args and args[0] is optimizer:
                return True
        around = around.f_back
    return False
