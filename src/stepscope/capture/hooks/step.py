"""The hooks that every step runs: a loader's next(), backward() and an optimizer's step().

Each tells the session's tape when it ran, and does no more where no step is due to be looked at. After the model has run, the
caches are the model's: what counts is how much code is touched, not how long it would take in a loop of its own.
"""

from __future__ import annotations

import functools
import time
import traceback
import weakref
from collections.abc import Callable
from typing import Any

from stepscope.capture.guard import Guard
from stepscope.capture.hooks.patches import compiling_asker
from stepscope.capture.session import PASSED, STEPPED, WAITED, Session

# The counters are the session's own, and these functions are a part of it that stands apart for speed.
# ruff: noqa: SLF001


def hooked_next(session: Session, guard: Guard) -> Callable[[Any], Any]:
    """Around `__next__` of a loader's iterator, which must not live on for our sake: its workers would."""
    clock, ref, tell = time.perf_counter_ns, weakref.ref, session.tape.append

    def make(was: Any) -> Any:
        @functools.wraps(was)
        def now(self: Any) -> Any:
            begun, is_over = clock(), 0
            try:
                return was(self)
            except StopIteration:
                is_over = 1
                raise
            finally:
                tell((WAITED, begun, clock(), is_over))
                known = session.loader
                if known is None or known() is not self:
                    session.loader = ref(self)
                if session.window is not None:
                    guard.watch(session.in_window)()

        return now

    return make


def hooked_backward(session: Session, guard: Guard) -> Callable[[Any], Any]:
    """Around backward passes."""
    clock, is_compiling, tell = time.perf_counter_ns, compiling_asker(), session.tape.append

    def make(was: Any) -> Any:
        @functools.wraps(was)
        def now(*args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return was(*args, **kwargs)
            begun = clock()
            try:
                return was(*args, **kwargs)
            finally:
                ended, left = clock(), session._passes_left
                tell((PASSED, begun, ended, 0))
                if left > 0:
                    session._passes_left = left - 1
                else:
                    guard.watch(session.after_backward)(ended)

        return now

    return make


def hooked_step(session: Session, guard: Guard) -> Callable[[Any], Any]:
    """Around an optimizer's step. One like those before it, with nothing due, is told to the tape and no more."""
    clock, is_compiling, tell, name = time.perf_counter_ns, compiling_asker(), session.tape.append, id
    stepping: set[int] = set()
    """The optimizers whose steps run just now; several where several threads train."""

    def make(was: Any) -> Any:
        @functools.wraps(was)
        def now(*args: Any, **kwargs: Any) -> Any:
            if is_compiling() or not args or (who := name(args[0])) in stepping:
                # Or a step inside a step: of a class on top of another.
                return was(*args, **kwargs)
            stepping.add(who)
            begun = clock()
            try:
                return was(*args, **kwargs)
            finally:
                ended, left = clock(), session._left
                stepping.discard(who)
                if left > 0 and not session._hurry:
                    session._left = left - 1
                    tell((STEPPED, begun, ended, who))
                else:
                    if guard.is_on:
                        try:
                            session.stepped(args[0], begun, ended)
                        except Exception:  # noqa: BLE001 - a part of the boundary, without one more call in what every step runs
                            guard.off(traceback.format_exc())
                    if not guard.is_on and session.window is not None:
                        session.abandon()

        return now

    return make
