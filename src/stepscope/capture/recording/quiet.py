"""Keeps what the profiler says about our own recordings off the job's stderr."""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stepscope.capture.modes import without_modes

LEVEL = "_ZN9libkineto6Logger14severityLevel_E"
"""libkineto::Logger::severityLevel_, an atomic int: lines under this severity are not printed."""
SILENT = 99
"""Level above every severity. Kineto's own default prints ERROR (4) and USDT (5), which is a line
at each start and each stop of a recording."""


WARNERS = (
    ("torch.profiler.profiler", "_warn_once"),
    ("torch.profiler.profiler", "warn"),
    ("torch.autograd.profiler", "warn"),
)
"""The profiler's own ways to warn, by module. Some versions warn at every first recording."""


@contextmanager
def quiet_kineto(torch: Any) -> Iterator[None]:
    """While this lasts, neither Kineto nor the profiler in front of it says anything, and what the
    profiler runs as operators is seen by nobody.

    Nothing is redirected: what else is printed meanwhile is printed, and a profiler that the job
    starts itself says what it always did.
    """
    with without_modes(), _quiet_warnings(), _quiet_lines(torch):
        yield


@contextmanager
def _quiet_warnings() -> Iterator[None]:
    """Python's filters are left alone: to change them makes the job's own warnings come again."""
    warners = [(sys.modules.get(module), name) for module, name in WARNERS]
    warners = [(module, name) for module, name in warners if hasattr(module, name)]
    before = [(module, name, getattr(module, name)) for module, name in warners]
    for module, name, _ in before:
        setattr(module, name, _say_nothing)
    try:
        yield
    finally:
        for module, name, warner in before:
            setattr(module, name, warner)


def _say_nothing(*_: object, **__: object) -> None:
    pass


@contextmanager
def _quiet_lines(torch: Any) -> Iterator[None]:
    """Moves Kineto's threshold, and moves it back. KINETO_LOG_LEVEL would be read at the first
    recording alone, and would stay. A user who has set that variable wants to see the lines."""
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


WRONG_THREAD = b"ERROR: External init callback must run in same thread"
"""What Kineto prints past its logger where the first recording is not opened by the thread that
imported torch. It speaks of recordings on demand, which are not ours."""


@contextmanager
def without_thread_line() -> Iterator[None]:
    """While this lasts, the stream `stderr` of C goes to memory; all but that line is printed
    afterwards, in its order.

    The file descriptor stays what it is: Python, C++ and other processes print as ever.
    """
    is_main = threading.get_ident() == threading.main_thread().ident
    if is_main or not sys.platform.startswith("linux"):
        yield
        return
    libc = ctypes.CDLL(None)
    libc.fdopen.restype = ctypes.c_void_p
    memory_file = os.memfd_create("stepscope")
    stream = ctypes.c_void_p.in_dll(libc, "stderr")
    memory_stream, before = libc.fdopen(os.dup(memory_file), b"w"), stream.value
    stream.value = memory_stream
    try:
        yield
    finally:
        stream.value = before
        libc.fclose(ctypes.c_void_p(memory_stream))
        os.lseek(memory_file, 0, os.SEEK_SET)
        with os.fdopen(memory_file, "rb") as file:
            rest = b"".join(line for line in file if not line.startswith(WRONG_THREAD))
        if rest:
            os.write(2, rest)
