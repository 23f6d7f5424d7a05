"""Many ranks in a few lines: those that are alike stand on one."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from msgspec import Struct

from stepscope.core.comms import CommsFacts, RankComms
from stepscope.core.facts import RankFacts
from stepscope.core.numbers import number_ranges
from stepscope.report.document.blocks import Block, Column, Section, Table, numbers
from stepscope.report.words import ms, percent

MAX_LINES = 12
ALIKE = 0.02
"""Ranks are alike when their steps differ by less than this share and the shares of their steps by
less than this."""


class RankLine(Struct, frozen=True, kw_only=True):
    """What one rank's line says; None where it was not measured."""

    ranks: tuple[int, ...]
    step_ns: float | None
    busy: float | None
    comms: float | None
    idle: float | None
    waits: float | None = None
    """Share of the step spent waiting, part of `comms`."""
    late_ns: float | None = None

    @property
    def shares(self) -> tuple[float | None, ...]:
        return (self.busy, self.comms, self.idle)

    @property
    def traits(self) -> tuple[float | None, ...]:
        """What ranks alike have in common: shares of the step, lateness as one too."""
        late = None if self.late_ns is None or not self.step_ns else self.late_ns / self.step_ns
        return (*self.shares, self.waits, late)


def ranks_section(
    ranks: Sequence[RankFacts], comms: CommsFacts | None, below: Sequence[Block]
) -> Section:
    """A line for each group of ranks that are alike, and what is said below."""
    of_rank = {} if comms is None else {rank_comms.rank: rank_comms for rank_comms in comms.ranks}
    lines = [
        _measure(rank, of_rank.get(rank.rank)) for rank in sorted(ranks, key=lambda rank: rank.rank)
    ]
    matched = any(line.late_ns is not None for line in lines)
    tolerance = ALIKE
    groups = _group(lines, tolerance)
    while len(groups) > MAX_LINES and tolerance < 1e6:
        tolerance *= 2
        groups = _group(lines, tolerance)
    is_merged = len(groups) < len(lines) and tolerance < 1
    titles = ("exposed", "idle", "waits", "late") if matched else ("exposed comms", "idle")
    work = "busy" if any(rank.steps.where == "device" for rank in ranks) else "operators"
    table = Table(
        columns=(Column(title="rank", fit="shorten"), *numbers("step", work, *titles)),
        rows=tuple(_row(_merge(group), matched) for group in groups),
    )
    return Section(
        title="Ranks",
        aside=f"those alike within {tolerance * 100:g} % on one line" if is_merged else "",
        blocks=(table, *below),
        is_folded=True,
    )


def _measure(rank: RankFacts, comms: RankComms | None) -> RankLine:
    total, parts = rank.steps.step_interval_ns, rank.typical_parts_ns
    busy = rank.steps.typical(rank.busy_ns)
    if rank.steps.where == "host":
        busy = None if parts is None else parts["compute"]
    if not total:
        return RankLine(ranks=(rank.rank,), step_ns=None, busy=None, comms=None, idle=None)
    return RankLine(
        ranks=(rank.rank,),
        step_ns=total,
        busy=None if busy is None else busy / total,
        comms=None if parts is None else (parts["comms_wait"] + parts["comms_transfer"]) / total,
        idle=None
        if parts is None
        else sum(ns for part, ns in parts.items() if part.startswith("idle_")) / total,
        waits=None if comms is None or comms.wait_ns is None else comms.wait_ns / total,
        late_ns=None if comms is None else comms.late_ns,
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
    if (
        a.step_ns is not None
        and b.step_ns is not None
        and abs(a.step_ns - b.step_ns) > tolerance * a.step_ns
    ):
        return False
    return all(
        (x is None and y is None) or (x is not None and y is not None and abs(x - y) <= tolerance)
        for x, y in zip(a.traits, b.traits, strict=True)
    )


def _merge(group: Sequence[RankLine]) -> RankLine:
    def middle(values: Sequence[float | None]) -> float | None:
        measured = [value for value in values if value is not None]
        return median(measured) if measured else None

    return RankLine(
        ranks=tuple(rank for line in group for rank in line.ranks),
        step_ns=middle([line.step_ns for line in group]),
        busy=middle([line.busy for line in group]),
        comms=middle([line.comms for line in group]),
        idle=middle([line.idle for line in group]),
        waits=middle([line.waits for line in group]),
        late_ns=middle([line.late_ns for line in group]),
    )


def _row(line: RankLine, matched: bool) -> tuple[str, ...]:
    many = f" alike ({len(line.ranks)})" if len(line.ranks) > 1 else ""
    step = ms(line.step_ns) if line.step_ns is not None else "not measured"
    waits = "-" if line.waits is None or line.step_ns is None else ms(line.waits * line.step_ns)
    late = "-"
    if line.late_ns is not None:
        late = ms(line.late_ns) if line.late_ns >= 0 else f"-{ms(-line.late_ns)}"
    shares = (percent(share) if share is not None else "-" for share in line.shares)
    return (number_ranges(line.ranks) + many, step, *shares, *((waits, late) if matched else ()))
