"""Trace files as text: what a recorder would have written, for tests that read."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stepscope.core.trace import Trace
from stepscope.readers.format import Source
from stepscope.readers.kineto.trace import read as read_kineto

Event = dict[str, Any]


def event(**fields: Any) -> Event:
    """A complete event; a field given as None is left out."""
    whole: Event = {
        "ph": "X",
        "cat": "cpu_op",
        "name": "aten::mm",
        "pid": 10,
        "tid": 20,
        "ts": 1,
        "dur": 2,
    } | fields
    return {key: value for key, value in whole.items() if value is not None}


def kernel(correlation: int, ts: float, dur: float, name: str = "gemm", **args: Any) -> Event:
    given = {
        "device": 0,
        "stream": 7,
        "correlation": correlation,
        "grid": [1, 2, 3],
        "block": [32, 1, 1],
        "External id": 5,
    } | args
    return event(cat="kernel", name=name, pid=0, tid=7, ts=ts, dur=dur, args=given)


def step_events() -> list[Event]:
    """A little of everything that a training step records."""
    shapes = {
        "Input Dims": [[2, 3], []],
        "Input type": ["float", "Scalar"],
        "Input Strides": [[3, 1], []],
        "Concrete Inputs": ["", "1"],
    }
    nccl = {
        "Collective name": "allreduce",
        "Process Group Name": "0",
        "In msg nelems": 4,
        "Group size": 2,
        "dtype": "Float",
        "Seq": 3,
    }
    memory = {
        "Bytes": 512,
        "Addr": 140000,
        "Total Allocated": 1024,
        "Total Reserved": 2048,
        "Device Type": 1,
        "Device Id": 0,
    }
    return [
        {
            "ph": "M",
            "name": "process_name",
            "pid": 10,
            "tid": 0,
            "ts": 0,
            "args": {"name": "python"},
        },
        {
            "ph": "M",
            "name": "thread_name",
            "pid": 10,
            "tid": 20,
            "ts": 0,
            "args": {"name": 'thread "20"'},
        },
        event(
            name="ProfilerStep#1",
            cat="user_annotation",
            ts=0.5,
            dur=100.25,
            args={"External id": 1},
        ),
        event(
            ts=1.125,
            dur=9.5,
            args={"External id": 5, "Sequence number": 8, "Fwd thread id": 0} | shapes,
        ),
        event(
            cat="python_function",
            name="train.py(3): step",
            ts=2,
            dur=8,
            args={"Python id": 1, "Python parent id": None},
        ),
        event(
            cat="cuda_runtime",
            name="cudaLaunchKernel",
            ts=3.001,
            dur=4.0,
            args={"correlation": 77, "External id": 5},
        ),
        {"ph": "s", "id": 77, "pid": 10, "tid": 20, "ts": 3.001, "cat": "ac2g", "name": "ac2g"},
        {
            "ph": "f",
            "id": 77,
            "pid": 0,
            "tid": 7,
            "ts": 9.0,
            "cat": "ac2g",
            "name": "ac2g",
            "bp": "e",
        },
        kernel(77, 9.0, 20.125),
        kernel(78, 30.0, 10.0, "ncclDevKernel_AllReduce", **nccl),
        event(
            cat="gpu_memcpy",
            name="Memcpy HtoD",
            pid=0,
            tid=7,
            ts=41,
            dur=1,
            args={"device": 0, "stream": 7, "bytes": 4096},
        ),
        event(
            cat="cuda_sync",
            name="Stream Sync",
            pid=0,
            tid=7,
            ts=42,
            dur=3,
            args={"cuda_sync_kind": "Stream Sync", "stream": 7},
        ),
        {
            "ph": "i",
            "s": "t",
            "cat": "cpu_instant_event",
            "name": "[memory]",
            "pid": 10,
            "tid": 20,
            "ts": 50.5,
            "args": memory,
        },
        event(
            cat="Trace",
            name="PyTorch Profiler (0)",
            pid="Spans",
            tid="PyTorch Profiler",
            ts=0,
            dur=110,
        ),
        {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": 120},
    ]


HEADER: Mapping[str, Any] = {
    "schemaVersion": 1,
    "deviceProperties": [{
        "id": 0, "name": "H100", "totalGlobalMem": 2**36, "numSms": 132,
        "computeMajor": 9, "computeMinor": 0,
    }],
    "distributedInfo": {
        "backend": "nccl", "rank": 3, "world_size": 8,
        "pg_config": [{"pg_name": "0", "ranks": [0, 1]}],
    },
    "baseTimeNanoseconds": 1790857026000000000,
}  # fmt: skip


def trace_text(
    events: Sequence[Any] | None = None,
    header: Mapping[str, Any] = HEADER,
    indent: int | None = None,
    **trailer: Any,
) -> str:
    """A whole file. `trailer` are the fields after the events."""
    whole = {**header, "traceEvents": step_events() if events is None else events, **trailer}
    return json.dumps(whole, indent=indent)


def write(path: Path, text: str | bytes) -> Path:
    """The text in a file, gzipped where the name says so."""
    data = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def source(path: Path) -> Source:
    return Source(path=path, label=path.name)


def read(path: Path, text: str | bytes) -> Trace:
    """The Trace of that text, checked."""
    trace = read_kineto(source(write(path, text)))
    trace.self_check()
    return trace


def tar_bytes(members: Mapping[str, bytes], mode: str = "w") -> bytes:
    """An archive with these members."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:  # type: ignore[call-overload]
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def rows(trace: Trace) -> list[tuple[Any, ...]]:
    """Every event with its codes resolved, in an order that does not depend on how the file was
    cut."""
    tables = {
        "name": trace.names,
        "thread": trace.threads,
        "detail": (*trace.details, None),
        "collective": (*trace.collectives, None),
    }
    columns = [getattr(trace, name).tolist() for name in Trace.COLUMNS]
    resolved = [
        [tables[name][code] for code in column] if name in tables else column
        for name, column in zip(Trace.COLUMNS, columns, strict=True)
    ]
    return sorted(zip(*resolved, strict=True), key=repr)


def same(one: Trace, other: Trace) -> bool:
    """Whether two traces say the same."""
    fields = ("meta", "num_raw_events", "unknown")
    return rows(one) == rows(other) and all(
        getattr(one, name) == getattr(other, name) for name in fields
    )
