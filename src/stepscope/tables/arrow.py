"""Rows as Arrow tables: text dictionary-encoded, what was not measured null."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.core.extras import need
from stepscope.core.trace import Bool
from stepscope.tables.rows.columns import BOOL, FLOAT, INT, TEXT, ColumnSpec, Rows, TableSpec

ArrowTable = Any
"""A pyarrow.Table. The package is optional, so that nothing here names its types."""


def arrow() -> Any:
    return need("pyarrow", "sql", "a table")


def to_arrow(spec: TableSpec, parts: Iterable[tuple[int | None, Rows]]) -> ArrowTable:
    """One table of the ranks' rows; a rank that is given stands in the column `rank`."""
    pa = arrow()
    schema = pa.schema([(column.name, _type(pa, column)) for column in spec.columns])
    tables = [
        pa.table([_array(pa, column, rank, rows) for column in spec.columns], schema=schema)
        for rank, rows in parts
    ]
    # One dictionary for all ranks: what reads the table sees one set of names.
    return pa.concat_tables(tables).unify_dictionaries() if tables else schema.empty_table()


def _type(pa: Any, column: ColumnSpec) -> Any:
    kinds = {
        INT: pa.int64(),
        FLOAT: pa.float64(),
        BOOL: pa.bool_(),
        TEXT: pa.dictionary(pa.int32(), pa.string()),
    }
    return kinds[column.kind]


def _array(pa: Any, column: ColumnSpec, rank: int | None, rows: Rows) -> Any:
    if column.name == "rank" and rank is not None:
        num = len(next(iter(rows.values())))
        return _plain(pa, np.full(num, rank, np.int64), pa.int64(), None)
    values = rows[column.name]
    if values.words is None:
        return _plain(pa, values.data, _type(pa, column), values.missing)
    # Two codes may stand for one word, and a dictionary has each once.
    # Half characters, which JSON may hold and Arrow may not, become '?'.
    words = [word.encode("utf-8", "replace") for word in values.words]
    code_of = {word: code for code, word in enumerate(dict.fromkeys(words))}
    new_codes = np.array([code_of[word] for word in words] or [0], np.int32)
    codes = new_codes.take(np.maximum(values.data.astype(np.int32), 0))
    return pa.DictionaryArray.from_arrays(
        _plain(pa, codes, pa.int32(), values.missing), _texts(pa, list(code_of))
    )


def _plain(pa: Any, data: NDArray[np.generic], kind: Any, missing: Bool | None) -> Any:
    """An array of the column's own memory, where it is of that type already. `pa.array` would do
    the same, and import pandas first, which takes longer than most questions."""
    held = data
    if kind == pa.bool_():
        held = np.packbits(data.astype(np.bool_), bitorder="little")
    else:
        held = np.ascontiguousarray(data, kind.to_pandas_dtype())
    valid = None
    if missing is not None and missing.any():
        valid = pa.py_buffer(np.packbits(~missing, bitorder="little"))
    return pa.Array.from_buffers(kind, len(data), [valid, pa.py_buffer(held)])


def _texts(pa: Any, words: Sequence[bytes]) -> Any:
    ends = np.cumsum([0, *map(len, words)])
    kind, offsets = pa.string(), ends.astype(np.int32)
    if int(ends[-1]) > np.iinfo(np.int32).max:
        return pa.array([word.decode() for word in words], kind)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(words))]
    return pa.Array.from_buffers(kind, len(words), buffers)


def tidied(table: ArrowTable) -> ArrowTable:
    """A result with whole numbers as such, and no two columns of one name.

    A sum of integers comes as a decimal of 38 digits; it is int64 where it fits.
    """
    pa = arrow()
    columns, names = [], list[str]()
    for name, column in zip(table.column_names, table.columns, strict=True):
        if pa.types.is_decimal(column.type) and column.type.scale == 0:
            with suppress(pa.ArrowInvalid):
                column = column.cast(pa.int64())
        columns.append(column)
        names.append(_free(name, names))
    return pa.table(columns, names=names)


def _free(name: str, used: Sequence[str]) -> str:
    number, free = 1, name
    while free in used:
        free, number = f"{name}_{number}", number + 1
    return free
