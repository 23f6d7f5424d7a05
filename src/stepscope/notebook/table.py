"""Table: rows that turn into whatever a notebook wants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stepscope.analyses.tables.columns import TableSpec
from stepscope.notebook.arrow import ArrowTable, arrow
from stepscope.notebook.extras import need
from stepscope.notebook.html import table_html


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

    def to_arrow(self) -> ArrowTable:
        """As a pyarrow.Table; text is dictionary-encoded."""
        if self._rows is None:
            self._rows = self._build()
        return self._rows

    def to_pandas(self) -> Any:
        """As a pandas.DataFrame. A column of whole numbers with gaps is Int64, not a float."""
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
        """As a polars.DataFrame."""
        return need("polars", "notebook", "to_polars()").from_arrow(self.to_arrow())

    @property
    def columns(self) -> tuple[str, ...]:
        """The names; those of a run's own table are known before it is built."""
        if self.spec is None:
            return tuple(self.to_arrow().column_names)
        return tuple(column.name for column in self.spec.columns)

    def __len__(self) -> int:
        return int(self.to_arrow().num_rows)

    def __repr__(self) -> str:
        size = "not built yet" if self._rows is None else f"{len(self)} rows"
        return f"<stepscope table {self.name}: {size}, {len(self.columns)} columns>"

    def _repr_html_(self) -> str:
        return table_html(self.to_arrow(), self.name)
