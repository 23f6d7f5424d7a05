"""Builds small traces by hand: `trace_of(op(...), kernel(...), ...)`. Times in nanoseconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from stepscope.core.trace import (
    NONE,
    CollectiveArgs,
    Detail,
    Kind,
    OpInputs,
    Thread,
    Trace,
    TraceMeta,
)

MAIN = "main"


@dataclass(frozen=True, kw_only=True)
class Event:
    kind: Kind
    name: str
    start: int
    end: int
    thread: str = MAIN
    device: int = NONE
    stream: int = NONE
    correlation: int = NONE
    external: int = NONE
    sequence: int = NONE
    fwd_thread: int = NONE
    size: int = NONE
    detail: Detail = None
    collective: CollectiveArgs | None = None


def op(name: str, start: int, end: int, **more: Any) -> Event:
    return Event(kind=Kind.OP, name=name, start=start, end=end, **more)


def mark(name: str, start: int, end: int, **more: Any) -> Event:
    return Event(kind=Kind.MARK, name=name, start=start, end=end, **more)


def python(name: str, start: int, end: int, **more: Any) -> Event:
    return Event(kind=Kind.PYTHON, name=name, start=start, end=end, **more)


def call(name: str, start: int, end: int, correlation: int = NONE, **more: Any) -> Event:
    return Event(
        kind=Kind.RUNTIME, name=name, start=start, end=end, correlation=correlation, **more
    )


def kernel(
    name: str, start: int, end: int, correlation: int = NONE, stream: int = 7, **more: Any
) -> Event:
    return Event(
        kind=Kind.KERNEL,
        name=name,
        start=start,
        end=end,
        correlation=correlation,
        stream=stream,
        device=0,
        thread=f"s{stream}",
        **more,
    )


def copy(
    name: str, start: int, end: int, correlation: int = NONE, stream: int = 7, **more: Any
) -> Event:
    return Event(
        kind=Kind.MEMCPY,
        name=name,
        start=start,
        end=end,
        correlation=correlation,
        stream=stream,
        device=0,
        thread=f"s{stream}",
        **more,
    )


def inputs(dims: str, types: str, concrete: str | None = None) -> OpInputs:
    return OpInputs(dims=dims, types=types, strides=None, concrete=concrete)


def trace_of(*events: Event, meta: TraceMeta | None = None) -> Trace:
    """A Trace of these events, in any order."""
    rows = sorted(events, key=lambda e: (e.start, -(e.end - e.start)))
    names = list(dict.fromkeys(e.name for e in rows))
    threads = list(dict.fromkeys(e.thread for e in rows))
    details = [e.detail for e in rows if e.detail is not None]
    collectives = list(dict.fromkeys(e.collective for e in rows if e.collective is not None))

    def column(values: list[int], dtype: Any = np.int64) -> Any:
        return np.array(values, dtype)

    trace = Trace(
        start_ns=column([e.start for e in rows]),
        dur_ns=column([e.end - e.start for e in rows]),
        kind=column([e.kind for e in rows], np.uint8),
        name=column([names.index(e.name) for e in rows], np.int32),
        thread=column([threads.index(e.thread) for e in rows], np.int32),
        device=column([e.device for e in rows], np.int16),
        stream=column([e.stream for e in rows]),
        correlation=column([e.correlation for e in rows]),
        external=column([e.external for e in rows]),
        sequence=column([e.sequence for e in rows]),
        fwd_thread=column([e.fwd_thread for e in rows]),
        size_bytes=column([e.size for e in rows]),
        detail=column(
            [NONE if e.detail is None else details.index(e.detail) for e in rows], np.int32
        ),
        collective=column(
            [NONE if e.collective is None else collectives.index(e.collective) for e in rows],
            np.int32,
        ),
        names=tuple(names),
        threads=tuple(Thread(pid="1", tid=t) for t in threads),
        details=tuple(details),
        collectives=tuple(collectives),
        meta=meta or TraceMeta(path="built"),
        num_raw_events=len(rows),
    )
    trace.self_check()
    return trace


def index_of(trace: Trace, name: str, occurrence: int = 0) -> int:
    """Where the n-th event of this name stands."""
    return [i for i, code in enumerate(trace.name.tolist()) if trace.names[code] == name][
        occurrence
    ]
