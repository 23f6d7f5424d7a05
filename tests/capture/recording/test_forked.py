"""A C function that is made to return at once, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

from stepscope.capture.recording.forked import loaded_library
from tests.installed import needs

PATCH = """
import ctypes
from stepscope.capture.recording.forked import return_at_once
getpid = ctypes.CDLL(None)["getpid"]
before = getpid()
return_at_once(getpid)
print(before > 0, getpid(), ctypes.CDLL(None)["getppid"]() > 0)
"""


@needs("x86-64 or ARM")
def test_a_function_returns_at_once_and_its_neighbours_work() -> None:
    done = subprocess.run([sys.executable, "-c", PATCH], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "0", "True"]


def test_a_loaded_library_is_found_by_name() -> None:
    path = loaded_library("libc.so")
    assert path is not None
    assert path.startswith("/")
    assert loaded_library("libnothing-of-the-kind.so") is None
