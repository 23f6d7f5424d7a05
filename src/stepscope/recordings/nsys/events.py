"""Nsight Systems' tables of events into columns: what the device did, what was called, what was
waited for.

Names are written as torch.profiler writes them, so that every analysis knows a copy and a call by
the same words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from stepscope.api import Kind
from stepscope.core.trace import NONE, Bool, Int64
from stepscope.readers.kineto.event_decoder import SEPARATOR, Scanner
from stepscope.readers.trace.categories import LIMIT_NS
from stepscope.readers.trace.columns import Columns
from stepscope.recordings.nsys.database import Database

KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
COPIES = "CUPTI_ACTIVITY_KIND_MEMCPY"
SETS = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
WAITS = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
OVERHEADS = ("PROFILER_OVERHEAD", "CUPTI_ACTIVITY_KIND_OVERHEAD")
OS_CALLS = "OSRT_API"
DEVICE_TABLES = (KERNELS, COPIES, SETS, GRAPHS)

THREAD_MASK = 0xFFFFFF
"""A global identifier is <hardware:8><vm:8><process:24><thread:24> (Nsight's exporter manual,
"Serialized identifiers")."""
NO_STREAM = 2**32 - 1
VERSION = re.compile(r"(_ptsz|_ptds)?_v\d{4,5}$")
"""Nsight adds the release that brought a call: cudaLaunchKernel_v7000."""
COPY_WORDS = (
    "", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP", "HtoD",
    "DtoH", "DtoD",
)  # fmt: skip
"""Words by ENUM_CUDA_MEMCPY_OPER; the last three are pages of unified memory."""
FIRST_UNIFIED = 11
MEMORY_WORDS = (
    "Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static",
    "Unknown",
)  # fmt: skip
"""Words by ENUM_CUDA_MEM_KIND."""
WAIT_WORDS = ("Unknown", "Event Sync", "Stream Wait Event", "Stream Sync", "Context Sync")
"""Words by ENUM_CUPTI_SYNC_TYPE."""
WORTH_TELLING_NS = 1_000_000
GEOMETRY = (
    "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ",
    "registersPerThread", "staticSharedMemory", "dynamicSharedMemory",
)  # fmt: skip


@dataclass(slots=True)
class ProcessTraceBuilder:
    """What is read of one process: columns, and the tables that their codes point into."""

    database: Database
    process: int
    """Global identifier of the process; NONE where the file has no such column."""
    is_unowned: bool = False
    """Devices worked, and the file does not say whose work it was."""
    scanner: Scanner = field(default_factory=Scanner)
    chunks: list[Columns] = field(default_factory=list)
    num_graphs: int = 0
    num_unnamed: int = 0
    """Names that StringIds does not have."""
    unowned: dict[str, int] = field(default_factory=dict)
    """Rows without a process, by table."""
    os_ns: dict[str, int] = field(default_factory=dict)
    """Time in the operating system, by call, on the threads that launch."""

    def of_process(self, table: str) -> tuple[str, tuple[int, ...]]:
        """Words that choose this process' rows of a table."""
        if self.process == NONE:
            return "", ()
        if self.database.has(table, "globalPid"):
            return '"globalPid" = ?', (self.process,)
        if self.database.has(table, "globalTid"):
            return f'("globalTid" & {~THREAD_MASK}) = ?', (self.process,)
        return "", ()

    def take(self, table: str, *more: str) -> dict[str, Int64] | None:
        """A table's times and further columns, of rows whose times make sense; None where there are
        none."""
        if not self.database.has(table, "start", "end"):
            return None
        columns = self.database.ints(table, ("start", "end", *more), *self.of_process(table))
        self.count_unowned(table)
        tally = self.scanner.tally
        tally.raw_events += len(columns["start"])
        start, end = columns["start"], columns["end"]
        is_timed = (start >= 0) & (start < LIMIT_NS) & (end >= 0) & (end < LIMIT_NS)
        tally.no_time += int((~is_timed).sum())
        tally.negative_duration += int((end < start)[is_timed].sum())
        columns = {name: column[is_timed] for name, column in columns.items()}
        columns["end"] = np.maximum(columns["end"], columns["start"])
        return columns if len(columns["start"]) else None

    def count_unowned(self, table: str) -> None:
        owner = next(
            (name for name in ("globalPid", "globalTid") if self.database.has(table, name)), None
        )
        if self.process == NONE or owner is None:
            return
        query = f'SELECT count(*) FROM "{table}" WHERE "{owner}" IS NULL'  # noqa: S608
        for ((count,),) in self.database.query(query):
            if count:
                self.unowned[table] = count

    def blank(self, rows: dict[str, Int64], kind: Kind) -> Columns:
        columns = Columns.blank(rows["start"], rows["end"] - rows["start"])
        columns.kind[:] = kind
        return columns

    def names(self, ids: Int64, *, are_calls: bool = False) -> Int64:
        """Codes of the names that StringIds has under these numbers; a call's without the release
        that brought it."""
        unique, inverse = np.unique(ids, return_inverse=True)
        strings = self.database.strings(unique)
        self.num_unnamed += sum(i != NONE and i not in strings for i in unique.tolist())
        texts = [
            strings.get(i) or (f"string {i}" if i != NONE else "(no name)") for i in unique.tolist()
        ]
        return self.codes([VERSION.sub("", text) if are_calls else text for text in texts])[inverse]

    def codes(self, texts: list[str]) -> Int64:
        return np.array([self.scanner.names[text] for text in texts], np.int64)

    def numbered(self, columns: Sequence[Int64], name: Callable[..., str]) -> Int64:
        """Codes of the names that numbers of some columns stand for, each name asked for once."""
        rows, inverse = _distinct(columns)
        return self.codes([name(*row) for row in rows])[inverse]

    def host_threads(self, ids: Int64) -> Int64:
        unique, inverse = np.unique(ids, return_inverse=True)
        pairs = [
            ((i >> 24) & THREAD_MASK, i & THREAD_MASK) if i != NONE else (0, 0)
            for i in unique.tolist()
        ]
        return np.array([self.scanner.threads[pair] for pair in pairs], np.int64)[inverse]

    def add_device_work(self, rows: dict[str, Int64], kind: Kind, names: Int64) -> Columns:
        """Device, stream and the launching call; a stream is a thread of the device, as in
        torch.profiler's traces."""
        columns = self.blank(rows, kind)
        columns.name[:] = names
        if "bytes" in rows:
            columns.size_bytes[:] = np.maximum(rows["bytes"], NONE)
        device, stream = rows["deviceId"].copy(), rows["streamId"].copy()
        device[(device < 0) | (device > np.iinfo(np.int16).max)] = NONE
        stream[(stream < 0) | (stream >= NO_STREAM)] = NONE
        pairs, inverse = _distinct([device, stream])
        codes = []
        for gpu, queue in pairs:
            codes.append(self.scanner.threads[gpu, queue])
            self.scanner.thread_names[str(gpu), str(queue)] = f"stream {queue} "
        columns.thread[:] = np.array(codes, np.int64)[inverse]
        columns.device[:] = device
        columns.stream[:] = stream
        columns.correlation[:] = np.where(rows["correlationId"] > 0, rows["correlationId"], NONE)
        self.chunks.append(columns)
        return columns

    def add_host_work(self, rows: dict[str, Int64], kind: Kind, names: Int64) -> Columns:
        columns = self.blank(rows, kind)
        columns.name[:] = names
        columns.thread[:] = self.host_threads(rows["globalTid"])
        self.chunks.append(columns)
        return columns


STREAM_COLUMNS = ("deviceId", "streamId", "correlationId")


def take_device_work(builder: ProcessTraceBuilder) -> None:
    _kernels(builder)
    _copies(builder)
    _sets(builder)
    _graphs(builder)


def _kernels(builder: ProcessTraceBuilder) -> None:
    rows = builder.take(KERNELS, *STREAM_COLUMNS, "demangledName", "shortName", *GEOMETRY)
    if rows is None:
        return
    ids = np.where(rows["demangledName"] != NONE, rows["demangledName"], rows["shortName"])
    columns = builder.add_device_work(rows, Kind.KERNEL, builder.names(ids))
    shapes, inverse = _distinct([rows[column] for column in GEOMETRY])
    codes = [builder.scanner.details[_launch_key(shape)] for shape in shapes]
    columns.detail[:] = np.array(codes, np.int64)[inverse]


def _distinct(columns: Sequence[Int64]) -> tuple[list[list[int]], Int64]:
    """The distinct rows of some columns, and which of them each row is. One column at a time: rows
    are never compared whole."""
    key = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        values, code = np.unique(column, return_inverse=True)
        key = np.unique(key * len(values) + code, return_inverse=True)[1]
    first = np.unique(key, return_index=True)[1]
    return np.stack([column[first] for column in columns], axis=1).tolist(), key


def _launch_key(shape: list[int]) -> bytes:
    """A launch as the table of details has it: grid, block, registers, shared memory, and an
    occupancy that nsys has not."""
    grid, block, (registers, static, dynamic) = shape[:3], shape[3:6], shape[6:]
    parts = [json.dumps(size).encode() if min(size) >= 0 else b"" for size in (grid, block)]
    shared = static + dynamic if min(static, dynamic) >= 0 else NONE
    return SEPARATOR.join(
        [*parts, *(str(n).encode() if n >= 0 else b"" for n in (registers, shared)), b""]
    )


def _copies(builder: ProcessTraceBuilder) -> None:
    rows = builder.take(COPIES, *STREAM_COLUMNS, "bytes", "copyKind", "srcKind", "dstKind")
    if rows is None:
        return
    kinds = [rows[column] for column in ("copyKind", "srcKind", "dstKind")]
    names = builder.numbered(kinds, partial(_copy_name, _memory_words(builder)))
    builder.add_device_work(rows, Kind.MEMCPY, names)


def _copy_name(memory: dict[int, str], kind: int, source: int, target: int) -> str:
    word = COPY_WORDS[kind] if 0 < kind < len(COPY_WORDS) else "Unknown"
    if kind >= FIRST_UNIFIED and kind < len(COPY_WORDS):
        return f"Memcpy {word} (Unified memory)"
    if source == NONE and target == NONE:
        return f"Memcpy {word}"
    return f"Memcpy {word} ({memory.get(source, 'Unknown')} -> {memory.get(target, 'Unknown')})"


def _memory_words(builder: ProcessTraceBuilder) -> dict[int, str]:
    """What the file itself calls the kinds of memory, else what the manual does."""
    words, table = dict(enumerate(MEMORY_WORDS)), "ENUM_CUDA_MEM_KIND"
    if builder.database.has(table, "id", "label"):
        for rows in builder.database.rows(table, '"id", substr("label", 1, 32)'):
            words.update(
                (i, label)
                for i, label in rows[:256]
                if isinstance(i, int) and isinstance(label, str)
            )
    return words


def _sets(builder: ProcessTraceBuilder) -> None:
    rows = builder.take(SETS, *STREAM_COLUMNS, "bytes", "memKind")
    if rows is None:
        return
    memory = _memory_words(builder)
    names = builder.numbered([rows["memKind"]], lambda k: f"Memset ({memory.get(k, 'Unknown')})")
    builder.add_device_work(rows, Kind.MEMSET, names)


def _graphs(builder: ProcessTraceBuilder) -> None:
    """Whole CUDA graphs, each one piece of work; not those whose nodes were recorded one by one."""
    rows = builder.take(GRAPHS, *STREAM_COLUMNS, "graphId")
    if rows is None:
        return
    correlations = [chunk.correlation for chunk in builder.chunks]
    # Without a correlation nothing says that its nodes are there.
    alone: Bool = rows["correlationId"] <= 0
    if correlations:
        alone |= ~np.isin(rows["correlationId"], np.concatenate(correlations))
    else:
        alone[:] = True
    rows = {name: column[alone] for name, column in rows.items()}
    builder.num_graphs = len(rows["start"])
    if not builder.num_graphs:
        return
    names = builder.numbered(
        [rows["graphId"]], lambda graph: f"CUDA graph {graph}" if graph >= 0 else "CUDA graph"
    )
    builder.add_device_work(rows, Kind.KERNEL, names)


def take_calls(builder: ProcessTraceBuilder) -> None:
    rows = builder.take(CALLS, "globalTid", "correlationId", "nameId")
    if rows is None:
        return
    names = builder.names(rows["nameId"], are_calls=True)
    columns = builder.add_host_work(rows, Kind.RUNTIME, names)
    columns.correlation[:] = np.where(rows["correlationId"] > 0, rows["correlationId"], NONE)


def take_waits(builder: ProcessTraceBuilder) -> None:
    rows = builder.take(WAITS, *STREAM_COLUMNS, "syncType")
    if rows is None:
        return
    kinds, inverse = np.unique(rows["syncType"], return_inverse=True)
    words = [
        WAIT_WORDS[kind] if 0 <= kind < len(WAIT_WORDS) else WAIT_WORDS[0]
        for kind in kinds.tolist()
    ]
    builder.add_device_work(rows, Kind.SYNC, builder.codes(words)[inverse])


def take_overheads(builder: ProcessTraceBuilder) -> None:
    for table in OVERHEADS:
        rows = builder.take(table, "globalTid", "nameId")
        if rows is not None:
            builder.add_host_work(rows, Kind.OVERHEAD, builder.names(rows["nameId"]))


def take_os_calls(builder: ProcessTraceBuilder) -> None:
    """Calls into the operating system, of kind OTHER: whether one works or waits, its name alone
    does not say.

    Taken only beside device work: where there is none, the host's ranges are the work.
    """
    launching = [
        chunk.thread
        for chunk in builder.chunks
        if len(chunk.kind) and chunk.kind[0] == Kind.RUNTIME
    ]
    on_device = any(
        len(chunk.kind) and chunk.kind[0] in (Kind.KERNEL, Kind.MEMCPY) for chunk in builder.chunks
    )
    rows = builder.take(OS_CALLS, "globalTid", "nameId") if on_device else None
    if rows is None:
        return
    columns = builder.add_host_work(rows, Kind.OTHER, builder.names(rows["nameId"]))
    if launching:
        busiest = int(np.bincount(np.concatenate(launching)).argmax())
        mine: Bool = columns.thread == busiest
        totals = np.zeros(len(builder.scanner.names), np.int64)
        np.add.at(totals, columns.name[mine], columns.dur_ns[mine])
        table = builder.scanner.names.table()
        builder.os_ns = {
            table[i]: int(totals[i])
            for i in np.argsort(-totals)[:3].tolist()
            if totals[i] >= WORTH_TELLING_NS
        }
