"""What Jupyter shows of a run: the same documents as everywhere, escaped, no scripts."""

from __future__ import annotations

from typing import Any

from stepscope.core.diagnosis import Diagnosis
from stepscope.report.diagnosis.view import diagnosis_document
from stepscope.report.document.blocks import Column, Prose, Table
from stepscope.report.document.html import to_html
from stepscope.report.names import shorten
from stepscope.report.units import percent

MOST_ROWS = 20
MOST_CHARACTERS = 200
"""Of a cell; a kernel's name may have thousands."""


def table_html(rows: Any, name: str) -> str:
    """The first rows of an Arrow table."""
    shown = rows.slice(0, MOST_ROWS)
    cells = zip(*(map(_cell, column.to_pylist()) for column in shown.columns), strict=True)
    more = f", the first {MOST_ROWS} shown" if rows.num_rows > MOST_ROWS else ""
    columns = tuple(Column(title=title) for title in rows.column_names)
    return to_html(
        (Table(caption=f"{name}: {rows.num_rows} rows{more}", columns=columns, rows=tuple(cells)),)
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
    return shorten(f"{value:.6g}" if isinstance(value, float) else str(value), MOST_CHARACTERS)
