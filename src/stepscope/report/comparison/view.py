"""A comparison: the answer, then where the difference lies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stepscope.core.experiments.comparison import Comparison
from stepscope.core.gate import Gate
from stepscope.report.comparison.page import QUIET, ComparisonPage, Line, chosen, page_of
from stepscope.report.comparison.page import Table as PageTable
from stepscope.report.comparison.words import letter
from stepscope.report.document.blocks import (
    Block,
    Cell,
    Column,
    Document,
    Headline,
    Prose,
    Section,
    Table,
    Tone,
    Warn,
    more,
    notes,
)
from stepscope.report.gate import gate_section
from stepscope.report.units import percent

NAMES = 44
LONG = 60
"""Cells of a name, and of work with what became of it."""
OPEN = ("runs", "part", "changed", "held")
"""Tables that are shown where the others open with a click."""
SHORTENED = ("knobs", "held")
"""Tables of which every column gives way."""


def comparisons_document(comparisons: Sequence[Comparison], gate: Gate | None = None) -> Document:
    """Each against the first; with what became of a gate, where there is one."""
    pages = (page_of(comparison, letter(at)) for at, comparison in enumerate(comparisons, start=1))
    first = () if gate is None else (gate_section(gate),)
    return (*first, *(block for page in pages for block in _blocks(page)))


def _blocks(page: ComparisonPage) -> Iterator[Block]:
    yield from map(Warn, page.warnings)
    yield Headline(text=page.headline)
    for fact in page.facts:
        yield Prose(fact, "quiet")
    for table in page.tables:
        if not table.is_quiet:
            yield _section(table)
    quiet = [table.title.removeprefix("By ").lower() for table in page.tables if table.is_quiet]
    if quiet:
        yield Prose(
            f"By {', '.join(quiet)}: nothing changed by {percent(QUIET)} of the step.", "quiet"
        )
    yield from notes(page.notes, aside="what this rests on, and what could not be judged")


def _section(table: PageTable) -> Section:
    shown, left_out = chosen(table)
    titles, rows = table.columns, tuple(map(_row, shown))
    if table.name == "changed":
        # Side by side, the names of work and what became of it would both be cut.
        titles = (*titles[:-2], f"{titles[-2]}, and {titles[-1]} it changed")
        rows = tuple(
            (*row[:-2], Cell(work.text, work.tone, note=how.text))
            for row in rows
            for work, how in [row[-2:]]
        )
    most = NAMES if len(table.wide) == 1 else LONG
    is_named = range(len(titles)) if table.name in SHORTENED else table.wide
    columns = tuple(
        Column(
            title=title,
            right=at in table.right,
            fit="shorten" if at in is_named else "whole",
            most=most,
        )
        for at, title in enumerate(titles)
    )
    rest = more(left_out, "line", ", in --format json and html")
    return Section(
        title=table.title,
        aside=table.aside,
        blocks=(Table(columns=columns, rows=rows), *rest),
        is_folded=table.name not in OPEN,
    )


def _row(line: Line) -> tuple[Cell, ...]:
    tone: Tone = "quiet" if line.is_rest else ""
    return tuple(Cell(text, "strong" if line.is_total else tone) for text in line.cells)
