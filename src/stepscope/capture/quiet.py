"""Keeps Kineto's log lines about our own recordings off the job's stderr."""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

LEVEL = "_ZN9libkineto6Logger14severityLevel_E"
"""libkineto::Logger::severityLevel_, an atomic int: lines under this severity are not printed."""
SILENT = 99
"""Above every severity. Kineto's own default prints ERROR (4) and USDT (5), which is a line at each
start and each stop of a recording."""


@contextmanager
def quiet_kineto(torch: Any) -> Iterator[None]:
    """While this lasts, Kineto prints nothing.

    Only Kineto's own threshold is moved, and moved back: what else is printed meanwhile is printed,
    and a profiler that the job starts itself prints what it always did. KINETO_LOG_LEVEL would be
    read at the first recording alone, and would stay. A user who has set that variable wants to
    see the lines.
    """
    level = _level(str(getattr(torch, "__file__", "")))
    if level is None or os.environ.get("KINETO_LOG_LEVEL"):
        yield
        return
    before, level.value = level.value, SILENT
    try:
        yield
    finally:
        # Kineto sets its level itself when it is used first; that value is the one to keep.
        if level.value == SILENT:
            level.value = before


@functools.lru_cache(maxsize=1)
def _level(torch_file: str) -> ctypes.c_int | None:
    """Kineto's threshold; None where this torch has none, or hides it."""
    for name in ("libtorch_cpu.so", "libtorch_cpu.dylib"):
        path = Path(torch_file).parent / "lib" / name
        try:
            # The library that torch has loaded, never a second one.
            library = ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
            return ctypes.c_int.in_dll(library, LEVEL)
        except (OSError, ValueError, AttributeError):
            continue
    return None


CYCLE_WARNING = "Warning: Profiler clears events"
"""torch 2.6 to 2.12 say so of every profiler with a schedule, ours too."""


@contextmanager
def without_cycle_warning() -> Iterator[None]:
    """While this lasts, that warning is not given. One filter is added and removed: the job may set others meanwhile."""
    warnings.filterwarnings("ignore", message=CYCLE_WARNING, category=UserWarning)
    added = warnings.filters[0]
    try:
        yield
    finally:
        with suppress(ValueError):
            warnings.filters.remove(added)  # type: ignore[attr-defined]


WRONG_THREAD = b"ERROR: External init callback must run in same thread"
"""What Kineto prints past its logger where the first recording is not opened by the thread that imported torch. It speaks of
recordings on demand, which are not ours."""


@contextmanager
def without_thread_line() -> Iterator[None]:
    """While this lasts, the stream `stderr` of C goes to memory; all but that line is printed afterwards, in its order.

    The file descriptor stays what it is: Python, C++ and other processes print as ever.
    """
    if threading.current_thread() is threading.main_thread() or not sys.platform.startswith("linux"):
        yield
        return
    libc = ctypes.CDLL(None)
    libc.fdopen.restype = ctypes.c_void_p
    kept = os.memfd_create("stepscope")
    stream = ctypes.c_void_p.in_dll(libc, "stderr")
    instead, before = libc.fdopen(os.dup(kept), b"w"), stream.value
    stream.value = instead
    try:
        yield
    finally:
        stream.value = before
        libc.fclose(ctypes.c_void_p(instead))
        os.lseek(kept, 0, os.SEEK_SET)
        with os.fdopen(kept, "rb") as file:
            rest = b"".join(line for line in file if not line.startswith(WRONG_THREAD))
        if rest:
            os.write(2, rest)
