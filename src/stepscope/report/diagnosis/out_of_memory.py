"""Memory that ran out, in words: who asked, what held the memory, the cheapest ways out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stepscope.core.memory import OutOfMemoryReport, WayOut
from stepscope.core.numbers import size_words
from stepscope.report.diagnosis.memory import kind_words
from stepscope.report.document.blocks import Block, Column, Items, Prose, Section, Table, numbers
from stepscope.report.words import percent, plural

TITLE = "Out of memory"
MAX_REPORTS = 4
MAX_KINDS = 5
ENOUGH = {True: "yes", False: "no", None: "not known"}


def out_of_memory_sections(reports: Sequence[OutOfMemoryReport]) -> Iterator[Section]:
    """Nothing where it never did. What says most of it comes first."""
    ordered = by_detail(reports)
    for report in ordered[:MAX_REPORTS]:
        yield Section(title=TITLE, aside=report.label, blocks=tuple(_blocks(report)))
    if len(ordered) > MAX_REPORTS:
        more = plural(len(ordered) - MAX_REPORTS, "more time")
        yield Section(title=TITLE, blocks=(Prose(f"It ran out {more}; the JSON has all."),))


def by_detail(reports: Sequence[OutOfMemoryReport]) -> list[OutOfMemoryReport]:
    return sorted(reports, key=lambda report: (report.kinds is None, report.where is None))


def _blocks(report: OutOfMemoryReport) -> Iterator[Block]:
    yield Prose(failure_words(report), "strong")
    words = held_words(report)
    if words:
        yield Prose(words)
    if report.holders:
        yield Items(report.holders)
    yield Table(
        columns=(
            Column(title="ways out, the cheapest first", fit="wrap"),
            *numbers("frees"),
            Column(title="enough"),
            Column(title="costs", fit="wrap"),
        ),
        rows=tuple(way_cells(way) for way in report.ways),
    )


def way_cells(way: WayOut) -> tuple[str, str, str, str]:
    cost = f"{way.cost} (changes numerics)" if way.changes_numerics else way.cost
    frees = "" if way.frees_bytes is None else size_words(way.frees_bytes)
    return way.action, frees, ENOUGH[way.is_enough], cost


def failure_words(report: OutOfMemoryReport) -> str:
    """`3.30 GB could not be had in backward, by NllLossBackward0: 2.46 GB too little.`"""
    asked = "Memory" if report.asked_bytes is None else size_words(report.asked_bytes)
    words = f"{asked} could not be had"
    if report.rank is not None:
        words += f" on rank {report.rank}"
    if report.phase is not None:
        words += f" in {report.phase}"
    if report.step is not None:
        words += f", after {plural(report.step, 'step')}"
    if report.where is not None:
        words += f", by {report.where}"
    missing = report.missing_bytes
    if missing is None:
        return f"{words}."
    if missing == 0:
        words += ": enough was free, in pieces that were too small."
    else:
        words += f": {size_words(missing)} too little."
    short = report.short_bytes
    if short is not None and short > missing:
        words += f" The whole step takes about {size_words(short)} more than there is."
    return words


def held_words(report: OutOfMemoryReport) -> str:
    """`Tensors held 11.3 of 13.2 GB: activations 62 %, optimizer state 9 %, ...`."""
    if report.held_bytes is None:
        return ""
    words = f"Tensors held {size_words(report.held_bytes)}"
    if report.capacity_bytes is not None:
        words += f" of {size_words(report.capacity_bytes)}"
    kinds = sorted((report.kinds or {}).items(), key=lambda item: -item[1])[:MAX_KINDS]
    shown = ", ".join(
        f"{kind_words(kind)} {percent(size / max(report.held_bytes, 1))}"
        for kind, size in kinds
        if size
    )
    words += f": {shown}" if shown else ""
    for size, what in (
        (report.cache_bytes, "in the allocator's cache"),
        (report.free_bytes, "free"),
        (report.others_bytes or None, "of other processes"),
    ):
        if size is not None:
            words += f"; {size_words(size)} {what}"
    return f"{words}."
