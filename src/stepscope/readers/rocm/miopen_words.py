"""MIOpen's databases in words: what the report shows of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from stepscope.core.find_db import DIRECTIONS, FindDb, Searched, Solver
from stepscope.core.recording import Recording, Table

FORMAT = "miopen-find-db"
MAX_ROWS = 64
FAR = 1.5
"""A solver that takes so much longer than the fastest is far from it."""


@dataclass(slots=True)
class Left:
    """What was not read of one file."""

    odd_lines: int = 0
    odd_solvers: int = 0
    untimed: int = 0
    empty: int = 0
    repeated: int = 0
    beyond: int = 0
    notes: list[str] = field(default_factory=list)

    def words(self, path: str) -> Iterator[str]:
        yield from self.notes
        told = (
            (self.odd_lines, "line(s) that are no convolution were left out"),
            (self.odd_solvers, "solver(s) cut off or not understood were left out"),
            (self.untimed, "solver(s) whose time is not above zero, or no number, were left out"),
            (self.empty, "convolution(s) with no solver left were left out"),
            (self.repeated, "convolution(s) told again were left out: the first stands, as with MIOpen"),
            (self.beyond, "line(s) beyond what is kept were left out"),
        )
        yield from (f"{path}: {count:,} {what}" for count, what in told if count)


def recording_of(files: Sequence[FindDb], left: Sequence[Left]) -> Recording:
    searched = [each for file in files for each in file.searched]
    return Recording(
        format=FORMAT,
        paths=tuple(file.path for file in files),
        lines=tuple(_lines(files, searched)),
        tables=(_table(searched),),
        notes=tuple(note for file, one in zip(files, left, strict=True) for note in one.words(file.path)),
    )


def _lines(files: Sequence[FindDb], searched: Sequence[Searched]) -> Iterator[tuple[str, str]]:
    by_direction = Counter(each.problem.direction for each in searched)
    parts = ", ".join(f"{by_direction[one]:,} {words}" for one, words in DIRECTIONS.items() if by_direction[one])
    yield "convolutions", f"{len(searched):,}: {parts}"
    devices = Counter(f"{file.device}, {file.num_units} compute units" for file in files if file.device is not None)
    if devices:
        yield "device", "; ".join(devices)
    if any(file.is_system for file in files):
        yield "whose", "it came with MIOpen: AMD's own times, of many models and not of one job"
    yield "types", _counted(each.problem.dtype for each in searched)
    yield "layouts", _counted(each.problem.layout for each in searched)
    yield "fastest by", _counted(each.best.algorithm for each in searched)
    naive = [each for each in searched if each.best.is_naive]
    generic = [each for each in searched if each.is_generic and not each.best.is_naive]
    yield "nothing better", f"than the naive kernel for {len(naive):,}; than a kernel for any size for {len(generic):,} more"
    yield from _workspace(searched)
    yield from _layouts(searched)


def _workspace(searched: Sequence[Searched]) -> Iterator[tuple[str, str]]:
    """What memory the fastest want, and what a job that gives none gets."""
    wanting = [each for each in searched if each.best.workspace_bytes]
    if not wanting:
        yield "workspace", "the fastest of each needs none"
        return
    most = max(wanting, key=lambda each: each.best.workspace_bytes)
    without = [each for each in wanting if _is_far(each.best_without_workspace, each)]
    yield "workspace", f"the fastest of {len(wanting):,} need some, up to {_mb(most.best.workspace_bytes)} ({most.problem.words})"
    yield "without it", f"{len(without):,} of these would take {FAR} times as long or more, or have no solver at all"


def _is_far(solver: Solver | None, each: Searched) -> bool:
    return solver is None or solver.time_ms >= FAR * each.best.time_ms


def _layouts(searched: Sequence[Searched]) -> Iterator[tuple[str, str]]:
    """Where the same convolution was timed in two layouts."""
    by_sizes: dict[object, dict[str, Searched]] = {}
    for each in searched:
        by_sizes.setdefault(each.problem.sizes, {})[each.problem.layout] = each
    last = {"NHWC": "NCHW", "NDHWC": "NCDHW"}
    pairs = [
        (layouts[one].best.time_ms, layouts[two].best.time_ms)
        for layouts in by_sizes.values()
        for one, two in last.items()
        if one in layouts and two in layouts
    ]
    if pairs:
        faster = sum(two >= FAR * one for one, two in pairs)
        slower = sum(one >= FAR * two for one, two in pairs)
        words = f"{faster:,} take {FAR} times as long or more without it, {slower:,} with it"
        yield "channels_last", f"{len(pairs):,} convolutions were timed with and without it: {words}"


def _table(searched: Sequence[Searched]) -> Table:
    rows = []
    for each in sorted(searched, key=lambda one: -one.best.time_ms)[:MAX_ROWS]:
        free = each.best_without_workspace
        rows.append(
            (
                each.problem.label,
                f"{each.best.time_ms:,.3f}",
                f"{each.best.workspace_bytes / 1e6:,.1f}",
                "none" if free is None else f"{free.time_ms / each.best.time_ms:.1f} x",
                each.best.name,
            )
        )
    columns = ("convolution", "ms", "MB", "without", "fastest solver")
    title = "the longest, by their fastest solver: its time, its workspace, and how much longer the fastest without one takes"
    return Table(title=title, columns=columns, rows=tuple(rows), right=(1, 2, 3))


def _counted(words: Iterator[str]) -> str:
    counts = Counter(words).most_common(8)
    return ", ".join(f"{count:,} {word}" for word, count in counts)


def _mb(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
