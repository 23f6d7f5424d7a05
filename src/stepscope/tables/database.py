"""SQL over a run's tables, in a DuckDB that can reach nothing else."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from stepscope.core.extras import need
from stepscope.errors import UsageError
from stepscope.report.words import clean
from stepscope.tables.arrow import ArrowTable, arrow, tidied
from stepscope.tables.rows.columns import TABLES

LOCKS = (
    "set temp_directory = ''",
    "set enable_external_access = false",
    "set python_enable_replacements = false",
    "set autoinstall_known_extensions = false",
    "set autoload_known_extensions = false",
    "set allow_community_extensions = false",
    "set lock_configuration = true",
)
"""SQL may come from anywhere: it sees the tables, no file, no network, no extension,
no variable of ours. The last one stays."""

_NAMES = re.compile(rf"\b({'|'.join(TABLES)})\b", re.IGNORECASE)

Builder = Callable[[Iterable[str]], Mapping[str, ArrowTable]]


def named_tables(sql: str) -> list[str]:
    """The tables whose names stand in the SQL, whatever they stand there for.

    One too many costs time alone.
    """
    return list(dict.fromkeys(name.lower() for name in _NAMES.findall(sql)))


class Database:
    """A connection that builds the tables a question names, once."""

    def __init__(self, build: Builder) -> None:
        self._duckdb: Any = need("duckdb", "sql", "SQL")
        arrow()
        self._build = build
        self._connection: Any = self._duckdb.connect(":memory:")
        for lock in LOCKS:
            self._connection.execute(lock)

    def query(self, sql: str, most_s: float | None = None) -> ArrowTable:
        """The answer, which takes `most_s` seconds at most. What is wrong with the SQL is said as
        DuckDB says it."""
        if not sql.strip(" \t\r\n;"):
            raise UsageError(
                'there is no SQL to run; try "select name, sum(dur_ns) from kernels group by 1 '
                'order by 2 desc"'
            )
        # Each time: an earlier question may have dropped it, or made another of its name.
        for name, table in self._build(named_tables(sql)).items():
            self._connection.register(name, table)
        try:
            with self._ended_after(most_s):
                relation = self._connection.sql(sql)
                # A statement that answers nothing, such as CREATE VIEW, may give no relation at
                # all.
                return arrow().table({}) if relation is None else tidied(relation.to_arrow_table())
        except self._duckdb.InterruptException:
            raise UsageError(
                f"the SQL ran for {most_s:g} s and was ended. Ask for less: a limit, one step or "
                "one rank"
            ) from None
        except self._duckdb.PermissionException as problem:
            raise UsageError(
                f"{_message(problem)}\nQueries see the run's tables and nothing else: "
                f"{', '.join(TABLES)}"
            ) from None
        except self._duckdb.CatalogException as problem:
            # Its own guess is one of its system tables.
            words = _message(problem).partition("\nDid you mean")[0]
            tables = f"The tables are {', '.join(TABLES)}"
            raise UsageError(f"{words}\n{tables}\n{schema_words(TABLES)}") from None
        except (self._duckdb.Error, UnicodeError) as problem:
            schema = schema_words(named_tables(sql))
            raise UsageError("\n".join(filter(None, (_message(problem), schema)))) from None

    @contextmanager
    def _ended_after(self, most_s: float | None) -> Iterator[None]:
        """SQL may go on for ever."""
        if most_s is None:
            yield
            return
        timer = threading.Timer(most_s, self._connection.interrupt)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def close(self) -> None:
        self._connection.close()


def schema_words(names: Iterable[str]) -> str:
    """The columns of these tables, a line for each."""
    return "\n".join(
        f"{name}: {', '.join(column.name for column in TABLES[name].columns)}" for name in names
    )


def _message(problem: Exception) -> str:
    """DuckDB's message, which may repeat a stranger's text,
    with nothing in it that a terminal obeys."""
    lines = [clean(line).rstrip() for line in str(problem).splitlines()]
    return "the SQL cannot be run: " + "\n".join(line for line in lines if line)
