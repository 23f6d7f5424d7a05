"""Keeps Kineto's log lines about our own recordings off the job's stderr."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
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
