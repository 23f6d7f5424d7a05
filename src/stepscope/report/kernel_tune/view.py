"""A kernel's tuning: the answer for each case, the times, and what was wrong or failed."""

from __future__ import annotations

from collections.abc import Iterator

from stepscope.core.experiments.kernel_tuning import FAILED, WRONG, CaseResult, KernelTuning
from stepscope.report.document.blocks import (
    Block,
    Column,
    Document,
    Headline,
    Items,
    Prose,
    Section,
    Table,
    notes,
    numbers,
)
from stepscope.report.kernel_tune.words import (
    fault_words,
    head_words,
    how_words,
    order,
    row_words,
    settings_words,
    verdict_words,
)
from stepscope.report.units import plural

MAX_FAULTS = 16


def kernel_tuning_document(found: KernelTuning) -> Document:
    return tuple(_blocks(found))


def _blocks(found: KernelTuning) -> Iterator[Block]:
    yield Headline(command="stepscope tune kernel", text=head_words(found))
    yield Prose(how_words(found), "quiet")
    for result in found.cases:
        yield Prose(verdict_words(found, result), "strong")
    if len(found.cases) > 1 and found.overall is not None:
        setting = settings_words(found.tryings[found.overall])
        yield Prose(f"One setting for all of them: {setting}.", "strong")
    for result in found.cases:
        yield from _case_sections(found, result)
    aside = "never timed: the comparison that is farthest off"
    yield from _fault_sections(found, WRONG, "Wrong", aside)
    yield from _fault_sections(found, FAILED, "Failed", "raised, died or took too long")
    yield from notes(found.notes)


def _case_sections(found: KernelTuning, result: CaseResult) -> Iterator[Section]:
    rows = tuple(row_words(found, result, at) for at in order(result))
    if rows:
        columns = (
            *numbers("time", "spread", "speedup", "of floor"),
            Column(title="settings", fit="shorten"),
        )
        num = sum(timed is not None for timed in result.times)
        aside = f"{plural(num, 'configuration')} timed"
        yield Section(
            title=result.case.words, aside=aside, blocks=(Table(columns=columns, rows=rows),)
        )


def _fault_sections(found: KernelTuning, outcome: str, title: str, aside: str) -> Iterator[Section]:
    faults = [
        f"{settings_words(each)}: {fault_words(each)}"
        for each in found.tryings
        if each.outcome == outcome
    ]
    if faults:
        num = len(faults) - MAX_FAULTS
        rest = (Prose(f"and {num} more", "quiet"),) if num > 0 else ()
        yield Section(title=title, aside=aside, blocks=(Items(tuple(faults[:MAX_FAULTS])), *rest))
