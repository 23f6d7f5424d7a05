"""Collections of garbage, noted without a line of Python.

Where a signal arrives while Python collects, its handler runs with the first line of Python that
comes. In a callback of the collection what it raises is dropped, and Ctrl-C would be lost. So the
callbacks here are C functions put together: they append to the tape when, of which generation,
and in which line, and everything else is done by who reads the tape.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import operator
from itertools import repeat
from types import SimpleNamespace
from typing import Any

from stepscope.capture import clocks
from stepscope.capture.guard import Guard
from stepscope.capture.tape import COLLECTED, Tape


def hook_collections(guard: Guard, tape: Tape) -> None:
    """Has every collection noted on the tape, where it begins and where it ends."""
    never, phases = SimpleNamespace(f_code=None, f_lineno=None), dict[str, dict[str, int]]()
    api, python = ctypes.PYFUNCTYPE, ctypes.pythonapi
    # Where it is, read as plain attributes: what prints a frame runs the handlers of signals.
    address = api(ctypes.c_size_t)(("PyEval_GetFrame", python))
    frame_at = api(ctypes.py_object, ctypes.c_size_t)(("Py_NewRef", python))
    place = operator.attrgetter("f_code", "f_lineno")
    # A thread may run no frame, and 0 is no address: that of what never comes, kept below.
    addresses = {0: id(never)}
    step = api(ctypes.py_object, *[ctypes.py_object] * 3)(("PyIter_Next", python))
    begins, ends = (functools.partial(phases.pop, name, None) for name in ("start", "stop"))
    about = zip(
        iter(ends, never),
        iter(gc.get_count, never),
        map(place, map(frame_at, map(addresses.get, iter(address, never), iter(address, never)))),
        strict=False,
    )
    entries = zip(
        repeat(COLLECTED), iter(clocks.perf_counter_ns, never), iter(begins, never), about,
        strict=False,
    )  # fmt: skip
    note = functools.partial(step, map(tape.append, entries))
    callbacks: list[Any] = [functools.partial(operator.setitem, phases), note]
    gc.callbacks.extend(callbacks)

    def undo() -> None:
        for callback in callbacks:
            if callback in gc.callbacks:
                gc.callbacks.remove(callback)

    guard.at_end(undo)
