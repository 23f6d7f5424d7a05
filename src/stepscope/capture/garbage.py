"""Collections of garbage, made of what hooks/garbage.py notes on the tape."""

from __future__ import annotations

import ast
import gc
import re

from stepscope.capture.tape import NOTED_NS

Phase = tuple[dict[str, int] | None, tuple[int, int, int], str]
"""What the callbacks note beside the time and what begins: what ends, how many objects there were
of each generation, and the innermost frame."""
_FRAME = re.compile(r"<frame at [^,]*, file (?P<file>.+), line (?P<line>\d+), code (?P<name>.+)>")


class Collections:
    """Makes one collection of two entries of the tape."""

    def __init__(self) -> None:
        self._begun: tuple[int, bool, str] | None = None

    def read(
        self, at_ns: int, begins: dict[str, int] | None, about: Phase
    ) -> tuple[int, bool, str | None] | None:
        """When the collection that is over began, whether the job asked for it, and where, if it
        took long; None of an entry that ends none, or one of the youngest objects: those are
        collected within microseconds, and many times a second."""
        ends, counts, frame = about
        if begins is not None:
            self._begun = (at_ns, not _is_due(counts), frame) if begins["generation"] else None
        begun = self._begun
        if ends is None or begun is None:
            return None
        self._begun = None
        is_noted = begun[1] and at_ns - begun[0] >= NOTED_NS
        return begun[0], begun[1], _line(begun[2]) if is_noted else None


def _is_due(counts: tuple[int, int, int]) -> bool:
    """Whether there were objects enough for Python to begin a collection by itself."""
    return gc.isenabled() and 0 < gc.get_threshold()[0] < counts[0]


def _line(frame: str) -> str | None:
    """As a profiler names a frame, of what Python prints of one."""
    match = _FRAME.fullmatch(frame)
    if match is None:
        return None
    return f"{ast.literal_eval(match['file'])}({match['line']}): {match['name']}"
