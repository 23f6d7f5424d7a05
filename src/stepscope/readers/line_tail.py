"""Lines of JSON at the ends of a file that somebody is writing: a bounded piece of it, whole lines alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

TAIL_BYTES = 65_536
"""Most that one look reads of one file: some 900 steps, or 100 samples."""
MOST_BYTES = 4 << 20
"""Of a file that is read whole."""


class Lines:
    """The lines that a file has gained since it was last read, the latest of them where they are many."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at: int | None = None

    def new(self) -> list[Any]:
        try:
            with self._path.open("rb") as file:
                end = file.seek(0, 2)
                start = max(0, end - TAIL_BYTES)
                is_cut = start > 0
                if self._at is not None and start <= self._at <= end:
                    start, is_cut = self._at, False
                file.seek(start)
                data = file.read(TAIL_BYTES)
        except OSError:
            return []
        whole = data.rfind(b"\n") + 1
        self._at = start + whole
        lines = data[:whole].splitlines()
        # A piece that begins inside a line begins with half of one.
        return list(_values(lines[1:] if is_cut else lines))


def read_object(path: Path) -> dict[str, Any]:
    """A small JSON file; empty where it is none."""
    try:
        with path.open("rb") as file:
            value = json.loads(file.read(MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The last objects of a file of lines."""
    return [value for value in Lines(path).new() if isinstance(value, dict)]


def head_lines(path: Path) -> list[Any]:
    try:
        with path.open("rb") as file:
            data = file.read(TAIL_BYTES)
    except OSError:
        return []
    return list(_values(data[: data.rfind(b"\n") + 1].splitlines()))


def _values(lines: Sequence[bytes]) -> Iterator[Any]:
    for line in lines:
        try:
            yield json.loads(line)
        except (ValueError, RecursionError):
            continue
