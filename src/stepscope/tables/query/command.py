"""SQL over a run's events.

PATH is what `diagnose` takes: a trace, several, a folder with one file per rank, a run folder, or a
tar. SQL is DuckDB's, over the tables events, kernels, launches, copies, collectives, steps, ranks
and findings; it reaches no files and no network. Without SQL a prompt opens on a terminal;
elsewhere it is read from standard input. Needs `pip install 'stepscope[sql]'`.

    stepscope query traces/ "select op, sum(dur_ns) from kernels group by 1 order by 2 desc"
"""

from __future__ import annotations

import io
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.cli import options as declare
from stepscope.cli.printing import note, put
from stepscope.errors import UsageError

if TYPE_CHECKING:
    from stepscope.tables.run import Run
    from stepscope.tables.table import Table

SUFFIXES = {".csv": "csv", ".parquet": "parquet", ".pq": "parquet"}
COMMANDS = (".tables", ".schema")
PIPED_WIDTH = 200
"""Columns where nobody sees the output's edge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    paths: list[str] = declare.paths(
        "PATH", "trace, folder of rank traces, run folder, or tar; then the SQL"
    )
    format: str | None = declare.option(
        "--format", "how to print it (default: text)", choices=("text", "json")
    )
    to: str | None = declare.option(
        "--to",
        "write the answer in this format (csv: to standard output without -o; a text that a "
        "spreadsheet would take for a formula gets an apostrophe before it)",
        choices=("csv", "parquet"),
    )
    output: Path | None = declare.option(
        "-o/--output FILE",
        "where to write it; its ending says the format where --to does not",
        Path,
    )
    rows: int | None = declare.option("--rows N", "rows printed as text (default: 50; 0: all)", int)
    step_ms: float | None = declare.option(
        "--step-ms X",
        "the step time without a profiler attached, in ms, for findings",
        float,
    )
    no_cache: bool = declare.no_cache()


def run(options: Options) -> int:
    from stepscope.tables.run import Run

    _refuse_contradictions(options)
    paths, sql = split_sql(options.paths)
    opened = Run(paths, declare.reading_of(options, options.step_ms))
    try:
        if sql is None and sys.stdin.isatty():
            from stepscope.tables.query.prompt import converse

            return converse(lambda text: _print(ask(opened, text), options))
        answer = ask(opened, sys.stdin.read() if sql is None else sql)
        _print_or_write(answer, options)
    finally:
        opened.close()
    from stepscope.report.words import clean

    for words in opened.notes:
        note(f"note: {clean(words)}")
    return 0


def split_sql(words: list[str]) -> tuple[list[str], str | None]:
    """The paths and the SQL: the last word is SQL when it has a blank in it, or is a command, and
    names nothing that is there."""
    last = words[-1]
    if len(words) > 1 and (last in COMMANDS or len(last.split()) > 1) and not os.path.lexists(last):
        return words[:-1], last
    return words, None


def ask(opened: Run, text: str) -> Table:
    """The answer to SQL, or to `.tables` or `.schema TABLE`."""
    from stepscope.tables.arrow import arrow
    from stepscope.tables.rows.columns import TABLES
    from stepscope.tables.table import Table

    if not text.startswith("."):
        return opened.query(text)
    words = text.rstrip("; \n").split()
    if words == [".tables"]:
        rows = arrow().table(
            {"table": list(TABLES), "what it holds": [spec.about for spec in TABLES.values()]}
        )
    elif len(words) == 2 and words[0] == ".schema" and words[1] in TABLES:
        columns = TABLES[words[1]].columns
        rows = arrow().table(
            {
                "column": [c.name for c in columns],
                "type": [c.kind for c in columns],
                "what it holds": [c.about for c in columns],
            }
        )
    else:
        raise UsageError(
            f"there is .tables, .schema TABLE and .quit; the tables are {', '.join(TABLES)}"
        )
    return Table(words[0], lambda: rows)


def _refuse_contradictions(options: Options) -> None:
    output, to = options.output, options.to
    if options.format is not None and (to is not None or output is not None):
        raise UsageError(
            "--format prints the answer, --to and -o write it as a file: leave out one of them"
        )
    if output is not None and to is None and output.suffix.lower() not in SUFFIXES:
        raise UsageError(
            f"{output}: its ending does not name a format. Add --to csv or --to parquet"
        )
    if to == "parquet" and output is None:
        raise UsageError("a parquet file is nothing to print: say where to write it with -o FILE")
    if options.rows is not None and options.rows < 0:
        raise UsageError(f"--rows {options.rows}: give 0 for all of them, or how many to print")


def _print_or_write(answer: Table, options: Options) -> None:
    if options.output is not None:
        to = options.to or SUFFIXES[options.output.suffix.lower()]
        _write(answer, options.output, to)
    elif options.to is not None:
        _print_csv(answer)
    else:
        _print(answer, options)


def _print_csv(answer: Table) -> None:
    """Print on a terminal without what it would obey; into a pipe every text as it is, but for half
    characters."""
    from stepscope.tables.text import write_csv

    if sys.stdout.isatty():
        text = io.StringIO()
        write_csv(answer.to_arrow(), text)
        put(text.getvalue())
        return
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    write_csv(answer.to_arrow(), sys.stdout)


def _write(answer: Table, path: Path, to: str) -> None:
    from stepscope.core.extras import need
    from stepscope.tables.text import write_csv

    try:
        if to == "csv":
            with path.open("w", encoding="utf-8", errors="replace", newline="") as file:
                write_csv(answer.to_arrow(), file)
        else:
            need("pyarrow.parquet", "sql", "parquet").write_table(answer.to_arrow(), path)
    except OSError as problem:
        raise UsageError(f"cannot write {path}: {problem.strerror or problem}") from problem
    note(f"{path}: {len(answer)} rows")


def _print(answer: Table, options: Options) -> None:
    import shutil

    from stepscope.tables.text import MAX_ROWS, to_json, to_text

    rows = answer.to_arrow()
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else PIPED_WIDTH
    most = MAX_ROWS if options.rows is None else options.rows
    put(to_json(rows) if options.format == "json" else to_text(rows, width, most))
