"""Table: rows that turn into whatever a notebook wants.

With pandas installed a table is used as its data frame is: `kernels.head()`, `kernels["dur_ns"]`,
`kernels.groupby("op")`. The frame is made at the first such use, and kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from html import escape
from importlib.util import find_spec
from shutil import get_terminal_size
from typing import Any

from stepscope.core.extras import need
from stepscope.errors import UsageError
from stepscope.tables.arrow import ArrowTable, arrow
from stepscope.tables.html import table_html
from stepscope.tables.rows.columns import TableSpec
from stepscope.tables.text import to_json, to_text

MAX_ROWS = 10
"""Printed, where pandas does not do it."""


class Table:
    """A table of a run, or the answer to a query. It is built when its rows are first asked for."""

    def __init__(
        self, name: str, build: Callable[[], ArrowTable], spec: TableSpec | None = None
    ) -> None:
        self.name = name
        self.spec = spec
        """What its columns are, with their units; None for an answer."""
        self._build = build
        self._rows: ArrowTable | None = None
        self._frame: Any = None

    def to_arrow(self) -> ArrowTable:
        """Rows as a pyarrow.Table; text is dictionary-encoded."""
        if self._rows is None:
            self._rows = self._build()
        return self._rows

    def to_json(self) -> str:
        """Rows as `query --format json` prints them."""
        return to_json(self.to_arrow())

    def to_pandas(self) -> Any:
        """Rows as a pandas.DataFrame. A column of whole numbers with gaps is Int64, not a float."""
        pandas, pa = need("pandas", "notebook", "to_pandas()"), arrow()
        gaps = {
            pa.int64(): pandas.Int64Dtype(),
            pa.int32(): pandas.Int32Dtype(),
            pa.bool_(): pandas.BooleanDtype(),
        }
        rows = self.to_arrow()
        columns = {
            name: column.to_pandas(types_mapper=gaps.get if column.null_count else None)
            for name, column in zip(rows.column_names, rows.columns, strict=True)
        }
        return pandas.DataFrame(columns, columns=rows.column_names)

    def to_polars(self) -> Any:
        """Rows as a polars.DataFrame."""
        return need("polars", "notebook", "to_polars()").from_arrow(self.to_arrow())

    def head(self, n: int = 5) -> Table:
        """The first rows, as a table; pandas is not needed for it."""
        rows = self.to_arrow().slice(0, max(n, 0))
        first = Table(self.name, lambda: rows, self.spec)
        first.to_arrow()
        return first

    def __getattr__(self, name: str) -> Any:
        """Whatever else a pandas.DataFrame has."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._pandas(), name)

    def __getitem__(self, key: Any) -> Any:
        return self._pandas()[key]

    def __iter__(self) -> Iterator[str]:
        """The names of the columns, as of a data frame."""
        return iter(self.columns)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """So that pandas, polars, duckdb and pyarrow take it as it is."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def _pandas(self) -> Any:
        if self._frame is None:
            self._frame = self.to_pandas()
        return self._frame

    @property
    def columns(self) -> tuple[str, ...]:
        """The names; those of a run's own table are known before it is built."""
        if self.spec is None:
            return tuple(self.to_arrow().column_names)
        return tuple(column.name for column in self.spec.columns)

    def __len__(self) -> int:
        return int(self.to_arrow().num_rows)

    def __repr__(self) -> str:
        """Show its rows, where they are there already: looking at a name builds nothing."""
        if self._rows is None:
            return f"<stepscope table {self.name}: not built yet, {len(self.columns)} columns>"
        return str(self)

    def __str__(self) -> str:
        if find_spec("pandas") is not None:
            return str(self._pandas())
        return to_text(self.to_arrow(), get_terminal_size().columns, MAX_ROWS)

    def _repr_html_(self) -> str:
        try:
            rows = self.to_arrow()
        except UsageError as missing:
            # A notebook would show where it was raised, and at the end why.
            return f"<p>{escape(str(missing))}</p>"
        return table_html(rows, self.name, self.spec)
