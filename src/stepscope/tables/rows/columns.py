"""Columns of the tables that `query` and `stepscope.load` give:
what each holds, and its values for one rank."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct
from msgspec.json import decode
from numpy.typing import NDArray

from stepscope.core.trace import NONE, Bool, Int64

INT, FLOAT, TEXT, BOOL = "int", "float", "text", "bool"


class ColumnSpec(Struct, frozen=True, kw_only=True, array_like=True):
    """One column, as it is documented. Its unit is the end of its name."""

    name: str
    kind: str
    """INT, FLOAT, TEXT or BOOL. Any of them may be missing in a row."""
    about: str


class TableSpec(Struct, frozen=True, kw_only=True):
    """One table, as it is documented."""

    name: str
    about: str
    columns: tuple[ColumnSpec, ...]


TABLES = {
    table.name: table
    for table in decode(Path(__file__).with_suffix(".json").read_bytes(), type=list[TableSpec])
}
"""Tables by name, in the order they are shown. docs/query.md has the same, and a test compares
them."""


class Values(Struct, frozen=True, kw_only=True):
    """A column's values. Text is codes into `words`,
    so that a name that occurs a million times is kept once."""

    data: NDArray[np.generic]
    missing: Bool | None = None
    """Rows with no value; None when every row has one."""
    words: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.data)


Rows = Mapping[str, Values]
"""A table's columns by name, all equally long."""


def plain(data: NDArray[np.generic]) -> Values:
    """Every row has a value."""
    return Values(data=data)


def recorded_ints(data: NDArray[np.generic]) -> Values:
    """Whole numbers, where NONE is one that was not recorded."""
    return Values(data=data, missing=data == NONE)


def known_floats(data: NDArray[np.float64]) -> Values:
    """Figures, where NaN is one that is not known."""
    return Values(data=data, missing=np.isnan(data))


def coded(codes: NDArray[np.integer], words: Sequence[str]) -> Values:
    """Text by its codes into words; NONE is none."""
    return Values(data=codes.astype(np.int32), missing=codes == NONE, words=tuple(words))


def named(
    events: Int64,
    name_of: NDArray[np.integer],
    names: Sequence[str],
    say: Callable[[str], str] | None = None,
) -> Values:
    """The names of events, of which some may be NONE; only the words that occur are kept."""
    code = np.where(events == NONE, NONE, name_of[np.maximum(events, 0)] if len(name_of) else NONE)
    codes, inverse = np.unique(code, return_inverse=True)
    words = [names[i] if say is None else say(names[i]) for i in codes[codes != NONE].tolist()]
    return coded(inverse.reshape(-1) - int(NONE in codes), words)


def texts(values: Iterable[str | None]) -> Values:
    """Text, row by row."""
    rows = list(values)
    words = {
        word: code
        for code, word in enumerate(dict.fromkeys(row for row in rows if row is not None))
    }
    return coded(
        np.array([NONE if row is None else words[row] for row in rows], np.int64), tuple(words)
    )


def ints(values: Iterable[int | None]) -> Values:
    """Whole numbers, row by row."""
    rows = list(values)
    return Values(
        data=np.array([0 if row is None else row for row in rows], np.int64),
        missing=np.array([r is None for r in rows], np.bool_),
    )


def floats(values: Iterable[float | None]) -> Values:
    """Figures, row by row."""
    rows = list(values)
    return known_floats(np.array([np.nan if row is None else row for row in rows], np.float64))


def flags(values: Iterable[bool | None]) -> Values:
    """Yes or no, row by row."""
    rows = list(values)
    return Values(
        data=np.array([bool(r) for r in rows], np.bool_),
        missing=np.array([r is None for r in rows], np.bool_),
    )
