"""The compiled library, where it was built: what is walked event by event, as C code.

Each source stands beside the Python code whose place it takes (readers/kineto/scan.c,
analyses/host/nesting.c, replay/simulate.c); both give the same, and tests compare them. It uses no
part of Python's API: ctypes calls it, and Python's lock is not held meanwhile.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import c_int, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

LIBRARY = Path(__file__).with_name("libstepscope.so")
PURE = "STEPSCOPE_PURE"
"""Set to anything but 0, this environment variable keeps to the Python code."""
ABI_VERSION = 5


def library() -> ctypes.CDLL | None:
    """The library; None where it is not there, or not wanted."""
    return None if is_unwanted() else load()


def in_use() -> str:
    """Name of the code that is used, and why, in words."""
    if is_unwanted():
        return f"pure Python ({PURE} is set)"
    if not LIBRARY.exists():
        return "pure Python (no compiler at install)"
    return "compiled" if load() is not None else "pure Python (the compiled one does not load here)"


def is_unwanted() -> bool:
    return os.environ.get(PURE, "0") not in ("", "0")


@cache
def load(path: Path = LIBRARY) -> ctypes.CDLL | None:
    """The library; None where it was not built, or is not for this machine or this version."""
    try:
        loaded = ctypes.CDLL(str(path))
        if loaded.stepscope_abi() != ABI_VERSION:
            return None
    except (OSError, AttributeError):
        return None
    return loaded


def has(loaded: ctypes.CDLL, name: str) -> bool:
    """Whether the library has this function: one that was built before may lack the newest."""
    return hasattr(loaded, name)


def call(loaded: ctypes.CDLL, name: str, *arguments: int | NDArray[Any]) -> bool:
    """Whether the function took these numbers and arrays, the arrays whole and as its source
    declares them."""
    function = getattr(loaded, name)
    function.restype = c_int
    function.argtypes = tuple(c_int64 if isinstance(a, int) else c_void_p for a in arguments)
    status: int = function(*(a if isinstance(a, int) else _address(a) for a in arguments))
    return status == 0


def _address(array: NDArray[Any]) -> int:
    assert array.flags.c_contiguous
    return array.ctypes.data
