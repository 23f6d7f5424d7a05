"""Functions of torch replaced by ones that tell us when they run, and restored when the capture ends."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from typing import Any

from stepscope.capture.guard import Guard

Told = Callable[[Any, int, int], None]
"""Called with the first argument, the beginning and the end in nanoseconds."""


def replace(guard: Guard, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """`owner.name` becomes make(what it was), until the capture ends."""
    held = owner.__dict__[name] if isinstance(owner, type) else getattr(owner, name)
    was = held.__func__ if isinstance(held, staticmethod) else held
    made = make(was)
    now = staticmethod(made) if isinstance(held, staticmethod) else made
    setattr(owner, name, now)

    def undo() -> None:
        # Somebody may have put theirs over ours: then it stays, and calls ours, which does nothing any more.
        if (owner.__dict__.get(name) if isinstance(owner, type) else getattr(owner, name, None)) is now:
            setattr(owner, name, held)

    guard.at_end(undo)


def timed(guard: Guard, told: Told) -> Callable[[Any], Any]:
    """Makes a function tell when it ran, also when it raised. The compiler sees only the function itself."""
    is_compiling = compiling_asker()
    watched = guard.watch(told)
    clock = time.perf_counter_ns

    def make(was: Any) -> Any:
        @functools.wraps(was)
        def now(*args: Any, **kwargs: Any) -> Any:
            if not guard.is_on or is_compiling():
                return was(*args, **kwargs)
            begun = clock()
            try:
                return was(*args, **kwargs)
            finally:
                watched(args[0] if args else None, begun, clock())

        return now

    return make


def compiling_asker() -> Callable[[], bool]:
    """Says whether the compiler is reading this very code: then it must see nothing of ours."""
    compiler = getattr(sys.modules["torch"], "compiler", None)
    # The narrower question where it can be asked: it costs half.
    asked = getattr(compiler, "is_dynamo_compiling", getattr(compiler, "is_compiling", None))
    return asked if callable(asked) else lambda: False
