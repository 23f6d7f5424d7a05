"""Writes SQLite files as `nsys export --type sqlite` does, with the schema that the exporter's
manual lists.

Columns are those of schema 3.16 (Nsight Systems 2024.6), without the ones that nothing here has a
value for; `old=True` leaves out what came after 2.x: the tables of labels, registered strings for
ranges, each process' own numbers for its devices.
"""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepscope.core.trace import NONE, Kind, Launch, OpInputs, Trace

STRINGS = "CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL)"
TABLES = {
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId "
        "INTEGER NOT NULL,"
        " greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid "
        "INTEGER,"
        " demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER, "
        "registersPerThread INTEGER NOT NULL,"
        " gridX INTEGER NOT NULL, gridY INTEGER NOT NULL, gridZ INTEGER NOT NULL, blockX INTEGER "
        "NOT NULL,"
        " blockY INTEGER NOT NULL, blockZ INTEGER NOT NULL, staticSharedMemory INTEGER NOT NULL,"
        " dynamicSharedMemory INTEGER NOT NULL, graphNodeId INTEGER"
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (
        "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId "
        "INTEGER NOT NULL,"
        " streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, bytes INTEGER NOT "
        "NULL, copyKind INTEGER NOT NULL,"
        " srcKind INTEGER, dstKind INTEGER, graphNodeId INTEGER"
    ),
    "CUPTI_ACTIVITY_KIND_MEMSET": (
        "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId "
        "INTEGER NOT NULL,"
        " streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, value INTEGER NOT "
        "NULL, bytes INTEGER NOT NULL,"
        " memKind INTEGER"
    ),
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": (
        "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId "
        "INTEGER NOT NULL,"
        " streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, graphId INTEGER "
        "NOT NULL, graphExecId INTEGER"
    ),
    "CUPTI_ACTIVITY_KIND_RUNTIME": (
        "start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL, globalTid "
        "INTEGER, correlationId INTEGER,"
        " nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL, callchainId INTEGER"
    ),
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": (
        "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId "
        "INTEGER NOT NULL,"
        " streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, syncType INTEGER "
        "NOT NULL,"
        " eventId INTEGER NOT NULL"
    ),
    "NVTX_EVENTS": (
        "start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER, "
        "category INTEGER, color INTEGER,"
        " text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER, domainId INTEGER, "
        "jsonText TEXT, binaryData TEXT"
    ),
    "OSRT_API": (
        "start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL, globalTid "
        "INTEGER, nameId INTEGER NOT NULL,"
        " returnValue INTEGER NOT NULL, nestingLevel INTEGER, callchainId INTEGER NOT NULL"
    ),
    "PROFILER_OVERHEAD": (
        "start INTEGER NOT NULL, end INTEGER NOT NULL, globalTid INTEGER, nameId INTEGER NOT "
        "NULL, overheadType INTEGER"
    ),
    "ThreadNames": "nameId INTEGER NOT NULL, priority INTEGER, globalTid INTEGER",
    "PROCESSES": "globalPid INTEGER, pid INTEGER, name TEXT",
    "TARGET_INFO_GPU": (
        "vmId INTEGER NOT NULL, id INTEGER NOT NULL, name TEXT, busLocation TEXT, totalMemory "
        "INTEGER, smCount INTEGER,"
        " cuDevice INTEGER, threadsPerWarp INTEGER, computeMajor INTEGER, computeMinor INTEGER"
    ),
    "TARGET_INFO_CUDA_DEVICE": (
        "gpuId INTEGER, cudaId INTEGER NOT NULL, pid INTEGER NOT NULL, uuid TEXT, "
        "numMultiprocessors INTEGER"
    ),
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs INTEGER, utcTime TEXT, localTime TEXT",
    "META_DATA_EXPORT": "name TEXT NOT NULL, value TEXT",
    "TARGET_INFO_GPU_METRICS": (
        "typeId INTEGER NOT NULL, sourceId INTEGER NOT NULL, typeName TEXT NOT NULL, metricId "
        "INTEGER NOT NULL,"
        " metricName TEXT NOT NULL"
    ),
    "GPU_METRICS": (
        "rawTimestamp INTEGER NOT NULL, timestamp INTEGER NOT NULL, typeId INTEGER NOT NULL, "
        "metricId INTEGER NOT NULL,"
        " value INTEGER NOT NULL"
    ),
    "NVTX_PAYLOAD_SCHEMA_ENTRIES": (
        "domainId INTEGER NOT NULL, schemaId INTEGER NOT NULL, idx INTEGER NOT NULL, flags "
        "INTEGER, type INTEGER, name TEXT,"
        " description TEXT, arrayOrUnionDetail INTEGER, offset INTEGER"
    ),
    "DIAGNOSTIC_EVENT": (
        "timestamp INTEGER NOT NULL, timestampType INTEGER NOT NULL, source INTEGER NOT NULL, "
        "severity INTEGER NOT NULL,"
        " text TEXT NOT NULL, globalPid INTEGER"
    ),
    "ENUM_DIAGNOSTIC_SEVERITY_LEVEL": "id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT",
    "ENUM_CUDA_MEM_KIND": "id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT",
}
NOT_YET = ("TARGET_INFO_CUDA_DEVICE", "ENUM_CUDA_MEM_KIND")
MEMORY = (
    "Pageable",
    "Pinned",
    "Device",
    "Array",
    "Managed",
    "Device Static",
    "Managed Static",
    "Unknown",
)
COPIES = ("", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP")
CALL_VERSION = "_v3020"
PUSH_POP, START_END, MARK, DOMAIN = 59, 60, 34, 75
PID, TID = 426, 427
NCCL_DOMAIN, INIT_SCHEMA, REDUCE_SCHEMA = 1, 0, 4294967300


def global_id(pid: int = PID, tid: int = 0) -> int:
    """As Nsight packs them: hardware 1, no virtual machine, process, thread."""
    return (1 << 56) | (pid << 24) | tid


@dataclass(slots=True)
class Export:
    """An export under construction. Times are nanoseconds; tables come into being when something is
    put into them."""

    path: Path
    old: bool = False
    connection: sqlite3.Connection = field(init=False)
    strings: dict[str, int] = field(default_factory=dict)
    made: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.connection = sqlite3.connect(self.path)
        self.connection.execute(STRINGS)
        self.add(
            "META_DATA_EXPORT",
            name="EXPORT_SCHEMA_VERSION",
            value="2.7.1" if self.old else "3.16.1",
        )
        self.add(
            "META_DATA_EXPORT",
            name="EXPORT_PRODUCT_VERSION",
            value="2022.1" if self.old else "2024.6.2.225",
        )
        for number, label in enumerate(MEMORY):
            self.add("ENUM_CUDA_MEM_KIND", id=number, label=label)

    def string(self, text: str) -> int:
        if text not in self.strings:
            self.strings[text] = len(self.strings) + 1
            self.connection.execute(
                "INSERT INTO StringIds VALUES (?, ?)", (self.strings[text], text)
            )
        return self.strings[text]

    def add(self, table: str, **values: Any) -> None:
        if self.old and table in NOT_YET:
            return
        if table not in self.made:
            self.connection.execute(f"CREATE TABLE {table} ({TABLES[table]})")
            self.made.add(table)
        columns = ", ".join(f'"{name}"' for name in values)
        self.connection.execute(
            f"INSERT INTO {table} ({columns}) VALUES ({', '.join('?' * len(values))})",  # noqa: S608
            tuple(values.values()),
        )

    def kernel(
        self, start: int, end: int, correlation: int, name: str = "sgemm", *, stream: int = 7,
        device: int = 0, pid: int = PID, grid: Sequence[int] = (1, 1, 1),
        block: Sequence[int] = (32, 1, 1), registers: int = 16, shared: int = 0,
    ) -> None:  # fmt: skip
        text = self.string(name)
        self.add(
            "CUPTI_ACTIVITY_KIND_KERNEL", start=start, end=end, deviceId=device, contextId=1,
            streamId=stream, correlationId=correlation, globalPid=global_id(pid),
            demangledName=text, shortName=text, registersPerThread=registers, gridX=grid[0],
            gridY=grid[1], gridZ=grid[2], blockX=block[0], blockY=block[1], blockZ=block[2],
            staticSharedMemory=0, dynamicSharedMemory=shared,
        )  # fmt: skip

    def copy(
        self, start: int, end: int, correlation: int, size: int, kind: int = 1,
        source: int | None = 1, target: int | None = 2, *, stream: int = 7, device: int = 0,
        pid: int = PID,
    ) -> None:  # fmt: skip
        self.add(
            "CUPTI_ACTIVITY_KIND_MEMCPY", start=start, end=end, deviceId=device, contextId=1,
            streamId=stream, correlationId=correlation, globalPid=global_id(pid), bytes=size,
            copyKind=kind, srcKind=source, dstKind=target,
        )  # fmt: skip

    def fill(
        self,
        start: int,
        end: int,
        correlation: int,
        size: int,
        kind: int = 2,
        *,
        stream: int = 7,
        device: int = 0,
        pid: int = PID,
    ) -> None:
        self.add(
            "CUPTI_ACTIVITY_KIND_MEMSET", start=start, end=end, deviceId=device, contextId=1,
            streamId=stream, correlationId=correlation, globalPid=global_id(pid), value=0,
            bytes=size, memKind=kind,
        )  # fmt: skip

    def graph(self, start: int, end: int, correlation: int, graph: int, *, pid: int = PID) -> None:
        self.add(
            "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", start=start, end=end, deviceId=0, contextId=1,
            streamId=7, correlationId=correlation, globalPid=global_id(pid), graphId=graph,
            graphExecId=graph + 1,
        )  # fmt: skip

    def call(
        self,
        start: int,
        end: int,
        correlation: int,
        name: str = "cudaLaunchKernel_v7000",
        *,
        tid: int = TID,
        pid: int = PID,
    ) -> None:
        self.add(
            "CUPTI_ACTIVITY_KIND_RUNTIME", start=start, end=end, eventClass=0,
            globalTid=global_id(pid, tid), correlationId=correlation, nameId=self.string(name),
            returnValue=0,
        )  # fmt: skip

    def wait(self, start: int, end: int, correlation: int, kind: int, *, stream: int = 7) -> None:
        self.add(
            "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", start=start, end=end, deviceId=0, contextId=1,
            streamId=stream, correlationId=correlation, globalPid=global_id(), syncType=kind,
            eventId=0,
        )  # fmt: skip

    def range(
        self, start: int, end: int | None, text: str, *, tid: int = TID, pid: int = PID,
        kind: int = PUSH_POP, domain: int = 0, payload: bytes | str | None = None,
        end_tid: int | None = None,
    ) -> None:  # fmt: skip
        said: dict[str, Any] = (
            {"text": text} if self.old or kind == DOMAIN else {"textId": self.string(text)}
        )
        self.add(
            "NVTX_EVENTS", start=start, end=end, eventType=kind, globalTid=global_id(pid, tid),
            domainId=domain, binaryData=payload,
            endGlobalTid=None if end_tid is None else global_id(pid, end_tid), **said,
        )  # fmt: skip

    def os_call(self, start: int, end: int, name: str, *, tid: int = TID) -> None:
        self.add(
            "OSRT_API", start=start, end=end, eventClass=27, globalTid=global_id(PID, tid),
            nameId=self.string(name), returnValue=0, callchainId=0,
        )  # fmt: skip

    def device(
        self,
        number: int,
        name: str,
        *,
        cuda: int | None = None,
        pid: int = PID,
        memory: int = 80 << 30,
    ) -> None:
        self.add(
            "TARGET_INFO_GPU", vmId=0, id=number, name=name, totalMemory=memory, smCount=132,
            threadsPerWarp=32, computeMajor=9, computeMinor=0,
        )  # fmt: skip
        self.add(
            "TARGET_INFO_CUDA_DEVICE",
            gpuId=number,
            cudaId=number if cuda is None else cuda,
            pid=pid,
        )

    def close(self) -> Path:
        self.connection.commit()
        self.connection.close()
        return self.path


def add_nccl_schemas(export: Export) -> None:
    """As NCCL registers them (nvtx_payload_schemas.h): the first field's offset is not written."""
    rows = [
        (INIT_SCHEMA, 0, 18, "NCCL communicator ID", None),
        (INIT_SCHEMA, 1, 5, "No. of ranks", 8),
        (INIT_SCHEMA, 2, 5, "Rank", 12),
        (INIT_SCHEMA, 3, 5, "CUDA device", 16),
        (REDUCE_SCHEMA, 0, 18, "NCCL communicator ID", None),
        (REDUCE_SCHEMA, 1, 22, "Message size [bytes]", 8),
    ]
    for schema, index, kind, name, offset in rows:
        export.add(
            "NVTX_PAYLOAD_SCHEMA_ENTRIES",
            domainId=NCCL_DOMAIN,
            schemaId=schema,
            idx=index,
            type=kind,
            name=name,
            offset=offset,
        )
    export.range(0, None, "NCCL", kind=DOMAIN, domain=NCCL_DOMAIN)


def init_payload(communicator: int, ranks: int, rank: int) -> bytes:
    return struct.pack(
        "<QQQQQiiii", NCCL_DOMAIN, INIT_SCHEMA, 24, 56, communicator, ranks, rank, 0, 0
    )


def call_payload(communicator: int, size: int) -> bytes:
    return struct.pack("<QQQQQQ", NCCL_DOMAIN, REDUCE_SCHEMA, 16, 48, communicator, size)


def write_export(trace: Trace, path: Path, *, old: bool = False) -> Path:
    """What nsys would have recorded of the same run: device work, calls, and ranges as emit_nvtx
    pushes them."""
    export = Export(path, old=old)
    shift = -int(trace.start_ns.min()) if len(trace) else 0
    _write_trace(export, trace, PID, shift)
    return export.close()


def write_job(traces: Sequence[Trace], path: Path) -> Path:
    """The ranks of one machine under one `nsys profile`: processes PID, PID + 1, ... on one
    clock."""
    export = Export(path)
    first = min(trace.meta.base_ns + int(trace.start_ns.min()) for trace in traces)
    for rank, trace in enumerate(traces):
        _write_trace(export, trace, PID + rank, trace.meta.base_ns - first)
    return export.close()


def _write_trace(export: Export, trace: Trace, pid: int, shift: int) -> None:
    for device in trace.meta.devices:
        export.add(
            "TARGET_INFO_GPU", vmId=0, id=device.index, name=device.name,
            totalMemory=device.memory_bytes, smCount=device.num_sms,
            threadsPerWarp=device.warp_size, computeMajor=(device.compute_capability or (0, 0))[0],
            computeMinor=(device.compute_capability or (0, 0))[1],
        )  # fmt: skip
    threads: dict[int, int] = {}
    for at in range(len(trace)):
        _write_event(export, trace, at, pid, shift, threads)


def _write_event(
    export: Export, trace: Trace, at: int, pid: int, shift: int, threads: dict[int, int]
) -> None:
    kind, name = Kind(int(trace.kind[at])), trace.names[trace.name[at]]
    start = int(trace.start_ns[at]) + shift
    end = start + int(trace.dur_ns[at])
    correlation = int(trace.correlation[at])
    place: dict[str, Any] = {
        "stream": int(trace.stream[at]),
        "device": int(trace.device[at]),
        "pid": pid,
    }
    tid = threads.setdefault(int(trace.thread[at]), TID + len(threads))
    detail = trace.details[trace.detail[at]] if trace.detail[at] != NONE else None
    if kind == Kind.KERNEL:
        assert isinstance(detail, Launch)
        export.kernel(
            start, end, correlation, name, **place, grid=detail.grid or (1, 1, 1),
            block=detail.block or (1, 1, 1), registers=detail.registers or 0,
            shared=detail.shared_bytes or 0,
        )  # fmt: skip
    elif kind == Kind.MEMCPY:
        word, source, target = _copy_words(name)
        export.copy(
            start,
            end,
            correlation,
            int(trace.size_bytes[at]),
            COPIES.index(word),
            source,
            target,
            **place,
        )
    elif kind == Kind.MEMSET:
        memory = MEMORY.index(name.removeprefix("Memset (").removesuffix(")"))
        export.fill(start, end, correlation, int(trace.size_bytes[at]), memory, **place)
    elif kind == Kind.RUNTIME:
        version = CALL_VERSION if name.startswith("cuda") else ""
        export.call(start, end, correlation, name + version, tid=tid, pid=pid)
    elif kind in (Kind.OP, Kind.MARK):
        export.range(start, end, _range_text(trace, at, kind, name, detail), tid=tid, pid=pid)
    elif kind == Kind.OVERHEAD and not name.startswith("PyTorch Profiler"):
        export.add(
            "PROFILER_OVERHEAD",
            start=start,
            end=end,
            globalTid=global_id(pid, tid),
            nameId=export.string(name),
        )


def _copy_words(name: str) -> tuple[str, int, int]:
    word, _, memory = name.removeprefix("Memcpy ").removesuffix(")").partition(" (")
    source, _, target = memory.partition(" -> ")
    return word, MEMORY.index(source), MEMORY.index(target)


def _range_text(trace: Trace, at: int, kind: Kind, name: str, detail: object) -> str:
    """torch/csrc/profiler/util.cpp, getNvtxStr: `name, seq = 3, op_id = 5, sizes = [[2, 2]]`."""
    if kind == Kind.MARK:
        return name
    text = name if trace.sequence[at] < 0 else f"{name}, seq = {trace.sequence[at]}"
    text += f", op_id = {at + 1}"
    return (
        f"{text}, sizes = {detail.dims}" if isinstance(detail, OpInputs) and detail.dims else text
    )
