"""A comparison as one HTML page: opens from disk, asks nobody for anything, and reads well with
scripts off.

Bars are drawings in the page itself, placed by attributes: the page's policy lets no style run that
is not ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stepscope import __version__
from stepscope.core.experiments.comparison import Comparison
from stepscope.core.facts import PARTS
from stepscope.report.comparison.page import page_of
from stepscope.report.comparison.words import interval_words, letter, part_names, ratio
from stepscope.report.html import render
from stepscope.report.words import ms, percent

SCRIPTS = ("charts.js", "page.js")
STYLES = ("page.css", "comparison.css")


def comparisons_html(comparisons: Sequence[Comparison]) -> str:
    """The whole file."""
    return render("comparison.html", html_page(comparisons), SCRIPTS, STYLES)


def html_page(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """What the template shows, as plain values and blocks."""
    many = len(comparisons) > 1
    labels = [comparisons[0].before.label, *(comparison.after.label for comparison in comparisons)]
    return {
        "version": __version__,
        "title": " and ".join(labels),
        "many": many,
        "comparisons": [
            _comparison(comparison, letter(index), many=many)
            for index, comparison in enumerate(comparisons, start=1)
        ],
    }


def _comparison(comparison: Comparison, name: str, *, many: bool) -> dict[str, Any]:
    page = page_of(comparison, name, is_whole=True)
    prefix = f"{name.lower().replace(' ', '-')}-" if many else ""
    return {
        "letter": name,
        "prefix": prefix,
        "headline": page.headline,
        "facts": page.facts,
        "warnings": page.warnings,
        "chips": _chips(comparison, name),
        "bars": _bars(comparison, name),
        "tables": [
            {
                "id": f"{prefix}{table.name}",
                "title": f"{table.section.title}{': ' + page.title if many else ''}",
                "section": table.section,
                "is_quiet": table.is_quiet,
            }
            for table in page.tables
        ],
        "notes": page.notes,
        "notes_title": f"How this was judged{': ' + page.title if many else ''}",
    }


def _chips(comparison: Comparison, name: str) -> list[tuple[str, str, str]]:
    speedup = comparison.speedup
    is_sure = speedup.low is not None
    value = "not measured" if speedup.value is None else ratio(speedup.value, is_sure=is_sure)
    of = ""
    if speedup.low is not None and speedup.high is not None:
        low, high = (ratio(end, is_sure=True) for end in (speedup.low, speedup.high))
        of = f"{low} to {high}, {percent(speedup.level)} sure"
    chips = [(f"speedup, A / {name}", value, of)]
    if comparison.throughput is not None and comparison.throughput.value is not None:
        unit = f"{comparison.throughput.unit} a second"
        chips.append((unit, interval_words(comparison.throughput), f"{name} / A"))
    for word, run in (("A", comparison.before), (name, comparison.after)):
        value = "not measured" if run.step_ms is None else ms(run.step_ms * 1e6)
        chips.append((f"a step of {word}", value, run.bound))
    return chips


def _bars(comparison: Comparison, name: str) -> list[dict[str, Any]]:
    """The two steps by their parts, drawn to one scale; empty where no parts were measured."""
    account = comparison.accounts.get("part")
    if account is None:
        return []
    rows = sorted(
        (row for row in account.rows if row.name in PARTS), key=lambda row: PARTS.index(row.name)
    )
    sides = [[row.before_ns or 0 for row in rows], [row.after_ns or 0 for row in rows]]
    longest = max(sum(side) for side in sides) or 1
    names = part_names(comparison)
    bars = []
    for word, side in zip(("A", name), sides, strict=True):
        at, parts = 0.0, []
        for row, ns in zip(rows, side, strict=True):
            width = 1000 * ns / longest
            if width >= 0.5:
                words = {"part": row.name, "word": names[row.name], "value": ms(ns)}
                parts.append(words | {"at": f"{at:.2f}", "width": f"{width:.2f}"})
            at += width
        bars.append({"word": word, "total": ms(sum(side)), "parts": parts})
    return bars
