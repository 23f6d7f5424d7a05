"""A comparison as Markdown, for a comment on a pull request; a stranger's text is escaped as in report.markdown."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.core.comparison import Comparison
from stepscope.core.gate import Gate
from stepscope.report.comparison.page import ComparisonPage, Line, Table, chosen, page_of
from stepscope.report.comparison.words import letter
from stepscope.report.document.markdown import MAX_CHARS, escape
from stepscope.report.gate import STATUS_WORDS, reason
from stepscope.report.units import NBSP

OPEN = ("runs", "part", "changed", "held")
"""Tables that are shown; the others open with a click."""
CELL_CHARS = (300, 100, 40)
"""The roomiest with which the comment stays under MAX_CHARS is taken."""
MAX_RUNS = 8
"""Comparisons in one comment."""


def comparisons_markdown(comparisons: Sequence[Comparison], gate: Gate | None = None) -> str:
    """The comment; shortened where GitHub would not take it whole."""
    pages = [page_of(comparison, letter(place)) for place, comparison in enumerate(comparisons[:MAX_RUNS], start=1)]
    more = [f"and {len(comparisons) - MAX_RUNS} more runs"] if len(comparisons) > MAX_RUNS else []
    for chars in CELL_CHARS:
        blocks = [] if gate is None else _gate(gate, chars)
        text = _joined([*blocks, *(block for page in pages for block in _blocks(page, chars)), *more])
        if len(text) <= MAX_CHARS:
            return text
    return _joined([*(f"## stepscope: {escape(page.headline, CELL_CHARS[0])}" for page in pages), *more])


def _joined(blocks: Sequence[str]) -> str:
    return "\n\n".join(block for block in blocks if block).replace(NBSP, " ") + "\n"


def _blocks(page: ComparisonPage, chars: int) -> list[str]:
    blocks = [f"## stepscope: {escape(page.headline, 600)}"]
    blocks += [f"> [!WARNING]\n> {escape(warning, 600)}" for warning in page.warnings]
    blocks.append("\n".join(f"- {escape(fact, chars)}" for fact in page.facts))
    for table in page.tables:
        body = _table(table, chars)
        title = f"### {table.title}"
        aside = f"<sub>{escape(table.aside)}</sub>" if table.aside else ""
        if table.name in OPEN:
            blocks += [title, aside, body]
        else:
            blocks += [f"<details><summary>{table.title}</summary>", aside, body, "</details>"]
    notes = "\n".join(f"- {escape(note, 600)}" for note in page.notes)
    return [*blocks, f"<details><summary>Notes ({len(page.notes)})</summary>", notes, "</details>"] if notes else blocks


def _table(table: Table, chars: int) -> str:
    shown, left_out = chosen(table)
    sides = ["---:" if place in table.right else "---" for place in range(len(table.columns))]
    rows = [_row(table.columns), "|" + "|".join(sides) + "|"]
    rows += [_row([_cell(cell, line, chars) for cell in line.cells]) for line in shown]
    return "\n".join(rows) + (f"\n\n<sub>and {left_out} more</sub>" if left_out else "")


def _cell(cell: str, line: Line, chars: int) -> str:
    text = escape(cell, chars)
    return f"**{text}**" if line.is_total and text else text


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _gate(gate: Gate, chars: int) -> list[str]:
    head = "**The gate passed.**" if gate.is_passed else "**The gate failed.**"
    lines = [
        f"- {STATUS_WORDS[one.status]}: {escape(f'{one.check} ({one.source}): {reason(one)}', chars)}" for one in gate.results
    ]
    return [head, "\n".join(lines)]
