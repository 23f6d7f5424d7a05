"""The hooks that every step runs: a loader's next(), backward() and an optimizer's step().

Each is one function that does its few additions itself. After the model has run, the caches are the model's: what counts is how
much code is touched, not how long it would take in a loop of its own.
"""

from __future__ import annotations

import functools
import time
import traceback
import weakref
from collections.abc import Callable
from typing import Any

from stepscope.capture.guard import Guard
from stepscope.capture.patches import compiling_asker
from stepscope.capture.session import LEAST_INSTEAD, TIMED, Session

# The counters are the session's own, and these functions are a part of it that stands apart for speed.
# ruff: noqa: SLF001


def hooked_next(session: Session) -> Callable[[Any], Any]:
    """Around `__next__` of a loader's iterator, which must not live on for our sake: its workers would."""
    clock, ref = time.perf_counter_ns, weakref.ref

    def make(was: Any) -> Any:
        @functools.wraps(was)
        def now(self: Any) -> Any:
            begun = clock()
            try:
                return was(self)
            finally:
                session._wait_ns += clock() - begun
                session._num_batches += 1
                session.loader = ref(self)

        return now

    return make


def hooked_backward(session: Session, guard: Guard) -> Callable[[Any], Any]:
    """Around backward passes."""
    clock, is_compiling = time.perf_counter_ns, compiling_asker()

    def make(was: Any) -> Any:
        @functools.wraps(was)
        def now(*args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return was(*args, **kwargs)
            begun = clock()
            try:
                return was(*args, **kwargs)
            finally:
                ended = clock()
                # A pass inside another is a recomputed part's own: the one around it has this time too.
                if guard.is_on and not session.is_in_backward():
                    session._backward_ns += ended - begun
                    session._num_backwards += 1
                    session._num_instead += 1
                    if session._ends_after_backward or session._num_instead > LEAST_INSTEAD:
                        guard.watch(session.after_backward)(ended)

        return now

    return make


def hooked_step(session: Session, guard: Guard) -> Callable[[Any], Any]:
    """Around an optimizer's step. One like those before it, with nothing due, is a row and no more."""
    clock, is_compiling = time.perf_counter_ns, compiling_asker()

    def make(was: Any) -> Any:
        @functools.wraps(was)
        def now(*args: Any, **kwargs: Any) -> Any:
            if not args or is_compiling() or args[0] is session.stepping:
                # Or a step inside a step: of a class on top of another.
                return was(*args, **kwargs)
            begun, session.stepping = clock(), args[0]
            try:
                return was(*args, **kwargs)
            finally:
                ended, s = clock(), session
                s.stepping = None
                step = s.step
                if step < s._quiet_until and id(args[0]) == s._quiet_optimizer:
                    row = [step, ended, ended - s._last_ns, None, s._wait_ns, s._num_batches, s._backward_ns, s._num_backwards]
                    s.rows.append([*row, s._optimizer_ns + ended - begun, s._save_ns, s._gc_ns, TIMED])
                    s.step, s._last_ns = step + 1, ended
                    s._wait_ns = s._num_batches = s._backward_ns = s._num_backwards = s._num_instead = 0
                    s._optimizer_ns = s._save_ns = s._gc_ns = 0
                elif guard.is_on:
                    try:
                        s.stepped(args[0], begun, ended)
                    except Exception:  # noqa: BLE001 - a part of the boundary, without one more call in what every step runs
                        guard.off(traceback.format_exc())
                if not guard.is_on and s.window is not None:
                    s.abandon()

        return now

    return make
