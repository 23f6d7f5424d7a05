"""A run beside its plan: which part was off, and what the plan says after it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from stepscope.plan.contract.plan_calibration import PlanComparisonContract
from stepscope.plan.report.words import gib, seconds
from stepscope.report.document.blocks import (
    Block,
    Column,
    Facts,
    Headline,
    Items,
    Section,
    Table,
    as_document,
    numbers,
)
from stepscope.report.words import percent

WORDS = {
    "compute": "compute", "comms": "collectives", "bubble": "bubble, waiting for other ranks",
    "host": "waiting for the host", "input": "waiting for input",
    "copies": "copies to and from the host", "other": "other idle time, the profiler's own",
}  # fmt: skip
NOT_KNOWN = "-"


@as_document
def learned_document(comparison: PlanComparisonContract, kept: Path | None) -> Iterator[Block]:
    where = f"{comparison.layout} of {comparison.model} on {comparison.cluster}"
    yield Headline(
        command="stepscope compare",
        text=_headline(comparison),
        about=(f"{comparison.plan}, {where}, beside {comparison.run}.",),
    )
    yield _parts(comparison)
    yield _memory(comparison)
    yield _factors(comparison, kept)
    if comparison.notes:
        yield Section(title="Notes", blocks=(Items(comparison.notes),))


def _headline(comparison: PlanComparisonContract) -> str:
    planned, measured = comparison.planned_step_s, comparison.measured_step_s
    figures = f"{seconds(planned)} planned, {seconds(measured)} measured"
    if comparison.other_work is not None:
        return f"This is not a run of the plan: {comparison.other_work}. A step: {figures}."
    if comparison.most_off is None:
        return f"The plan was right within 3 %: {figures}."
    share = abs(comparison.ratio - 1)
    # Measured over planned: beyond twice, a factor says more.
    off = percent(share) if share < 1 else f"{comparison.ratio:.1f} times"
    sign = "longer" if comparison.ratio > 1 else "shorter"
    part = next(part for part in comparison.parts if part.part == comparison.most_off)
    difference = abs(part.difference_s or 0.0)
    return (
        f"A step is {off} {sign} than planned: {figures}. Most of it is "
        f"{WORDS.get(part.part, part.part)}, {seconds(difference)}."
    )


def _parts(comparison: PlanComparisonContract) -> Section:
    rows = []
    for part in comparison.parts:
        planned = NOT_KNOWN if part.planned_s is None else seconds(part.planned_s)
        measured = NOT_KNOWN if part.measured_s is None else _signed(part.measured_s)
        off = NOT_KNOWN if part.difference_s is None else _signed(part.difference_s, plus="+")
        rows.append((WORDS.get(part.part, part.part), planned, measured, off))
    rows.append(
        (
            "step",
            seconds(comparison.planned_step_s),
            seconds(comparison.measured_step_s),
            _signed(comparison.measured_step_s - comparison.planned_step_s, plus="+"),
        )
    )
    columns = (Column(), *numbers("planned", "measured", "off by"))
    return Section(title="Where it differs", blocks=(Table(columns=columns, rows=tuple(rows)),))


def _signed(value: float, plus: str = "") -> str:
    return f"{'-' if value < 0 else plus}{seconds(abs(value))}"


def _memory(comparison: PlanComparisonContract) -> Section:
    memory = comparison.memory
    measured = "not recorded" if memory.measured_bytes is None else gib(memory.measured_bytes)
    facts = (("planned", gib(memory.planned_bytes)), ("reserved", measured))
    return Section(title="Memory of one device", aside="the allocator's", blocks=(Facts(facts),))


def _factors(comparison: PlanComparisonContract, kept: Path | None) -> Section:
    factors = comparison.factors
    values = {
        "compute": factors.compute,
        "collectives": factors.comms,
        "launches": factors.host,
        "memory": factors.memory,
    }
    facts = [
        (name, "not known" if value is None else f"{value:.2f} times as planned")
        for name, value in values.items()
    ]
    if comparison.recalibrated_step_s is not None:
        facts.append(("the same layout then", seconds(comparison.recalibrated_step_s)))
    aside = "--recalibrate FILE keeps it for `plan --calibration`"
    if kept is not None:
        aside = f"kept in {kept}: plan --calibration {kept}"
    return Section(title="The plan recalibrated", aside=aside, blocks=(Facts(tuple(facts)),))
