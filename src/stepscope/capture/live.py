"""The last steps and samples of a long run, for who watches it: a file that is begun anew when it
is large.

A run that lasts writes its steps and samples ever more rarely, and a fault must be seen within
seconds on its tenth day too.
"""

from __future__ import annotations

from pathlib import Path

LARGEST_BYTES = 1 << 18
STEPS_A_SECOND = 16.0
"""Steps a second that are written, at most. Of short steps every second, fourth, eighth, ... is:
the same ones on ranks that are about equally fast."""


class LiveFile:
    """Filled and written by the writer's thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: list[str] = []
        self._size_bytes = 0
        self.steps_per_s = 0.0

    def wants(self, step: int) -> bool:
        every = 1
        while every * 2 * STEPS_A_SECOND <= self.steps_per_s:
            every *= 2
        return step % every == 0

    def add(self, line: str) -> None:
        self._lines.append(line)

    def write(self) -> None:
        if not self._lines:
            return
        text, self._lines = "\n".join(self._lines) + "\n", []
        is_full = self._size_bytes + len(text) > LARGEST_BYTES
        with self._path.open("w" if is_full else "a", encoding="utf-8") as file:
            file.write(text)
        self._size_bytes = len(text) + (0 if is_full else self._size_bytes)
