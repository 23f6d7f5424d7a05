"""Functions of torch replaced by ones that report when they run,
and restored when the capture ends."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from typing import Any

from stepscope.capture.guard import Guard

OnCall = Callable[[Any, int, int], None]
"""Called with the first argument, the beginning and the end in nanoseconds."""


def replace(guard: Guard, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """`owner.name` becomes make(what it was), until the capture ends."""
    attribute = owner.__dict__[name] if isinstance(owner, type) else getattr(owner, name)
    original = attribute.__func__ if isinstance(attribute, staticmethod) else attribute
    wrapped = make(original)
    replacement = staticmethod(wrapped) if isinstance(attribute, staticmethod) else wrapped
    setattr(owner, name, replacement)

    def undo() -> None:
        # Somebody may have put theirs over ours: then it stays, and calls ours, which does nothing
        # any more.
        if (
            owner.__dict__.get(name) if isinstance(owner, type) else getattr(owner, name, None)
        ) is replacement:
            setattr(owner, name, attribute)

    guard.at_end(undo)


def replace_function(guard: Guard, module: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Under its own name too, in the module that it comes from: else it can no longer be pickled,
    and no process pool could be given it."""
    original = getattr(module, name)
    replace(guard, module, name, make)
    home, wrapper = sys.modules.get(original.__module__), getattr(module, name)
    if home is not module and getattr(home, name, None) is original:
        replace(guard, home, name, lambda _: wrapper)


def timed(guard: Guard, on_call: OnCall) -> Callable[[Any], Any]:
    """Makes a function report when it ran, also when it raised.

    The compiler sees only the function itself.
    """
    is_compiling = compiling_asker()
    watched = guard.watch(on_call)
    clock = time.perf_counter_ns

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if not guard.is_on or is_compiling():
                return original(*args, **kwargs)
            begun = clock()
            try:
                return original(*args, **kwargs)
            finally:
                watched(args[0] if args else None, begun, clock())

        return wrapper

    return make


def compiling_asker() -> Callable[[], bool]:
    """Says whether the compiler is reading this very code: then it must see nothing of ours."""
    compiler = getattr(sys.modules["torch"], "compiler", None)
    # The narrower question where it can be asked: it costs half.
    is_compiling = getattr(compiler, "is_dynamo_compiling", getattr(compiler, "is_compiling", None))
    return is_compiling if callable(is_compiling) else lambda: False
