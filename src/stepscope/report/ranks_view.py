"""Many ranks in a few lines, in the terminal: those that are alike stand on one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from stepscope.core.facts import RankFacts
from stepscope.core.numbers import number_ranges
from stepscope.report.sheet import Column, Sheet
from stepscope.report.units import ms, percent

MAX_LINES = 12
ALIKE = 0.02
"""Ranks are alike when their steps differ by less than this share and the shares of their steps by less than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLine:
    """What one rank's line says; None where it was not measured."""

    ranks: tuple[int, ...]
    step_ns: float | None
    busy: float | None
    comms: float | None
    idle: float | None

    @property
    def shares(self) -> tuple[float | None, ...]:
        return (self.busy, self.comms, self.idle)


def draw_ranks(sheet: Sheet, ranks: Sequence[RankFacts]) -> None:
    """A line for each group of ranks that are alike."""
    lines = [_measure(rank) for rank in sorted(ranks, key=lambda rank: rank.rank)]
    tolerance = ALIKE
    groups = _group(lines, tolerance)
    while len(groups) > MAX_LINES and tolerance < 1e6:
        tolerance *= 2
        groups = _group(lines, tolerance)
    if len(groups) < len(lines):
        sheet.heading("Ranks", f"those alike within {tolerance * 100:g} % on one line" if tolerance < 1 else "")
    else:
        sheet.heading("Ranks")
    columns = (
        Column(title="rank", shrinks=True),
        Column(title="step", right=True),
        Column(title="busy", right=True),
        Column(title="exposed comms", right=True),
        Column(title="idle", right=True),
    )
    sheet.table(columns, [_row(_merge(group)) for group in groups])


def _measure(rank: RankFacts) -> RankLine:
    total, busy, parts = rank.steps.pitch_ns, rank.steps.typical(rank.busy_ns), rank.typical_parts_ns
    if not total:
        return RankLine(ranks=(rank.rank,), step_ns=None, busy=None, comms=None, idle=None)
    return RankLine(
        ranks=(rank.rank,),
        step_ns=total,
        busy=None if busy is None else busy / total,
        comms=None if parts is None else (parts["comms_wait"] + parts["comms_transfer"]) / total,
        idle=None if parts is None else sum(ns for part, ns in parts.items() if part.startswith("idle_")) / total,
    )


def _group(lines: Sequence[RankLine], tolerance: float) -> list[list[RankLine]]:
    """Each line joins the first group whose first member it is like."""
    groups: list[list[RankLine]] = []
    for line in lines:
        home = next((group for group in groups if _alike(group[0], line, tolerance)), None)
        if home is None:
            groups.append([line])
        else:
            home.append(line)
    return groups


def _alike(a: RankLine, b: RankLine, tolerance: float) -> bool:
    if (a.step_ns is None) != (b.step_ns is None):
        return False
    if a.step_ns is not None and b.step_ns is not None and abs(a.step_ns - b.step_ns) > tolerance * a.step_ns:
        return False
    return all(
        (x is None and y is None) or (x is not None and y is not None and abs(x - y) <= tolerance)
        for x, y in zip(a.shares, b.shares, strict=True)
    )


def _merge(group: Sequence[RankLine]) -> RankLine:
    def middle(values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return median(known) if known else None

    return RankLine(
        ranks=tuple(rank for line in group for rank in line.ranks),
        step_ns=middle([line.step_ns for line in group]),
        busy=middle([line.busy for line in group]),
        comms=middle([line.comms for line in group]),
        idle=middle([line.idle for line in group]),
    )


def _row(line: RankLine) -> tuple[str, ...]:
    many = f" alike ({len(line.ranks)})" if len(line.ranks) > 1 else ""
    step = ms(line.step_ns) if line.step_ns is not None else "not measured"
    return (number_ranges(line.ranks) + many, step, *(percent(share) if share is not None else "-" for share in line.shares))
