"""Everything that was recorded beside traces, each by its own reader. A file that cannot be read
costs nothing but itself."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

from stepscope.core.recordings.auxiliary import Auxiliary
from stepscope.errors import StepscopeError
from stepscope.readers.formats import AUXILIARY, BY_NAME
from stepscope.readers.source import Source


def read_auxiliary(sources: Sequence[Source]) -> Auxiliary | None:
    """The recordings of these sources, by kind; None where there are none."""
    if not sources:
        return None
    by_format: dict[str, list[Source]] = {}
    for source in sources:
        assert source.format is not None, source.label
        by_format.setdefault(source.format, []).append(source)
    reports: dict[str, list[Any]] = {kind: [] for kind in AUXILIARY}
    notes: list[str] = []
    for name, mine in by_format.items():
        found, problems = _read(name, mine)
        reports[BY_NAME[name].kind] += found
        notes += problems
    whole = {
        kind: reduce(lambda one, two: one.joined(two), found)
        for kind, found in reports.items()
        if found
    }
    return Auxiliary(**whole, notes=tuple(notes))


def _read(name: str, sources: Sequence[Source]) -> tuple[list[Any], list[str]]:
    """All of one format together; where that fails, one after the other, so that a damaged file
    costs itself alone."""
    reader = BY_NAME[name].reader()
    try:
        return [reader.read(sources)], []
    except StepscopeError as problem:
        if len(sources) == 1:
            return [], [str(problem)]
    found, problems = [], []
    for source in sources:
        try:
            found.append(reader.read([source]))
        except StepscopeError as problem:
            problems.append(str(problem))
    return found, problems
