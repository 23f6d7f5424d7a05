"""A C function that is made to return at once, in a process of its own."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from stepscope.capture.recording.forked import loaded_library

PATCH = """
import ctypes
from stepscope.capture.recording.forked import return_at_once
getpid = ctypes.CDLL(None)["getpid"]
before = getpid()
return_at_once(getpid)
print(before > 0, getpid(), ctypes.CDLL(None)["getppid"]() > 0)
"""


@pytest.mark.skipif(
    platform.machine() not in {"x86_64", "aarch64"}, reason="its machine code is not known"
)
def test_a_function_returns_at_once_and_its_neighbours_work() -> None:
    done = subprocess.run([sys.executable, "-c", PATCH], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "0", "True"]


def test_a_loaded_library_is_found_by_name() -> None:
    path = loaded_library("libc.so")
    assert path is not None
    assert path.startswith("/")
    assert loaded_library("libnothing-of-the-kind.so") is None
