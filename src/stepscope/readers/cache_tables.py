"""What a cached Trace has besides its columns, as one JSON document; and the check of what was read
back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from stepscope.core.trace import (
    NONE,
    CollectiveArgs,
    Detail,
    Kind,
    Launch,
    MemoryEvents,
    OpInputs,
    Thread,
    Trace,
    TraceMeta,
)
from stepscope.readers.trace.categories import LIMIT_NS
from stepscope.readers.trace.columns import COLUMN_DTYPES

DTYPES = COLUMN_DTYPES | {"memory.device_type": np.int16, "memory.device": np.int16}
"""Types of columns; those of the allocator's events that are not here are int64."""


class Column(Struct, array_like=True):
    """What stands in the file for one column."""

    name: str
    dtype: str
    delta: bool
    length: int
    stored: int


class CachedDetail(Struct, array_like=True):
    """A Detail with its type beside it: exactly one of the two is there, or none."""

    op: OpInputs | None = None
    launch: Launch | None = None


class Tables(Struct):
    """Everything of a Trace but its columns."""

    columns: list[Column]
    names: list[str]
    threads: list[Thread]
    details: list[CachedDetail]
    collectives: list[CollectiveArgs]
    meta: TraceMeta
    num_raw_events: int
    unknown: dict[str, int]
    notes: list[str]


def tables_of(trace: Trace, columns: list[Column]) -> Tables:
    """The tables of `trace`, whose columns are stored as `columns` say."""
    return Tables(
        columns=columns,
        names=list(trace.names),
        threads=list(trace.threads),
        details=[_cached(detail) for detail in trace.details],
        collectives=list(trace.collectives),
        meta=trace.meta,
        num_raw_events=trace.num_raw_events,
        unknown=dict(trace.unknown),
        notes=list(trace.notes),
    )


def trace_of(tables: Tables, arrays: Mapping[str, NDArray[Any]]) -> Trace | None:
    """The Trace of these tables and columns; None when columns are missing or unequal, or do not
    fit their types."""
    wanted = list(Trace.COLUMNS)
    memory_names = [
        f"memory.{name}" for name in MemoryEvents.__struct_fields__ if "memory.time_ns" in arrays
    ]
    wanted += memory_names
    typed: dict[str, NDArray[Any]] = {}
    for name in wanted:
        if name not in arrays:
            return None
        typed[name] = arrays[name].astype(DTYPES.get(name, np.int64), copy=False)
        if not _is_held(arrays[name], typed[name]):
            return None
    memory = {name.removeprefix("memory."): typed.pop(name) for name in memory_names}
    return Trace(
        **typed,
        names=tuple(tables.names),
        threads=tuple(tables.threads),
        details=tuple(d.op or d.launch for d in tables.details),
        collectives=tuple(tables.collectives),
        memory=MemoryEvents(**memory) if memory else None,
        meta=tables.meta,
        num_raw_events=tables.num_raw_events,
        unknown=tables.unknown,
        notes=tuple(tables.notes),
    )


def is_sound(trace: Trace) -> bool:
    """Whether the Trace is what a reader promises: what `Trace.self_check` asserts, and that its
    kinds and details agree."""
    n = len(trace)
    if any(len(getattr(trace, name)) != n for name in Trace.COLUMNS) or trace.num_raw_events < 0:
        return False
    if (
        trace.memory is not None
        and len({len(getattr(trace.memory, name)) for name in MemoryEvents.__struct_fields__}) != 1
    ):
        return False
    if n == 0:
        return True
    later = np.diff(trace.start_ns)
    sorted_well = bool((later >= 0).all()) and not bool(
        (np.diff(trace.dur_ns)[later == 0] > 0).any()
    )
    ranges: list[tuple[NDArray[Any], int, int]] = [
        (trace.name, 0, len(trace.names)),
        (trace.thread, 0, len(trace.threads)),
        (trace.detail, NONE, len(trace.details)),
        (trace.collective, NONE, len(trace.collectives)),
        (trace.kind, 0, len(Kind)),
        (trace.device, NONE, 2**15),
        (trace.start_ns, 1 - LIMIT_NS, LIMIT_NS),
        (trace.dur_ns, 0, LIMIT_NS),
    ]
    in_range = all(
        int(values.min()) >= low and int(values.max()) < high for values, low, high in ranges
    )
    return sorted_well and in_range and _details_agree(trace)


def _details_agree(trace: Trace) -> bool:
    """Whether every detail is of the type that its event's kind has."""
    types = np.array([_TYPES[type(detail)] for detail in trace.details] + [NONE], np.int8)
    wanted = np.full(256, NONE, np.int8)
    wanted[[Kind.OP, Kind.MARK]] = _TYPES[OpInputs]
    wanted[Kind.KERNEL] = _TYPES[Launch]
    has = trace.detail >= 0
    return bool((types[trace.detail[has]] == wanted[trace.kind[has]]).all())


_TYPES: dict[type, int] = {OpInputs: 0, Launch: 1, type(None): NONE}


def _cached(detail: Detail) -> CachedDetail:
    return CachedDetail(
        op=detail if isinstance(detail, OpInputs) else None,
        launch=detail if isinstance(detail, Launch) else None,
    )


def _is_held(raw: NDArray[Any], typed: NDArray[Any]) -> bool:
    """Whether the type of `typed` holds what stands in `raw`."""
    if len(raw) == 0 or np.can_cast(raw.dtype, typed.dtype):
        return True
    return int(typed.min()) == int(raw.min()) and int(typed.max()) == int(raw.max())
