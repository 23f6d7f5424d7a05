"""Collections of garbage, made of what hooks/garbage.py notes on the tape."""

from __future__ import annotations

import gc
from types import CodeType

from stepscope.capture.tape import NOTED_NS

Place = tuple[CodeType | None, int | None]
Phase = tuple[dict[str, int] | None, tuple[int, int, int], Place]
"""What the callbacks note beside the time and what begins: what ends, how many objects there were
of each generation, and code and line of the innermost frame: None of a thread that runs none."""


class Collections:
    """Makes one collection of two entries of the tape."""

    def __init__(self) -> None:
        self._begun: tuple[int, bool, Place] | None = None

    def read(
        self, at_ns: int, begins: dict[str, int] | None, about: Phase
    ) -> tuple[int, bool, str | None] | None:
        """When the collection that is over began, whether the job asked for it, and where, if it
        took long; None of an entry that ends none, or one of the youngest objects: those are
        collected within microseconds, and many times a second."""
        ends, counts, place = about
        if begins is not None:
            self._begun = (at_ns, not _is_due(counts), place) if begins["generation"] else None
        begun = self._begun
        if ends is None or begun is None:
            return None
        self._begun = None
        is_noted = begun[1] and at_ns - begun[0] >= NOTED_NS
        return begun[0], begun[1], _line(*begun[2]) if is_noted else None


def _is_due(counts: tuple[int, int, int]) -> bool:
    """Whether there were objects enough for Python to begin a collection by itself."""
    return gc.isenabled() and 0 < gc.get_threshold()[0] < counts[0]


def _line(code: CodeType | None, line: int | None) -> str | None:
    """Line as a profiler names a frame."""
    return code and f"{code.co_filename}({line}): {code.co_name}"
