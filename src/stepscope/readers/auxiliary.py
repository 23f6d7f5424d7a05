"""Everything that other tools recorded, each by its own reader. A file that cannot be read
costs nothing but itself."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from msgspec.structs import replace

from stepscope.core.recordings.auxiliary import Auxiliary
from stepscope.core.recordings.compiler import CompilerReport
from stepscope.core.recordings.kernels import KernelReport
from stepscope.core.recordings.system import SystemReport
from stepscope.errors import StepscopeError
from stepscope.readers.format import AUXILIARY, COMPILER, KERNELS, SYSTEM, Source
from stepscope.readers.formats import BY_NAME

REPORTS: dict[str, Any] = {
    KERNELS: KernelReport,
    COMPILER: CompilerReport,
    SYSTEM: SystemReport,
}
"""Reports of readers that make a recording of each file."""


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
        read, problems = _read(name, mine)
        reports[BY_NAME[name].kind] += read
        notes += problems
    joined = {
        kind: replace(of_kind[0], recordings=tuple(chain(*(each.recordings for each in of_kind))))
        for kind, of_kind in reports.items()
        if of_kind
    }
    auxiliary = Auxiliary(**joined, notes=tuple(notes))
    for name in by_format:
        complete = BY_NAME[name].reader().complete
        if complete is not None:
            auxiliary = complete(auxiliary)
    return auxiliary


def _read(name: str, sources: Sequence[Source]) -> tuple[list[Any], list[str]]:
    """All of one format together; where that fails, one after the other, so that a damaged file
    costs itself alone."""
    try:
        return [read_report(name, sources)], []
    except StepscopeError as problem:
        if len(sources) == 1:
            return [], [str(problem)]
    reports, problems = [], []
    for source in sources:
        try:
            reports.append(read_report(name, [source]))
        except StepscopeError as problem:
            problems.append(str(problem))
    return reports, problems


def read_report(name: str, sources: Sequence[Source]) -> Any:
    """All of one format: put together by its reader, or a recording each."""
    reader = BY_NAME[name].reader()
    if reader.read_together is not None:
        return reader.read_together(sources)
    assert reader.read_file is not None, name
    return REPORTS[BY_NAME[name].kind](recordings=tuple(map(reader.read_file, sources)))
