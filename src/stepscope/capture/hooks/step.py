"""The hooks that every step runs: a loader's next(), backward() and an optimizer's step().

Each records on the session's tape when it ran, and does no more where no step is due to be looked
at. After the model has run, the caches are the model's: what counts is how much memory is touched
(so constants and functions are held in closures, not looked up in modules), not how long it would
take in a loop of its own.
"""

from __future__ import annotations

import functools
import time
import traceback
from collections.abc import Callable
from typing import Any

from stepscope.capture.guard import Guard
from stepscope.capture.hooks.patches import compiling_asker
from stepscope.capture.out_of_memory import note_first_passes
from stepscope.capture.session import Session
from stepscope.capture.tape import PASSED, STEPPED, WAITED


def hooked_next(session: Session, guard: Guard) -> Callable[[Any], Any]:
    """Around `__next__` of a loader's iterator."""
    clock, own_clock, record, free_steps, kind = (
        time.perf_counter_ns,
        time.thread_time_ns,
        session.tape.append,
        session.free_steps,
        WAITED,
    )
    look = guard.watch(session.took_batch)

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def wrapper(self: Any) -> Any:
            # The thread's own clock is a system call, 5 us a step: asked where a step is looked at
            # anyway. What workers take it does not know.
            is_own, own_ns = not free_steps and getattr(self, "_num_workers", 1) == 0, -1
            begun, own_begun, is_over = clock(), own_clock() if is_own else 0, False
            batch = None
            try:
                batch = original(self)
                return batch
            except StopIteration:
                is_over = True
                raise
            finally:
                if is_own:
                    own_ns = own_clock() - own_begun
                record((kind, begun, clock(), None if is_over else own_ns))
                if not free_steps:
                    look(self, batch)

        return wrapper

    return make


def hooked_backward(session: Session, guard: Guard) -> Callable[[Any], Any]:
    """Around backward passes."""
    clock, record, free_steps, kind = (
        time.perf_counter_ns,
        session.tape.append,
        session.free_steps,
        PASSED,
    )
    is_compiling, look = compiling_asker(), guard.watch(session.after_backward)
    before, losses, nothing = guard.watch(session.before_backward), session.losses, ()

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return original(*args, **kwargs)
            if not free_steps:
                before()
            begun = clock()
            try:
                return original(*args, **kwargs)
            finally:
                ended = clock()
                record((kind, begun, ended, 0))
                if ended >= losses.due_ns:
                    losses.take(args[0] if args else kwargs.get("tensors", nothing), ended)
                if not free_steps:
                    look(ended)

        return wrapper

    return make


def hooked_step(session: Session, guard: Guard) -> Callable[[Any], Any]:
    """Around an optimizer's step. One that needs no look is recorded on the tape and no more."""
    clock, record, take, name, kind = (
        time.perf_counter_ns,
        session.tape.append,
        session.free_steps.pop,
        id,
        STEPPED,
    )
    is_compiling, look = compiling_asker(), _looked_at(session, guard)

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if is_compiling() or not args:
                return original(*args, **kwargs)
            is_free = True
            try:
                take()
            except IndexError:
                # Left before the step runs: what it raises must not seem to come of this.
                is_free = False
            if not is_free:
                return look(original, args, kwargs)
            begun = clock()
            try:
                return original(*args, **kwargs)
            finally:
                record((kind, begun, clock(), name(args[0])))

        return wrapper

    return make


def _looked_at(session: Session, guard: Guard) -> Callable[[Any, Any, Any], Any]:
    stepping: set[int] = set()
    """The optimizers whose steps run just now; several where several threads train."""
    before_first = guard.watch(note_first_passes)

    def call(original: Any, args: Any, kwargs: Any) -> Any:
        optimizer = args[0]
        if id(optimizer) in stepping:
            session.nests = True
            return original(*args, **kwargs)
        stepping.add(id(optimizer))
        if session.writer is None:
            before_first(session)
        begun = time.perf_counter_ns()
        try:
            return original(*args, **kwargs)
        finally:
            ended = time.perf_counter_ns()
            stepping.discard(id(optimizer))
            if guard.is_on:
                try:
                    session.stepped(optimizer, begun, ended)
                except Exception:  # noqa: BLE001 - a part of the boundary, without one more call in what every step runs
                    guard.off(traceback.format_exc())
            if not guard.is_on and session.window is not None:
                session.abandon()

    return call
