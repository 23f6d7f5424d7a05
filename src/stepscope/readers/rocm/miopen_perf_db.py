"""MIOpen's perf-db: parameters that its solvers were tuned to, by problem; and the cache of its
compiled kernels.

A user's own is ~/.config/miopen/*.udb (SQLite: tables `config` and `perf_db`) or, where MIOpen was
built without SQLite, *.udb.txt, which has lines like a find-db's with parameters in place of times;
AMD's are share/miopen/db/*.db. MIOpen writes them when it tunes: MIOPEN_FIND_ENFORCE=SEARCH, or
torch.backends.cudnn.benchmark = True where nothing was tuned before. The cache (*.ukdb, *.kdb:
table `kern_db`) has compiled kernels. No times are in any of them: what was tuned is told, and
nothing is judged by it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from stepscope.core.recordings.kernels import KernelRecording, TunedSolvers
from stepscope.errors import FormatError, InputError
from stepscope.readers.format import Reader
from stepscope.readers.nsys.database import AGAIN, MAGIC, Database, opened
from stepscope.readers.rocm.miopen_keys import FIND_DB_LINE, LINE, NAME, first_lines, problem_of
from stepscope.readers.source import Source
from stepscope.readers.text_lines import TextLines

FORMAT = "miopen-perf-db"
PERF_TABLE, CONFIG_TABLE, KERNEL_TABLE = "perf_db", "config", "kern_db"
TABLES = tuple(
    f"CREATE TABLE {mark}{name}{mark}".encode()
    for name in (PERF_TABLE, KERNEL_TABLE)
    for mark in ('"', "`", "")
)
SOLVER_NAME = re.compile(NAME)
MAX_SOLVERS = 512
MAX_LINE_BYTES = 64 << 10
WANTED = "Copy it again from ~/.config/miopen while no job writes to it."


def is_mine(head: bytes, _name: str) -> bool:
    if head.startswith(MAGIC):
        return any(table in head for table in TABLES)
    lines = first_lines(head)
    return any(LINE.match(line) for line in lines) and not any(
        FIND_DB_LINE.match(line) for line in lines
    )


def read_file(source: Source) -> KernelRecording:
    text = TextLines(source, max_line_bytes=MAX_LINE_BYTES)
    first = next(iter(text), "")
    if not first.encode("utf-8", "replace").startswith(MAGIC[:15]):
        return _of_text(source)
    try:
        with opened(source) as database:
            return _of_database(source, database)
    except InputError as problem:
        raise type(problem)(f"{str(problem).removesuffix(AGAIN).rstrip()} {WANTED}") from None


def _of_database(source: Source, database: Database) -> KernelRecording:
    if database.has(PERF_TABLE, "solver", "config"):
        return _recording(
            source, _count(database, CONFIG_TABLE), _by_solver(database), database.notes
        )
    if database.has(KERNEL_TABLE):
        num = _count(database, KERNEL_TABLE)
        return KernelRecording(
            format=FORMAT, paths=(source.label,), notes=tuple(database.notes), num_compiled=num
        )
    raise FormatError(f"{source.label} names MIOpen's tables and has none of them. {WANTED}")


def _count(database: Database, table: str) -> int:
    if not database.has(table):
        return 0
    return sum(int(row[0]) for rows in database.rows(table, "count(*)") for row in rows)


def _by_solver(database: Database) -> Counter[str]:
    counts: Counter[str] = Counter()
    for rows in database.rows(PERF_TABLE, 'substr("solver", 1, 128)'):
        counts.update(
            name
            for (name,) in rows
            if isinstance(name, str) and (name in counts or len(counts) < MAX_SOLVERS)
        )
    return counts


def _of_text(source: Source) -> KernelRecording:
    lines = TextLines(source, max_line_bytes=MAX_LINE_BYTES)
    counts: Counter[str] = Counter()
    num = odd = 0
    for line in lines:
        if not line.strip():
            continue
        key, _, values = line.partition("=")
        names = [entry.partition(":")[0] for entry in values.split(";") if ":" in entry]
        if problem_of(key.strip()) is None or not names:
            odd += 1
            continue
        num += 1
        counts.update(
            name
            for name in names
            if SOLVER_NAME.fullmatch(name) and (name in counts or len(counts) < MAX_SOLVERS)
        )
    notes = [
        *lines.notes,
        *([f"{odd:,} line(s) that are no convolution's parameters were left out"] if odd else []),
    ]
    if not num:
        raise FormatError(
            f"{source.label} begins like MIOpen's perf-db, and nothing of it can be read. {WANTED}"
        )
    return _recording(source, num, counts, notes)


def _recording(
    source: Source, num: int, counts: Counter[str], notes: Sequence[str]
) -> KernelRecording:
    tuned = TunedSolvers(
        num_convolutions=num, solvers=tuple(counts.most_common()), num_tuned=sum(counts.values())
    )
    return KernelRecording(format=FORMAT, paths=(source.label,), notes=tuple(notes), tuned=tuned)


READER = Reader(is_mine=is_mine, read_file=read_file)
