"""From scanned columns to one Trace: concatenated, sorted, tables decoded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.core.trace import (
    CollectiveArgs,
    Detail,
    Int64,
    Launch,
    MemoryEvents,
    OpInputs,
    Thread,
    Trace,
    TraceMeta,
)
from stepscope.protocol.untrusted import parse_json
from stepscope.readers.kineto.event_decoder import SEPARATOR, Scanner
from stepscope.readers.trace.categories import LONGEST_NUMBER
from stepscope.readers.trace.columns import COLUMN_DTYPES, Codes, Columns

LONGEST_NAME = 1 << 16
"""Letters of an event's name: templates of kernels have some thousand. Dozens of patterns are tried
on each name, which takes seconds where one has millions."""


def assemble(
    chunks: list[Columns], scanner: Scanner, meta: TraceMeta, notes: Sequence[str]
) -> Trace:
    """One Trace of all chunks. `chunks` is emptied on the way: both never stand in memory whole."""
    memory = [c.memory for c in chunks if c.memory is not None]
    columns = {name: _joined(name, chunks) for name in ("start_ns", "dur_ns")}
    order = _time_order(columns["start_ns"], columns["dur_ns"])
    spare: dict[np.dtype[Any], NDArray[Any]] = {}
    for name in Trace.COLUMNS:
        column = columns.pop(name) if name in columns else _joined(name, chunks)
        if order is not None:
            # To where the column before stood: memory that is there need not be made.
            ordered = spare.get(column.dtype)
            ordered = np.empty_like(column) if ordered is None else ordered
            column.take(order, out=ordered, mode="clip")
            spare[column.dtype], column = column, ordered
        columns[name] = column
    chunks.clear()
    names, num_cut = _cut_names(scanner.names.table(), columns)
    if num_cut:
        notes = [*notes, f"{num_cut} name(s) longer than {LONGEST_NAME} letters were cut there"]
    return Trace(
        **columns,
        names=names,
        threads=tuple(_thread(key, scanner) for key in scanner.threads.table()),
        details=tuple(_detail(key) for key in scanner.details.table()),
        collectives=tuple(_collective(key) for key in scanner.collectives.table()),
        memory=_memory(memory),
        meta=meta,
        num_raw_events=scanner.tally.raw_events,
        unknown=dict(sorted(scanner.tally.unknown.items())),
        notes=tuple(notes),
    )


def _joined(name: str, chunks: Sequence[Columns]) -> NDArray[Any]:
    """One column of all chunks, which do not have it any more."""
    parts = [getattr(chunk, name) for chunk in chunks]
    for chunk in chunks:
        setattr(chunk, name, None)
    if not parts:
        return np.empty(0, COLUMN_DTYPES[name])
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _time_order(start: Int64, dur: Int64) -> Int64 | None:
    """The order by start and, at one start, longest first; None when they stand so already."""
    later = np.diff(start)
    if bool((later >= 0).all()) and bool((np.diff(dur)[later == 0] <= 0).all()):
        return None
    # Few events share a start: a sort by start alone, quick on what is nearly in order, and then
    # those few among themselves.
    order = np.argsort(start, kind="stable")
    is_tied = np.zeros(len(start) + 1, np.bool_)
    is_tied[1:-1] = np.diff(start[order]) == 0
    positions = np.flatnonzero(is_tied[1:] | is_tied[:-1])
    tied = order[positions]
    order[positions] = tied[np.lexsort((-dur[tied], start[tied]))]
    return order


def _cut_names(table: list[str], columns: dict[str, NDArray[Any]]) -> tuple[tuple[str, ...], int]:
    """The names, none longer than LONGEST_NAME, and how many were; those that begin alike become
    one, in the column too."""
    num_cut = sum(len(name) > LONGEST_NAME for name in table)
    if not num_cut:
        return tuple(table), 0
    codes: Codes[str] = Codes()
    renumbered = np.array([codes[name[:LONGEST_NAME]] for name in table], columns["name"].dtype)
    columns["name"] = renumbered[columns["name"]]
    return tuple(codes.table()), num_cut


def _thread(key: tuple[int | str, int | str], scanner: Scanner) -> Thread:
    pid, tid = str(key[0]), str(key[1])
    return Thread(pid=pid, tid=tid, name=scanner.thread_names.get((pid, tid)))


def _memory(tables: list[NDArray[np.int64]]) -> MemoryEvents | None:
    if not tables:
        return None
    table = np.concatenate(tables)
    table = table[np.argsort(table[:, 0], kind="stable")]
    small = np.clip(table[:, 5:7], -1, np.iinfo(np.int16).max).astype(np.int16)
    return MemoryEvents(
        time_ns=table[:, 0].copy(),
        size_bytes=table[:, 1].copy(),
        address=table[:, 2].copy(),
        allocated_bytes=table[:, 3].copy(),
        reserved_bytes=table[:, 4].copy(),
        device_type=small[:, 0].copy(),
        device=small[:, 1].copy(),
    )


def _detail(key: bytes) -> Detail:
    parts = key.split(SEPARATOR)
    if len(parts) == 4:
        types, dims, strides, concrete = (
            p.decode("utf-8", "replace") if p else None for p in parts
        )
        return OpInputs(dims=dims, types=types, strides=strides, concrete=concrete)
    grid, block, registers, shared, occupancy = map(_value, parts)
    return Launch(
        grid=_int_tuple(grid),
        block=_int_tuple(block),
        registers=_int(registers),
        shared_bytes=_int(shared),
        occupancy_pct=float(occupancy)
        if isinstance(occupancy, int | float) and 0 <= occupancy <= 100
        else None,
    )


def _collective(key: tuple[bytes, ...]) -> CollectiveArgs:
    (
        name,
        group,
        desc,
        ranks,
        size,
        dtype,
        n_in,
        n_out,
        in_split,
        out_split,
        sequence,
        group_id,
        src,
        dst,
    ) = map(_value, key)
    return CollectiveArgs(
        name=_str(name),
        group=_str(group) if group is not None else _str(group_id),
        description=_str(desc),
        ranks=_str(ranks),
        group_size=_int(size),
        dtype=_str(dtype),
        in_elements=_int(n_in),
        out_elements=_int(n_out),
        in_split=_str(in_split),
        out_split=_str(out_split),
        sequence=_int(sequence),
        peer=_int(dst if src is None else src),
    )


def _value(text: bytes) -> Any:
    if not text:
        return None
    try:
        return parse_json(text)
    except ValueError:
        return None


def _int(value: Any) -> int | None:
    """A whole number of at most 64 bits, also where it is written as text or as a decimal."""
    if not isinstance(value, int | float | str) or (
        isinstance(value, str) and len(value) > LONGEST_NUMBER
    ):
        return None
    try:
        number = int(value)
    except (ValueError, OverflowError):
        return None
    return number if abs(number) < 2**63 else None


def _str(value: Any) -> str | None:
    return value if isinstance(value, str) or value is None else json.dumps(value)


def _int_tuple(value: Any) -> tuple[int, ...] | None:
    if isinstance(value, list) and all(isinstance(v, int) and abs(v) < 2**63 for v in value):
        return tuple(value)
    return None
