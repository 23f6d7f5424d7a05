"""What reading costs, counted and never timed: lines of our code that ran, bytes that were read,
steps of SQLite's machine, and the most memory that was held."""

from __future__ import annotations

import io
import re
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import stepscope

PACKAGE = str(Path(stepscope.__file__).parent)


@dataclass
class Count:
    num_lines: int = 0
    """Lines, once for each round of a loop or comprehension."""
    num_read: int = 0
    num_reads: int = 0
    most_held: int = 0


@contextmanager
def counted() -> Iterator[Count]:
    """Counts in this thread and in those that begin meanwhile."""
    count = Count()

    def line(_frame: FrameType, event: str, _arg: Any) -> Any:
        count.num_lines += event == "line"
        return line

    def call(frame: FrameType, _event: str, _arg: Any) -> Any:
        return line if frame.f_code.co_filename.startswith(PACKAGE) else None

    before = sys.gettrace()
    threading.settrace(call)
    sys.settrace(call)
    try:
        yield count
    finally:
        sys.settrace(before)
        threading.settrace(None)


def most_held(read: Callable[[], object]) -> int:
    """Bytes that Python and numpy held at the most."""
    tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        read()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


class CountedPattern:
    """A pattern that adds up how much text it has looked at."""

    def __init__(self, pattern: re.Pattern[Any], work: list[int]) -> None:
        self._pattern, self._work = pattern, work

    def search(self, text: Any, at: int = 0, stop: int = sys.maxsize) -> Any:
        found = self._pattern.search(text, at, stop)
        self._work[0] += (min(len(text), stop) if found is None else found.end()) - at + 1
        return found

    def match(self, text: Any, at: int = 0, stop: int = sys.maxsize) -> Any:
        found = self._pattern.match(text, at, stop)
        self._work[0] += 1 if found is None else found.end() - at + 1
        return found

    def finditer(self, text: Any, at: int = 0) -> Any:
        self._work[0] += len(text) - at
        return self._pattern.finditer(text, at)

    def sub(self, new: Any, text: Any) -> Any:
        self._work[0] += len(text)
        return self._pattern.sub(new, text)


def sized(
    patch: pytest.MonkeyPatch, owner: Any, name: str, counted: list[int], size: Callable[..., int]
) -> None:
    real = getattr(owner, name)

    def wrapped(*args: Any, **more: Any) -> Any:
        counted[0] += size(*args, **more)
        return real(*args, **more)

    patch.setattr(owner, name, wrapped)


class CountedFile(io.BytesIO):
    """A file that counts what is read of it."""

    num_read = num_reads = 0

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        self.num_read += len(data)
        self.num_reads += 1
        return data
