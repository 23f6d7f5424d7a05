"""Where the ranks stand: the answer, then each rank's state and place."""

from __future__ import annotations

import os
from collections.abc import Iterator

from stepscope.core.numbers import number_ranges
from stepscope.core.recordings.stacks import Comparison, Frame, Standing
from stepscope.report.document.blocks import (
    Block,
    Cell,
    Column,
    Document,
    Facts,
    Headline,
    Prose,
    Section,
    Table,
)

MAX_PLACES = 12
COLUMNS = (
    Column(title="rank", fit="shorten"),
    Column(title="pid", fit="shorten"),
    Column(title="state"),
    Column(title="in"),
)


def stacks_document(comparison: Comparison) -> Document:
    groups: dict[tuple[object, ...], list[Standing]] = {}
    for rank in sorted(comparison.ranks, key=lambda rank: not rank.is_elsewhere):
        alike = (rank.is_elsewhere, rank.state, rank.where, rank.inside, rank.problem)
        groups.setdefault(alike, []).append(rank)
    shown = list(groups.values())[:MAX_PLACES]
    blocks: list[Block] = [Table(columns=COLUMNS, rows=tuple(map(_row, shown)))]
    if len(groups) > len(shown):
        blocks.append(Prose(f"and {len(groups) - len(shown)} more places", "quiet"))
    blocks.append(Facts(tuple(place for group in shown for place in _places(group))))
    return (
        Headline(command="stepscope attach", text=comparison.summary),
        Section(title="Where they stand", blocks=tuple(blocks)),
    )


def _row(group: list[Standing]) -> tuple[str | Cell, ...]:
    one = group[0]
    ranks = [rank.rank for rank in group if rank.rank is not None]
    many = f" alike ({len(group)})" if len(group) > 1 else ""
    where = one.collective or one.inside or (one.where[0].name if one.where else "no Python code")
    name = (number_ranges(ranks) if ranks else "-") + many
    told = where if one.problem is None else "not seen"
    return (Cell(name, "strong" if one.is_elsewhere else ""), str(one.pid), one.state, told)


def _places(group: list[Standing]) -> Iterator[tuple[str, str]]:
    one = group[0]
    ranks = [rank.rank for rank in group if rank.rank is not None]
    who = f"rank {number_ranges(ranks)}" if ranks else f"process {one.pid}"
    if one.problem is not None:
        yield who, one.problem
        return
    places = [*([one.inside] if one.inside else []), *map(_frame_words, one.where)]
    first, *others = places or ["no Python code"]
    yield who, first
    for place in others:
        yield "", f"from {place}"


def _frame_words(frame: Frame) -> str:
    return f"{frame.name} ({os.path.basename(frame.file)}:{frame.line})"
