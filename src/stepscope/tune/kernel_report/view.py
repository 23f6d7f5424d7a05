"""A kernel's tuning: the answer for each case, the times, and what was wrong or failed."""

from __future__ import annotations

from collections.abc import Iterator

from stepscope.report.document.blocks import (
    Block,
    Column,
    Headline,
    Items,
    Prose,
    Section,
    Table,
    as_document,
    notes,
    numbers,
)
from stepscope.report.units import plural
from stepscope.tune.kernel_report.words import (
    fault_words,
    head_words,
    how_words,
    order,
    row_words,
    settings_words,
    verdict_words,
)
from stepscope.tune.shapes.kernel_tuning import FAILED, WRONG, CaseResult, KernelTuning

MAX_FAULTS = 16


@as_document
def kernel_tuning_document(tuning: KernelTuning) -> Iterator[Block]:
    yield Headline(command="stepscope tune kernel", text=head_words(tuning))
    yield Prose(how_words(tuning), "quiet")
    for result in tuning.cases:
        yield Prose(verdict_words(tuning, result), "strong")
    if len(tuning.cases) > 1 and tuning.overall is not None:
        setting = settings_words(tuning.tryings[tuning.overall])
        yield Prose(f"One setting for all of them: {setting}.", "strong")
    for result in tuning.cases:
        yield from _case_sections(tuning, result)
    aside = "never timed: the comparison that is farthest off"
    yield from _fault_sections(tuning, WRONG, "Wrong", aside)
    yield from _fault_sections(tuning, FAILED, "Failed", "raised, died or took too long")
    yield from notes(tuning.notes)


def _case_sections(tuning: KernelTuning, result: CaseResult) -> Iterator[Section]:
    rows = tuple(row_words(tuning, result, at) for at in order(result))
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


def _fault_sections(
    tuning: KernelTuning, outcome: str, title: str, aside: str
) -> Iterator[Section]:
    faults = [
        f"{settings_words(each)}: {fault_words(each)}"
        for each in tuning.tryings
        if each.outcome == outcome
    ]
    if faults:
        num = len(faults) - MAX_FAULTS
        rest = (Prose(f"and {num} more", "quiet"),) if num > 0 else ()
        yield Section(title=title, aside=aside, blocks=(Items(tuple(faults[:MAX_FAULTS])), *rest))
