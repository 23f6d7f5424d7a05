"""Lines of the training code that made its loaders and its optimizers: where advice about one of
them is to be written."""

from __future__ import annotations

import weakref
from typing import Any

from stepscope.capture.caller import calling_line

MAX_NOTED = 1_000
"""Objects: a job that makes more makes one for each batch, and their line is the first one's."""


class MadeAt:
    """Objects that are made, each with its line, held weakly."""

    def __init__(self) -> None:
        self._lines: dict[int, tuple[weakref.ref[Any], str]] = {}

    def note(self, made: Any = None, *_: Any) -> None:
        """Called as its `__init__` begins; of a class on top of another, once for each."""
        line = calling_line() if len(self._lines) < MAX_NOTED else None
        if line is not None:
            self._lines[id(made)] = weakref.ref(made), line

    def line_of(self, made: Any) -> str | None:
        """None for one that was made before the capture began, and for others not seen."""
        of, line = self._lines.get(id(made), (None, None))
        return line if of is not None and of() is made else None
