"""A plan's memory beside what a recording measured: in the terminal, as JSON, on the page."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from stepscope.report.names import clean
from stepscope.report.plan.words import gib

if TYPE_CHECKING:
    from stepscope.analyses.run.memory_plan import PlanRow
    from stepscope.report.plan.account import Plan
    from stepscope.report.sheet import Sheet

TITLE = "Beside the recording"
PART_WORDS = {"activations": "activations, logits", "others": "others", "peak": "all tensors, peak", "reserved": "reserved"}
"""What is not here is called as it is."""
UNKNOWN = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanBeside:
    """One layout's memory and what was recorded, part by part."""

    layout: str | None
    """None where none fits: there is nothing planned then."""
    recordings: tuple[str, ...]
    """Files; strangers' text."""
    rows: tuple[PlanRow, ...]
    notes: tuple[str, ...] = ()
    """Where plan and recording count the same bytes under different names, and what could not be read."""


def draw_beside(sheet: Sheet, beside: PlanBeside) -> None:
    from stepscope.report.sheet import Column

    sheet.heading(TITLE, _aside(beside))
    columns = (
        Column(),
        *(Column(title=title, right=True) for title in ("planned", "recorded", "at the peak", "planned/recorded")),
    )
    sheet.table(columns, [[_word(row), *_sizes(row), _ratio(row)] for row in beside.rows])
    for note in beside.notes:
        sheet.prose(note, indent=4, lead="  -")


def beside_contract(beside: PlanBeside) -> dict[str, Any]:
    """As plain values, for JSON."""
    return {
        "layout": beside.layout,
        "recordings": list(beside.recordings),
        "rows": [asdict(row) for row in beside.rows],
        "notes": list(beside.notes),
    }


def beside_html(plan: Plan, beside: PlanBeside) -> str:
    """The plan's page, with one account more."""
    from stepscope.report.plan.explain import Part
    from stepscope.report.plan.html import drawn, page_of

    page = page_of(plan)
    parts = []
    for row in beside.rows:
        planned, most, at_peak = _sizes(row)
        words = f"planned; recorded {most} at most, {at_peak} at the peak"
        parts.append(Part(word=_word(row), value=planned, share=_ratio(row), formula=words))
    parts += [Part(word="", value="", share="", formula=clean(note)) for note in beside.notes]
    page["explained"] = [*page["explained"], (TITLE, clean(_aside(beside)), parts)]
    return drawn(page)


def _aside(beside: PlanBeside) -> str:
    files = ", ".join(beside.recordings)
    return f"{beside.layout or 'nothing planned, as no layout fits'}; {files}"


def _word(row: PlanRow) -> str:
    return PART_WORDS.get(row.part, row.part)


def _sizes(row: PlanRow) -> tuple[str, str, str]:
    planned, most, at_peak = (
        UNKNOWN if size is None else gib(size) for size in (row.planned_bytes, row.most_bytes, row.at_peak_bytes)
    )
    return planned, most, at_peak


def _ratio(row: PlanRow) -> str:
    return UNKNOWN if row.ratio is None else f"{row.ratio:.2f}x"
