"""What Jupyter shows of a run: small, escaped, no scripts."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from stepscope.core.diagnosis import Diagnosis
from stepscope.report.names import clean
from stepscope.report.units import ms, percent

MOST_ROWS = 20
MOST_CHARACTERS = 200
"""Of a cell; a kernel's name may have thousands."""
LEFT = ' style="text-align:left"'


def cell_text(value: object) -> str:
    """A value as text that no browser obeys; `-` is not measured."""
    if value is None:
        return "-"
    text = clean(f"{value:.6g}" if isinstance(value, float) else str(value))
    return escape(text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 3] + "...")


def table_html(rows: Any, name: str) -> str:
    """The first rows of an Arrow table."""
    shown = rows.slice(0, MOST_ROWS)
    cells = list(zip(*(column.to_pylist() for column in shown.columns), strict=True))
    more = f", the first {MOST_ROWS} shown" if rows.num_rows > MOST_ROWS else ""
    caption = f"{cell_text(name)}: {rows.num_rows} rows{more}"
    return grid(rows.column_names, cells, caption)


def grid(head: Sequence[str], rows: Sequence[Sequence[object]], caption: str) -> str:
    """A plain table; `caption` is HTML already."""
    top = "".join(f'<th scope="col"{LEFT}>{cell_text(name)}</th>' for name in head)
    body = "".join("<tr>" + "".join(f"<td{LEFT}>{cell_text(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><caption>{caption}</caption><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def diagnosis_html(diagnosis: Diagnosis) -> str:
    """The verdict, the step and the findings."""
    step = diagnosis.step
    verdict = diagnosis.verdict
    step_text = "not measured" if step.ms is None else f"{ms(step.ms * 1e6)} ({_source(step.source)})"
    shares = ", ".join(
        f"{name} {percent(share)}" for name, share in sorted(verdict.shares.items(), key=lambda kv: -kv[1]) if share > 0
    )
    rows = [
        (
            finding.code,
            finding.summary,
            finding.action,
            f"{finding.predicted_speedup:.2f}x ({finding.predicted_low:.2f} to {finding.predicted_high:.2f})",
            ms(finding.predicted_step_ms * 1e6),
        )
        for finding in diagnosis.findings
    ]
    head = ("finding", "what was seen", "what to do", "predicted gain", "step after")
    findings = grid(head, rows, "Findings, the largest gain first") if rows else "<p>No findings.</p>"
    notes = "".join(f"<li>{_long(note)}</li>" for note in diagnosis.notes)
    more = gain = ""
    if notes:
        more = f"<details><summary>What could not be judged</summary><ul>{notes}</ul></details>"
    if shares:
        gain = f"<p>If it were free, the step would be shorter by: {cell_text(shares)}</p>"
    return (
        f'<div class="stepscope"><p><strong>{cell_text(verdict.bound)}</strong>: {_long(verdict.summary)}</p>'
        f"<p>Step: {cell_text(step_text)}</p>{gain}{findings}{more}</div>"
    )


def _source(source: str) -> str:
    words = {
        "measured": "measured with no profiler",
        "trace": "from the trace, with the profiler's cost",
    }
    return words.get(source, source)


def _long(text: str) -> str:
    return escape(clean(text))
