"""Lines of JSON at the ends of a file that somebody is writing: a bounded piece of it, whole lines
alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stepscope.protocol.untrusted import open_regular, parse_json_lines, read_json_object
from stepscope.readers.run_folder.values import sound_object

TAIL_BYTES = 65_536
"""Most that one look reads of one file: some 900 steps, or 100 samples."""
MAX_BYTES = 4 << 20
"""Bytes of a file that is read whole, at most."""


class Lines:
    """The lines that a file has gained since it was last read, the latest of them where they are
    many."""

    def __init__(self, path: Path, max_bytes: int = TAIL_BYTES) -> None:
        self._path, self._max_bytes = path, max_bytes
        self._offset: int | None = None

    def new(self) -> list[Any]:
        return list(parse_json_lines(self.new_data()))

    def new_data(self) -> bytes:
        """The same as bytes, whole lines of them."""
        try:
            with open_regular(self._path) as file:
                end = file.seek(0, 2)
                start = max(0, end - self._max_bytes)
                is_cut = start > 0
                if self._offset is not None and start <= self._offset <= end:
                    start, is_cut = self._offset, False
                file.seek(start)
                data = file.read(self._max_bytes)
        except OSError:
            return b""
        end = data.rfind(b"\n") + 1
        self._offset = start + end
        # A piece that begins inside a line begins with half of one.
        begin = data.find(b"\n") + 1 if is_cut else 0
        return data[begin:end]


def read_object(path: Path) -> dict[str, Any]:
    """A small JSON file of a run, each value as values.py has it; empty where it is none."""
    return sound_object(read_json_object(path, MAX_BYTES))[0]


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The last objects of a file of lines."""
    return sound_objects(Lines(path).new())


def sound_objects(values: list[Any]) -> list[dict[str, Any]]:
    return [sound_object(value)[0] for value in values if isinstance(value, dict)]


def head_lines(path: Path) -> list[Any]:
    try:
        with open_regular(path) as file:
            data = file.read(TAIL_BYTES)
    except OSError:
        return []
    return list(parse_json_lines(data[: data.rfind(b"\n") + 1]))
