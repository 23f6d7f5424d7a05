"""Nsight Systems' JSON export (`nsys export --type json`): each process of it as one Trace.

The exporter's manual ("JSON and Text Format Description"): each line is one message, whole numbers
of 64 bits are written as text, and names are numbers into a table of strings, which is a line of
its own before the events or after them (with --line-by-line, a line for each string and thread).

    {"Type":79,"CudaEvent":{"startNs":"140564259","endNs":"140619331","correlationId":745,
     "deviceId":1,"streamId":"7","eventClass":3,"globalPid":"292568055152640",
     "kernel":{"demangledName":"316","gridX":...}}}
    {"Type":48,"TraceProcessEvent":{"startNs":"140547168","endNs":"140562944",
     "correlationId":745,"eventClass":1,"name":"330","globalTid":"292568055813839"}}
    {"Type":59,"NvtxEvent":{"Type":59,"Timestamp":"27651616","EndTimestamp":"1450326304",
     "Text":"iteration 16","GlobalTid":"292568055813839","DomainId":"0","NsTime":true}}
    {"data":["[Unknown]", ...]}

These are the rows of the SQLite export under other names. They are written into its tables, in a
file that goes away, and its reader does the rest.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from msgspec import Struct, structs

from stepscope.api import FormatError, InputError, Reader, Source, TextLines, Trace
from stepscope.core.numbers import true_notes
from stepscope.readers.format import Progress
from stepscope.recordings.nsys import sqlite
from stepscope.recordings.nsys.events import CALLS, COPIES, GEOMETRY, KERNELS, SETS
from stepscope.recordings.nsys.nvtx import RANGES

RECORD = re.compile(
    rb'(?:\A[\s\xef\xbb\xbf]*|\n)\{\s*"Type"\s*:\s*\d{1,4}\s*,\s*"[A-Z][A-Za-z]{1,40}Event"\s*:\s*\{'
)
"""An event of any kind: those that are read may come late."""
STRINGS_FIRST = re.compile(rb'\A[\s\xef\xbb\xbf]*\{\s*"data"\s*:\s*\[\s*"\[Unknown\]"')
"""How every table of strings begins."""
MAX_LINE_BYTES = 64 << 20
"""All strings of a report are one line."""
MAX_LINES = 50_000_000
MAX_STRINGS = 5_000_000
ROWS_AT_ONCE = 20_000
API_CLASSES = (0, 1)
"""Calls of CUDA's runtime and of its driver; others are of the operating system and of libraries.
"""
LIMIT = 2**63

DEVICE = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")
TABLES: dict[str, tuple[str, ...]] = {
    KERNELS: (*DEVICE, "demangledName", "shortName", *GEOMETRY),
    COPIES: (*DEVICE, "bytes", "copyKind", "srcKind", "dstKind"),
    SETS: DEVICE,
    CALLS: ("start", "end", "globalTid", "correlationId", "nameId"),
    RANGES: ("start", "end", "eventType", "globalTid", "domainId", "textId", "text"),
    "ThreadNames": ("globalTid", "nameId"),
    "StringIds": ("id", "value"),
}
AGAIN = "Export it anew, best as a database: nsys export --type sqlite report.nsys-rep."


class _Kernel(Struct):
    demangledName: int | None = None  # noqa: N815
    shortName: int | None = None  # noqa: N815
    gridX: int | None = None  # noqa: N815
    gridY: int | None = None  # noqa: N815
    gridZ: int | None = None  # noqa: N815
    blockX: int | None = None  # noqa: N815
    blockY: int | None = None  # noqa: N815
    blockZ: int | None = None  # noqa: N815
    registersPerThread: int | None = None  # noqa: N815
    staticSharedMemory: int | None = None  # noqa: N815
    dynamicSharedMemory: int | None = None  # noqa: N815


class _Copy(Struct):
    sizebytes: int | None = None
    copyKind: int | None = None  # noqa: N815
    srcKind: int | None = None  # noqa: N815
    dstKind: int | None = None  # noqa: N815


class _Anything(Struct):
    """A message of which only its presence is read."""


class _Cuda(Struct):
    startNs: int  # noqa: N815
    endNs: int  # noqa: N815
    deviceId: int | None = None  # noqa: N815
    streamId: int | None = None  # noqa: N815
    correlationId: int | None = None  # noqa: N815
    globalPid: int | None = None  # noqa: N815
    kernel: _Kernel | None = None
    memcpy: _Copy | None = None
    memset: _Anything | None = None
    sync: _Anything | None = None
    cudaEventRecord: _Anything | None = None  # noqa: N815


class _Call(Struct):
    startNs: int  # noqa: N815
    endNs: int  # noqa: N815
    eventClass: int  # noqa: N815
    name: int
    correlationId: int | None = None  # noqa: N815
    globalTid: int | None = None  # noqa: N815


class _Range(Struct):
    Type: int
    Timestamp: int
    NsTime: bool = False
    EndTimestamp: int | None = None
    GlobalTid: int | None = None
    DomainId: int | None = None
    TextId: int | None = None
    Text: str | None = None


class _Line(Struct):
    """A line of any kind."""

    CudaEvent: _Cuda | None = None
    TraceProcessEvent: _Call | None = None
    NvtxEvent: _Range | None = None
    data: list[str] | None = None
    type: str | None = None
    id: int | None = None
    value: str | None = None
    globalTid: int | None = None  # noqa: N815
    nameId: int | None = None  # noqa: N815


Row = tuple[int | str | None, ...]
LINE = msgspec.json.Decoder(_Line, strict=False)


def is_mine(head: bytes, _name: str) -> bool:
    return RECORD.search(head) is not None or STRINGS_FIRST.match(head) is not None


def parts(source: Source) -> tuple[list[tuple[int, str]], list[str]]:
    """The ranks that share the file, as in the SQLite export."""
    with _as_database(source) as (database, _):
        return sqlite.parts(database)


def read(source: Source, progress: Progress | None = None) -> Trace:
    """The Trace of one process: of the source's part, else of the one with the most device work."""
    with _as_database(source) as (database, notes):
        trace = sqlite.read(database, progress)
    meta = replace(trace.meta, versions={"nsys_export": "json"})
    return replace(trace, meta=meta, notes=trace.notes + tuple(notes))


@contextmanager
def _as_database(source: Source) -> Iterator[tuple[Source, list[str]]]:
    with TemporaryDirectory(prefix="stepscope-") as folder:
        path = Path(folder) / "nsys.sqlite"
        try:
            with closing(sqlite3.connect(path, isolation_level=None)) as connection:
                notes = _Writer(connection).write(source)
        except sqlite3.Error as problem:
            raise InputError(
                f"{source.label} could not be unpacked into {path.parent.parent}: {problem}"
            ) from None
        yield structs.replace(source, path=path, offset=0, length=None, archive=None), notes


class _Writer:
    """The rows of a file, on their way into its tables."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.rows: dict[str, list[Row]] = {table: [] for table in TABLES}
        self.num_events = self.num_odd = self.num_other_time = self.num_other = 0
        self.num_strings = 0

    def write(self, source: Source) -> list[str]:
        """All lines; then what is to be said of them."""
        self.connection.execute("PRAGMA synchronous = OFF")
        self.connection.execute("PRAGMA journal_mode = OFF")
        self.connection.execute("BEGIN")
        for table, columns in TABLES.items():
            # A key lets names be looked up by their numbers.
            typed = [f'"{c}" INTEGER PRIMARY KEY' if c == "id" else f'"{c}"' for c in columns]
            self.connection.execute(f'CREATE TABLE "{table}" ({", ".join(typed)})')
        lines = TextLines(source, max_line_bytes=MAX_LINE_BYTES, max_lines=MAX_LINES)
        for number, line in enumerate(lines):
            if line.strip():
                self._take(line)
            if number % ROWS_AT_ONCE == 0:
                self._flush()
        self._flush()
        self.connection.execute("COMMIT")
        if not self.num_events:
            raise FormatError(
                f"{source.label} holds no events of Nsight Systems' JSON that are read "
                f"({self.num_odd} line(s) are not as nsys writes them). {AGAIN}"
            )
        return [*lines.notes, *self._notes()]

    def _notes(self) -> list[str]:
        return true_notes(
            (
                True,
                (
                    "the JSON export describes no devices, and waits, sizes of sets and NCCL's "
                    "payloads are not read of it: nsys export --type sqlite has them"
                ),
            ),
            (not self.num_strings, f"the file has no table of strings: no name is known. {AGAIN}"),
            (self.num_odd, "{n} line(s) are not as nsys writes them: left out"),
            (self.num_other_time, "{n} NVTX event(s) are not timed in nanoseconds: left out"),
            (self.num_other, "{n} CUDA event(s) are no kernel, copy, set or wait: left out"),
        )

    def _take(self, text: str) -> None:
        try:
            line = LINE.decode(text)
        except (msgspec.DecodeError, RecursionError):
            self.num_odd += 1
            return
        if line.CudaEvent is not None:
            self._take_cuda(line.CudaEvent)
        elif line.TraceProcessEvent is not None:
            call = line.TraceProcessEvent
            if call.eventClass in API_CLASSES:
                self._add(
                    CALLS, call.startNs, call.endNs, call.globalTid, call.correlationId, call.name
                )
        elif line.NvtxEvent is not None:
            self._take_range(line.NvtxEvent)
        elif line.data is not None:
            for number, value in enumerate(line.data[:MAX_STRINGS]):
                self._add_string(number, value)
        elif line.type == "String" and line.id is not None and line.value is not None:
            self._add_string(line.id, line.value)
        elif line.type == "ThreadName":
            self.rows["ThreadNames"].append((_stored(line.globalTid), _stored(line.nameId)))

    def _take_cuda(self, event: _Cuda) -> None:
        where = (
            event.startNs, event.endNs, event.deviceId, event.streamId, event.correlationId,
            event.globalPid,
        )  # fmt: skip
        if event.kernel is not None:
            self._add(
                KERNELS,
                *where,
                event.kernel.demangledName,
                event.kernel.shortName,
                *(getattr(event.kernel, name) for name in GEOMETRY),
            )
        elif event.memcpy is not None:
            copy = event.memcpy
            self._add(COPIES, *where, copy.sizebytes, copy.copyKind, copy.srcKind, copy.dstKind)
        elif event.memset is not None:
            self._add(SETS, *where)
        elif event.sync is None and event.cudaEventRecord is None:
            self.num_other += 1

    def _take_range(self, event: _Range) -> None:
        if not event.NsTime:
            self.num_other_time += 1
            return
        self._add(
            RANGES,
            event.Timestamp,
            event.EndTimestamp,
            event.Type,
            event.GlobalTid,
            event.DomainId,
            event.TextId,
            event.Text,
        )

    def _add(self, table: str, *row: int | str | None) -> None:
        self.num_events += 1
        self.rows[table].append(tuple(map(_stored, row)))

    def _add_string(self, number: int, value: str) -> None:
        if 0 <= number < MAX_STRINGS:
            self.num_strings += 1
            self.rows["StringIds"].append((number, value))

    def _flush(self) -> None:
        for table, rows in self.rows.items():
            if rows:
                marks = ", ".join("?" * len(TABLES[table]))
                # A string may be named twice: the first is kept.
                self.connection.executemany(
                    f'INSERT OR IGNORE INTO "{table}" VALUES ({marks})',  # noqa: S608
                    rows,
                )
                rows.clear()


def _stored(value: int | str | None) -> int | str | None:
    """A number that SQLite can hold; None in place of another."""
    if isinstance(value, int) and not -LIMIT <= value < LIMIT:
        return None
    return value


READER = Reader(is_mine=is_mine, read_trace=read, parts=parts)
