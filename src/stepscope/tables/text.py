"""An answer as text: aligned for people, JSON and CSV for programs."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from itertools import zip_longest
from typing import TextIO

from rich.cells import cell_len, chop_cells

from stepscope.protocol.json_text import json_text
from stepscope.report.words import clean, shorten
from stepscope.tables.arrow import ArrowTable

MAX_ROWS = 50
"""Printed before the rest is only counted."""
MAX_CELLS = 100
"""Width of one column of text, in characters: a kernel's name may have thousands."""
MAX_LINES = 3
"""Lines of one cell."""
MIN_CELLS = 12
"""A name shorter than this says nothing."""
GAP = "  "
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""What makes a spreadsheet take a text for a formula;
the last four are the first four at full width."""
_QUOTED = re.compile(r'[,"\r\n]')


def to_text(rows: ArrowTable, width: int, most_rows: int = MAX_ROWS) -> str:
    """Columns under one another; numbers to the right, `-` for what was not measured.

    Long names go on below; what takes more lines than that loses its middle.
    """
    if not rows.num_columns:
        return "done; no rows\n"
    shown = rows.slice(0, most_rows) if most_rows else rows
    columns = [[_cell(value) for value in column.to_pylist()] for column in shown.columns]
    right = [_is_number(column.to_pylist()) for column in shown.columns]
    heads = [clean(name) for name in rows.column_names]
    sizes = _sizes(heads, columns, right, width)
    lines = [
        GAP.join(
            _fit(head, size, side) for head, size, side in zip(heads, sizes, right, strict=True)
        ).rstrip()
    ]
    lines += [GAP.join("-" * size for size in sizes)]
    for row in zip(*columns, strict=True):
        wrapped = [_wrapped(cell, size) for cell, size in zip(row, sizes, strict=True)]
        for parts in zip_longest(*wrapped, fillvalue=""):
            cells = zip(parts, sizes, right, strict=True)
            lines.append(GAP.join(_fit(*cell) for cell in cells).rstrip())
    lines.append(_count(rows.num_rows, shown.num_rows))
    return "\n".join(lines) + "\n"


def _count(total: int, shown: int) -> str:
    if shown < total:
        return f"({total} rows, the first {shown} shown; --rows 0 prints all)"
    return f"({total} row{'' if total == 1 else 's'})"


def _sizes(
    heads: Sequence[str], columns: Sequence[Sequence[str]], right: Sequence[bool], width: int
) -> list[int]:
    """How wide each column is.

    A column is as wide as its widest cell; the widest columns of text give way until all fit.
    """
    sizes = []
    for head, cells, side in zip(heads, columns, right, strict=True):
        widest_cell = max(map(cell_len, (head, *cells)))
        sizes.append(widest_cell if side else min(widest_cell, MAX_CELLS))
    least = [
        size if side else min(size, MIN_CELLS) for size, side in zip(sizes, right, strict=True)
    ]
    while sum(sizes) + len(GAP) * (len(sizes) - 1) > width:
        widest = max(range(len(sizes)), key=lambda i: sizes[i] - least[i])
        if sizes[widest] == least[widest]:
            break
        sizes[widest] -= 1
    return sizes


def _wrapped(cell: str, size: int) -> list[str]:
    """The cell on as many lines as it takes, up to MAX_LINES."""
    return chop_cells(shorten(cell, MAX_LINES * size), size) if cell else [""]


def _fit(cell: str, size: int, right: bool) -> str:
    text = shorten(cell, size)
    pad = " " * (size - cell_len(text))
    return pad + text if right else text + pad


def _is_number(values: Sequence[object]) -> bool:
    present = [value for value in values if value is not None]
    return bool(present) and all(
        isinstance(value, int | float | Decimal) and not isinstance(value, bool)
        for value in present
    )


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.6g}" if isinstance(value, float) else clean(str(value))


def to_json(rows: ArrowTable) -> str:
    """`{"columns": [...], "rows": [[...], ...]}`; what was not measured is null."""
    return (
        json_text(
            {
                "columns": rows.column_names,
                "rows": [[_plain(v) for v in row] for row in _rows(rows)],
            },
            indent=1,
        )
        + "\n"
    )


def write_csv(rows: ArrowTable, file: TextIO) -> None:
    """Write with a line of names; what was not measured is empty, an empty name `""`. A text that a
    spreadsheet would run as a formula has an apostrophe before it; JSON and parquet have every text
    as it is."""
    file.write(",".join(map(_field, rows.column_names)) + "\n")
    # A line with nothing on it would be no row.
    file.writelines((",".join(map(_field, row)) or '""') + "\n" for row in _rows(rows))


def _field(value: object) -> str:
    """Write a field by RFC 4180.

    Python's own writer may leave a lone carriage return bare, and readers end the row there.
    """
    if value is None:
        return ""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if isinstance(value, str) and text.startswith(FORMULA_STARTS):
        text = "'" + text
    return '"' + text.replace('"', '""') + '"' if not text or _QUOTED.search(text) else text


def _rows(rows: ArrowTable) -> Iterator[tuple[object, ...]]:
    for batch in rows.to_batches(max_chunksize=65536):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _plain(value: object) -> object:
    """A value that JSON has."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else str(value)
