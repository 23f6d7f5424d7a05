"""A comparison: the answer, then where the difference lies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stepscope.core.experiments.comparison import Comparison
from stepscope.core.gate import Gate
from stepscope.report.comparison.page import QUIET, ComparisonPage, page_of
from stepscope.report.comparison.words import letter
from stepscope.report.document.blocks import Block, Document, Headline, Prose, Warn, notes
from stepscope.report.gate import gate_section
from stepscope.report.words import percent


def comparisons_document(comparisons: Sequence[Comparison], gate: Gate | None = None) -> Document:
    """Each against the first; with what became of a gate, where there is one."""
    pages = (
        page_of(comparison, letter(index)) for index, comparison in enumerate(comparisons, start=1)
    )
    first = () if gate is None else (gate_section(gate),)
    return (*first, *(block for page in pages for block in _blocks(page)))


def _blocks(page: ComparisonPage) -> Iterator[Block]:
    yield from map(Warn, page.warnings)
    yield Headline(text=page.headline)
    for fact in page.facts:
        yield Prose(fact, "quiet")
    quiet = []
    for table in page.tables:
        if table.is_quiet:
            quiet.append(table.section.title.removeprefix("By ").lower())
        else:
            yield table.section
    if quiet:
        yield Prose(
            f"By {', '.join(quiet)}: nothing changed by {percent(QUIET)} of the step.", "quiet"
        )
    yield from notes(page.notes, aside="what this rests on, and what could not be judged")
