"""A Trace kept as compressed columns beside the file it was read from, so that the next reading takes a fraction of a second.

    magic, format version, schema, the source's size and mtime, length of the table part     a fixed head
    the table part: names, threads, details, meta, and what each column is                  JSON, zstd
    the columns, one after the other                                                        zstd each

A column is kept as its first differences where that is smaller in range, in the narrowest integers that hold it. The file is not
trusted: everything it says is checked before memory is taken for it, and whatever does not fit makes it as good as absent.
Writing it may fail; that is nobody's problem.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import zstandard
from numpy.typing import NDArray

from stepscope.core.trace import MemoryEvents, Trace
from stepscope.readers.cache_tables import Column, Tables, is_sound, tables_of, trace_of
from stepscope.readers.formats import BY_NAME
from stepscope.readers.remote import RemotePath
from stepscope.readers.source import Source
from stepscope.readers.stream import EXPANSION_FREE_BYTES, MAX_EXPANSION
from stepscope.untrusted import open_regular

SUFFIX = ".stepscope-cache"
FOLDER_VARIABLE = "STEPSCOPE_CACHE_DIR"
MAGIC = b"STEPSCOPE-CACHE\x00"
FORMAT = 1
"""Of the file's layout."""
SCHEMA = 3
"""Of what stands in it: to be raised with every change to Trace or to what the reader puts in it."""
HEAD = struct.Struct("<16sIIQqQQ")
SMALLEST_EVENT_BYTES = 16
LEVEL = 1
DTYPES = {"i1": np.int8, "i2": np.int16, "i4": np.int32, "i8": np.int64}


def load(source: Source) -> Trace | None:
    """The source's Trace from its cache; None when there is none, or it is stale, or damaged."""
    for path in _places(source):
        with contextlib.suppress(OSError, ValueError, struct.error, msgspec.MsgspecError, zstandard.ZstdError, RecursionError):
            trace = _load(path, source)
            if trace is not None:
                return trace
    return None


def store(source: Source, trace: Trace) -> None:
    """Keep the Trace for next time, beside the file or else in the cache folder; when neither can be written, not at all."""
    try:
        identity = _identity(source)
        parts = _parts(trace)
        table = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True).compress(msgspec.json.encode(parts[0]))
    except (OSError, ValueError, TypeError, msgspec.MsgspecError, RecursionError):
        return
    head = HEAD.pack(MAGIC, FORMAT, SCHEMA, *identity, len(table), sum(map(len, parts[1])))
    for path in _places(source):
        with contextlib.suppress(OSError):
            _write(path, [head, table, *parts[1]])
            return


def _places(source: Source) -> Iterator[Path]:
    """Where the cache may lie, the first choice first."""
    if source.archive is None and isinstance(source.path, Path):
        part = "" if source.part is None else f".{source.part}"
        yield source.path.with_name(source.path.name + part + SUFFIX)
    folder = os.environ.get(FOLDER_VARIABLE)
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    stem = source.stem
    where = stem.url if isinstance(stem, RemotePath) else os.path.realpath(stem)
    place = f"{where}\x00{source.offset}\x00{source.length}" + ("" if source.part is None else f"\x00{source.part}")
    name = hashlib.sha256(place.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    yield Path(folder or os.path.join(home, "stepscope"), name + SUFFIX)


def _identity(source: Source) -> tuple[int, int]:
    """Size and time of what was read; ValueError where nothing tells when it changes."""
    stem = source.stem
    if isinstance(stem, RemotePath):
        if stem.version is None:
            raise ValueError("the store tells no version")
        return stem.size, stem.version
    states = [stem.stat(), *(path.stat() for path in _companions(source))]
    return sum(state.st_size for state in states), max(state.st_mtime_ns for state in states)


def _companions(source: Source) -> list[Path]:
    """Files that are read along with the source's own."""
    if source.format is None or source.archive is not None or not isinstance(source.path, Path):
        return []
    found = getattr(BY_NAME[source.format].reader(), "companions", None)
    return [] if found is None else list(found(source.path))


def _write(path: Path, parts: list[bytes]) -> None:
    """The whole file or nothing: another process may read it, or write it too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=".", suffix=SUFFIX, dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines(parts)
        os.replace(name, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def _parts(trace: Trace) -> tuple[Tables, list[bytes]]:
    compressor = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True)
    arrays = {name: getattr(trace, name) for name in Trace.COLUMNS}
    if trace.memory is not None:
        arrays |= {f"memory.{name}": getattr(trace.memory, name) for name in MemoryEvents.__slots__}
    columns, blobs = [], []
    for name, array in arrays.items():
        delta, narrow = _packed(array)
        blobs.append(compressor.compress(narrow.tobytes()))
        columns.append(Column(name=name, dtype=f"i{narrow.itemsize}", delta=delta, length=len(narrow), stored=len(blobs[-1])))
    return tables_of(trace, columns), blobs


def _packed(array: NDArray[Any]) -> tuple[bool, NDArray[Any]]:
    """The column, or its first differences, in the narrowest integers that hold it; and which of the two."""
    values = array.astype(np.int64)
    plain = _narrow(values)
    if plain.itemsize == 1 or not len(values):
        return False, plain
    # Differences wrap around like the sums that undo them.
    steps = _narrow(np.diff(values, prepend=np.int64(0)))
    return (True, steps) if steps.itemsize < plain.itemsize else (False, plain)


def _narrow(values: NDArray[np.int64]) -> NDArray[Any]:
    low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
    for dtype in DTYPES.values():
        if np.iinfo(dtype).min <= low and high <= np.iinfo(dtype).max:
            return values.astype(dtype)
    return values


def _load(path: Path, source: Source) -> Trace | None:
    if not path.is_file():
        return None
    with open_regular(path) as file:
        head = file.read(HEAD.size)
        magic, version, schema, size, mtime_ns, table_bytes, column_bytes = HEAD.unpack(head)
        if (magic, version, schema) != (MAGIC, FORMAT, SCHEMA) or (size, mtime_ns) != _identity(source):
            return None
        if os.fstat(file.fileno()).st_size != HEAD.size + table_bytes + column_bytes:
            return None
        data = memoryview(file.read())
    most_text = size * MAX_EXPANSION + EXPANSION_FREE_BYTES
    table = _decompressed(data[:table_bytes], most_text)
    tables = msgspec.json.decode(table, type=Tables)
    arrays = _arrays(tables, data[table_bytes:], most_text // SMALLEST_EVENT_BYTES)
    if arrays is None:
        return None
    trace = trace_of(tables, arrays)
    return _relabelled(trace, source) if trace is not None and is_sound(trace) else None


def _arrays(tables: Tables, data: memoryview, most_rows: int) -> dict[str, NDArray[Any]] | None:
    arrays: dict[str, NDArray[Any]] = {}
    for column in tables.columns:
        if column.dtype not in DTYPES or not 0 <= column.length <= most_rows or not 0 <= column.stored <= len(data):
            return None
        dtype = np.dtype(DTYPES[column.dtype])
        raw = _decompressed(data[: column.stored], column.length * dtype.itemsize)
        data = data[column.stored :]
        values = np.frombuffer(raw, dtype)
        if len(values) != column.length:
            return None
        arrays[column.name] = np.cumsum(values, dtype=np.int64) if column.delta else values
    return arrays


def _decompressed(data: memoryview, limit: int) -> bytes:
    """The frame's content; ZstdError when it says, or turns out, to be larger than `limit`."""
    told = zstandard.frame_content_size(data)
    if told < 0 or told > limit:
        raise zstandard.ZstdError("its size is not what the cache says")
    return zstandard.ZstdDecompressor().decompress(data, max_output_size=max(told, 1))


def _relabelled(trace: Trace, source: Source) -> Trace:
    """With what the source says now: its label, and its rank unless the file itself told it."""
    meta = replace(trace.meta, path=source.label)
    if meta.rank_source != "distributedInfo":
        meta = replace(meta, rank=source.rank, rank_source=source.rank_source)
    return replace(trace, meta=meta)
