"""What Jupyter shows of a run: the same documents as everywhere, escaped, no scripts."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from stepscope.core.diagnosis import Diagnosis
from stepscope.report.diagnosis.whole import diagnosis_document
from stepscope.report.document.blocks import Block, Column, Details, Prose, Table
from stepscope.report.document.html import to_html
from stepscope.report.words import fixed, percent, plural, shorten
from stepscope.tables.rows.columns import TableSpec

MAX_ROWS = 20
MAX_CHARACTERS = 200
"""Characters of a cell; a kernel's name may have thousands."""


def table_html(rows: Any, name: str, spec: TableSpec | None = None) -> str:
    """The first rows of an Arrow table: numbers to the right with their thousands apart, a box that
    scrolls, and what the columns hold."""
    shown = rows.slice(0, MAX_ROWS)
    values = [column.to_pylist() for column in shown.columns]
    cells = zip(*(map(_cell, column) for column in values), strict=True)
    more = f", the first {MAX_ROWS} shown" if rows.num_rows > MAX_ROWS else ""
    columns = tuple(
        Column(title=title, right=_is_number(column))
        for title, column in zip(rows.column_names, values, strict=True)
    )
    caption = f"{name}: {plural(rows.num_rows, 'row')}{more}"
    blocks: list[Block] = [Table(caption=caption, columns=columns, rows=tuple(cells))]
    if spec is not None:
        lines = tuple(f"{column.name}: {column.about}" for column in spec.columns)
        blocks.append(Details(title="What the columns hold", lines=lines))
    return f'<div style="max-width:100%;overflow-x:auto">{to_html(tuple(blocks))}</div>'


def report_html(page: str, height: int) -> str:
    """The report's page in a frame of its own, which cannot reach the notebook's."""
    return (
        f'<iframe sandbox="allow-scripts allow-downloads" srcdoc="{escape(page, quote=True)}" '
        f'style="width:100%;height:{height}px;border:1px solid #ccc" title="stepscope report">'
        "</iframe>"
    )


def _is_number(values: Sequence[object]) -> bool:
    present = [value for value in values if value is not None]
    return bool(present) and all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in present
    )


def diagnosis_html(diagnosis: Diagnosis) -> str:
    """The whole of it, and what the step would gain if a part of it were free."""
    first, time, *rest = diagnosis_document(diagnosis)
    ordered = sorted(diagnosis.verdict.shares.items(), key=lambda pair: -pair[1])
    shares = ", ".join(f"{name} {percent(share)}" for name, share in ordered if share > 0)
    gain = (Prose(f"If it were free, the step would be shorter by: {shares}"),) if shares else ()
    return to_html((first, time, *gain, *rest))


def _cell(value: object) -> str:
    """`-` is not measured."""
    if value is None:
        return "-"
    if isinstance(value, int) and not isinstance(value, bool):
        return fixed(value, 0)
    return shorten(f"{value:.6g}" if isinstance(value, float) else str(value), MAX_CHARACTERS)
