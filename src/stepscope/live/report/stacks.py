"""Where the ranks stand: the answer, then each rank's state and source location."""

from __future__ import annotations

import os
from collections.abc import Iterator

from stepscope.core.numbers import number_ranges
from stepscope.core.recordings.nccl import Hang
from stepscope.live.shapes.triage import Comparison, Frame, Standing
from stepscope.report.document.blocks import (
    Action,
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


def dumps_document(hang: Hang, dumps: str, problem: str) -> Document:
    """What the dumps show, where the processes themselves cannot be looked into."""
    return (
        Headline(command="stepscope attach", text=hang.summary),
        _dumps_section(hang, dumps),
        Prose(f"The stacks were not looked at: {problem}", "quiet"),
    )


def _dumps_section(hang: Hang, dumps: str) -> Section:
    lines = [Prose(detail, "quiet") for detail in hang.details]
    return Section(
        title="What the flight recorder shows",
        aside=dumps,
        blocks=(Prose(hang.summary), *lines, Action(hang.action)),
    )


def stacks_document(comparison: Comparison, hang: Hang | None = None, dumps: str = "") -> Document:
    """Where the ranks stand; with what their flight recorders' dumps show, where there are any."""
    groups: dict[tuple[object, ...], list[Standing]] = {}
    for rank in sorted(comparison.ranks, key=lambda rank: not rank.is_elsewhere):
        alike = (rank.is_elsewhere, rank.state, rank.where, rank.inside, rank.problem)
        groups.setdefault(alike, []).append(rank)
    shown = list(groups.values())[:MAX_PLACES]
    blocks: list[Block] = [Table(columns=COLUMNS, rows=tuple(map(_row, shown)))]
    if len(groups) > len(shown):
        blocks.append(Prose(f"and {len(groups) - len(shown)} more source locations", "quiet"))
    blocks.append(Facts(tuple(fact for group in shown for fact in _locations(group))))
    of_dumps: list[Block] = []
    if hang is not None:
        of_dumps.append(_dumps_section(hang, dumps))
    elif dumps:
        of_dumps.append(Prose(f"Flight recorder: {dumps}.", "quiet"))
    return (
        Headline(command="stepscope attach", text=comparison.summary),
        *of_dumps,
        Section(title="Where they stand", blocks=tuple(blocks)),
    )


def _row(group: list[Standing]) -> tuple[str | Cell, ...]:
    first = group[0]
    ranks = [rank.rank for rank in group if rank.rank is not None]
    many = f" alike ({len(group)})" if len(group) > 1 else ""
    where = (
        first.collective
        or first.inside
        or (first.where[0].name if first.where else "no Python code")
    )
    name = (number_ranges(ranks) if ranks else "-") + many
    shown = where if first.problem is None else "not seen"
    return (Cell(name, "strong" if first.is_elsewhere else ""), str(first.pid), first.state, shown)


def _locations(group: list[Standing]) -> Iterator[tuple[str, str]]:
    first_rank = group[0]
    ranks = [rank.rank for rank in group if rank.rank is not None]
    who = f"rank {number_ranges(ranks)}" if ranks else f"process {first_rank.pid}"
    if first_rank.problem is not None:
        yield who, first_rank.problem
        return
    locations = [
        *([first_rank.inside] if first_rank.inside else []),
        *map(_frame_words, first_rank.where),
    ]
    first, *others = locations or ["no Python code"]
    yield who, first
    for location in others:
        yield "", f"from {location}"


def _frame_words(frame: Frame) -> str:
    return f"{frame.name} ({os.path.basename(frame.file)}:{frame.line})"
