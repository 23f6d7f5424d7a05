"""An SQLite file of a stranger's, read as plain tables of numbers and text.

Nothing in the file may act: it is opened unchangeable, tables alone are read (no views, no virtual
tables, no computed columns), an authorizer lets nothing pass but reading them, and a count of the
machine's steps ends what goes round in circles.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from stepscope.api import FormatError, InputError, Source, Stream
from stepscope.core.trace import NONE, Int64
from stepscope.protocol.untrusted import open_regular

MAGIC = b"SQLite format 3\x00"
MAX_ROWS = 50_000_000
"""Rows of one table at most. An hour of eight ranks has some ten million."""
SMALLEST_ROW_BYTES = 8
"""Nsight's rows have five numbers and more: pages that point at one another must not make a small
file endless."""
STEPS_PER_BYTE = 64
FREE_STEPS = 20_000_000
"""Steps of SQLite's machine that one query may take, with STEPS_PER_BYTE of the file; a row takes
some five per column."""
STEPS_AT_ONCE = 100_000
LIMIT_LENGTH = 0
"""SQLITE_LIMIT_LENGTH, which Python 3.10 has no name for."""
MAX_CELL_BYTES = 64 << 20
"""Nsight keeps a process' whole output in one cell, which we do not read; SQLite must not take more
for it than this."""
MAX_NAME_LENGTH = 4096
MAX_UNPACKED_BYTES = 64 << 30
DISK_RESERVE_BYTES = 2 << 30
ROWS_AT_ONCE = 65_536
IDS_AT_ONCE = 500
FUNCTIONS = frozenset({"typeof", "count", "total", "avg", "substr", "min", "max"})
PRAGMAS = frozenset({"table_info"})


@dataclass(slots=True)
class Database:
    """The open file. Every problem of SQLite's is a FormatError that names the file."""

    label: str
    connection: sqlite3.Connection
    size_bytes: int
    tables: dict[str, dict[str, bool]] = field(default_factory=dict)
    """Columns by table, and whether each is the table's key."""
    refused: tuple[str, ...] = ()
    """Views and virtual tables: named, never read."""
    notes: list[str] = field(default_factory=list)
    _left: int = 0
    _unkeyed: dict[int, str] | None = None
    """All of StringIds, where it has no key."""

    def has(self, table: str, *columns: str) -> bool:
        return table in self.tables and all(column in self.tables[table] for column in columns)

    def ints(
        self, table: str, columns: Sequence[str], where: str = "", parameters: Sequence[int] = ()
    ) -> dict[str, Int64]:
        """Columns of whole numbers; NONE where a column is not there, or a cell holds something
        else."""
        there = [column for column in columns if self.has(table, column)]
        blank = {column: np.empty(0, np.int64) for column in columns}
        if not there:
            return blank
        wanted = ", ".join(
            f"CASE WHEN typeof({_quoted(c)}) = 'integer' THEN {_quoted(c)} ELSE {NONE} END"
            for c in there
        )
        chunks = [np.array(rows, np.int64) for rows in self.rows(table, wanted, where, parameters)]
        stacked = np.concatenate(chunks) if chunks else np.empty((0, len(there)), np.int64)
        missing = np.full(len(stacked), NONE, np.int64)
        return {
            c: np.ascontiguousarray(stacked[:, there.index(c)]) if c in there else missing
            for c in columns
        }

    def rows(
        self, table: str, wanted: str, where: str = "", parameters: Sequence[int] = ()
    ) -> Iterator[list[tuple[Any, ...]]]:
        """Rows in blocks, up to the most that the file can truly hold; `wanted` and `where` are our
        own words."""
        most = min(MAX_ROWS, self.size_bytes // SMALLEST_ROW_BYTES)
        query = f"SELECT {wanted} FROM {_quoted(table)}" + (f" WHERE {where}" if where else "")  # noqa: S608
        for rows in self.query(query, parameters):
            if len(rows) > most:
                self.notes.append(
                    f"the table {table} has more rows than are read; the rest was left out"
                )
                yield rows[:most]
                return
            most -= len(rows)
            yield rows

    def query(
        self, query: str, parameters: Sequence[int] = ()
    ) -> Generator[list[tuple[Any, ...]], None, None]:
        self._left = FREE_STEPS + STEPS_PER_BYTE * self.size_bytes
        with (
            self.format_errors(),
            closing(self.connection.execute(query, tuple(parameters))) as cursor,
        ):
            while rows := cursor.fetchmany(ROWS_AT_ONCE):
                yield rows

    def strings(self, ids: Int64) -> dict[int, str]:
        """Texts of StringIds with these numbers; those that are not there are left out."""
        columns = self.tables.get("StringIds", {})
        wanted = {int(i) for i in np.unique(ids[ids != NONE]).tolist()}
        if "id" not in columns or "value" not in columns or not wanted:
            return {}
        what = f'"id", substr("value", 1, {MAX_NAME_LENGTH})'
        strings: dict[int, str] = {}
        if not columns["id"]:
            # No key: one pass over all, once.
            if self._unkeyed is None:
                self._unkeyed = {}
                for rows in self.rows("StringIds", what):
                    self._unkeyed.update((i, text) for i, text in rows if isinstance(text, str))
            return {i: self._unkeyed[i] for i in wanted & self._unkeyed.keys()}
        ordered = sorted(wanted)
        for first in range(0, len(ordered), IDS_AT_ONCE):
            some = ordered[first : first + IDS_AT_ONCE]
            for rows in self.rows(
                "StringIds", what, f'"id" IN ({",".join("?" * len(some))})', some
            ):
                strings.update((i, text) for i, text in rows if isinstance(text, str))
        return strings

    @contextmanager
    def format_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as problem:
            ended = str(problem)
            if "interrupt" in ended:
                ended = "it takes more steps than a file of its size needs"
            raise FormatError(
                f"{self.label} cannot be read as an SQLite database: {ended}. {AGAIN}"
            ) from None
        except (OverflowError, UnicodeError, MemoryError) as problem:
            raise FormatError(f"{self.label} is damaged: {problem}. {AGAIN}") from None

    def take_tables(self) -> None:
        """Learn the tables and their columns, as the file's own schema has them."""
        refused = []
        for rows in self.query("SELECT type, name, substr(sql, 1, 64) FROM sqlite_master"):
            for kind, name, sql in rows:
                if not isinstance(name, str) or kind not in ("table", "view"):
                    continue
                if kind == "view" or "VIRTUAL" in str(sql).upper()[:24]:
                    refused.append(name)
                elif not name.startswith("sqlite_"):
                    self.tables[name] = {}
        self.refused = tuple(sorted(refused))
        for name, columns in self.tables.items():
            for rows in self.query(f"PRAGMA table_info({_quoted(name)})"):
                columns.update(
                    {row[1]: row[2].upper() == "INTEGER" and row[5] == 1 for row in rows}
                )

    def tick(self) -> int:
        self._left -= STEPS_AT_ONCE
        return int(self._left < 0)


AGAIN = "Export it again: nsys export --type sqlite --force-overwrite true report.nsys-rep."


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _may(
    action: int, first: str | None, second: str | None, _database: str | None, _inner: str | None
) -> int:
    """What SQLite may do: read tables, with a few harmless functions."""
    allowed = (
        action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ)
        or (action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in FUNCTIONS)
        or (action == sqlite3.SQLITE_PRAGMA and (first or "").lower() in PRAGMAS)
    )
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


@contextmanager
def opened(source: Source) -> Iterator[Database]:
    """The database of a source; one that is compressed, remote or in an archive is first written to
    a folder that goes away."""
    with _on_disk(source) as path:
        try:
            size = path.stat().st_size
            connection = sqlite3.connect(
                f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True, isolation_level=None
            )
        except (sqlite3.Error, OSError, ValueError) as problem:
            raise InputError(f"cannot open {source.label}: {problem}") from None
        with closing(connection):
            database = Database(label=source.label, connection=connection, size_bytes=size)
            with database.format_errors():
                connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
                if hasattr(connection, "setlimit"):  # Python 3.11
                    connection.setlimit(LIMIT_LENGTH, MAX_CELL_BYTES)
                for setting in (
                    "trusted_schema = OFF",
                    "cell_size_check = ON",
                    "temp_store = MEMORY",
                    "query_only = ON",
                ):
                    connection.execute(f"PRAGMA {setting}")
                connection.set_progress_handler(database.tick, STEPS_AT_ONCE)
                connection.set_authorizer(_may)
            database.take_tables()
            yield database


@contextmanager
def _on_disk(source: Source) -> Iterator[Path]:
    stream = Stream(source.path, source.offset, source.length)
    blocks = stream.blocks()
    with closing(blocks):
        head = next(blocks, b"")
        if not head.startswith(MAGIC):
            what = stream.problem or ("it is empty" if not head else "it does not begin like one")
            raise FormatError(f"{source.label} is no SQLite database: {what}. {AGAIN}")
        if (
            isinstance(source.path, Path)
            and source.offset == 0
            and source.length is None
            and _is_plain(source.path)
        ):
            yield source.path
            return
        with TemporaryDirectory(prefix="stepscope-") as folder:
            target, size = Path(folder) / "nsys.sqlite", 0
            room = min(MAX_UNPACKED_BYTES, shutil.disk_usage(folder).free - DISK_RESERVE_BYTES)
            with target.open("wb") as file:
                while head:
                    size += len(head)
                    if size > room:
                        raise InputError(
                            f"{source.label} does not fit into {Path(folder).parent}. Unpack it, "
                            "and name the file."
                        )
                    file.write(head)
                    head = next(blocks, b"")
            if stream.problem:
                raise InputError(f"{source.label} could not be unpacked whole: {stream.problem}.")
            yield target


def _is_plain(path: Path) -> bool:
    with open_regular(path) as file:
        return file.read(len(MAGIC)) == MAGIC
