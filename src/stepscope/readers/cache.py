"""A Trace kept as compressed columns in the user's cache folder, so that the next reading takes a
fraction of a second.

    fixed head   magic, format version, schema, the source's size and identity, lengths
    JSON, zstd   the table part: names, threads, details, meta, and what each column is
    zstd each    the columns, one after the other

A column is kept as its first differences where that is smaller in range, in the narrowest integers
that hold it. Nothing is kept beside the trace: a folder that somebody passes on holds no cache that
we would take for ours. A cache that is not this user's own file is as good as absent; so is one
that does not fit: everything it says is checked before memory is taken for it. Writing it may fail;
that is nobody's problem.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import struct
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
import zstandard
from numpy.typing import NDArray

from stepscope.core.trace import MemoryEvents, Trace
from stepscope.readers.cache_tables import Column, Tables, is_sound, tables_of, trace_of
from stepscope.readers.detect import refuse_unknown
from stepscope.readers.format import KINETO, Progress, Source
from stepscope.readers.formats import BY_NAME
from stepscope.readers.remote import RemotePath
from stepscope.readers.stream import EXPANSION_FREE_BYTES, MAX_EXPANSION

SUFFIX = ".stepscope-cache"
FOLDER_VARIABLE = "STEPSCOPE_CACHE_DIR"
PART_PREFIX = ".part-"
PART = re.compile(re.escape(PART_PREFIX) + r"\w+" + re.escape(SUFFIX))
NAME = re.compile(r"[0-9a-f]{32}" + re.escape(SUFFIX))
MAGIC = b"STEPSCOPE-CACHE\x00"
FORMAT = 2
"""Version of the file's layout."""
SCHEMA = 6
"""Version of what stands in it: to be raised with every change to Trace or to what the reader puts
in it."""
HEAD = struct.Struct("<16sIIQ32sQQ")
SMALLEST_EVENT_BYTES = 16
LEVEL = 1
DTYPES = {"i1": np.int8, "i2": np.int16, "i4": np.int32, "i8": np.int64}
END_BYTES = 64 << 10
SAMPLE_BYTES = 4 << 10
NUM_SAMPLES = 30
"""Samples between a file's beginning and its end, evenly spread. A quarter of a megabyte is looked
at, whatever the file's size."""
MAX_BYTES = 4 << 30
"""Bytes of all caches together; those not used for longest go first."""
LOADED_NS = time.time_ns()
"""Time from when on the code on the disk may be another than the one that runs."""
ABANDONED_S = 24 * 3600
"""Seconds from when what a killed process left half written is removed."""


def load(source: Source, folder: Path | None = None) -> Trace | None:
    """The source's Trace from its cache; None when there is none, or it is stale, damaged, or not
    ours."""
    path = _cache_path(source, folder)
    if path is None:
        return None
    with contextlib.suppress(
        OSError, ValueError, struct.error, msgspec.MsgspecError, zstandard.ZstdError, RecursionError
    ):
        trace = _load(path, source)
        if trace is not None:
            with contextlib.suppress(OSError):
                os.utime(path)
        return trace
    return None


def identity(source: Source) -> tuple[int, bytes] | None:
    """What the source is now, for `store`; None where nothing tells when it changes."""
    with contextlib.suppress(OSError, ValueError):
        return _identity(source)
    return None


def store(
    source: Source,
    trace: Trace,
    before: tuple[int, bytes] | None = None,
    folder: Path | None = None,
) -> None:
    """Keep the Trace for next time; where the cache folder cannot be written, not at all. `before`:
    what the source was before it was read; one that has changed since is not kept, for nobody knows
    which of the two the Trace is of. `folder` is another than the user's own."""
    path = _cache_path(source, folder)
    if path is None:
        return
    try:
        size, digest = _identity(source)
        if before is not None and before != (size, digest):
            return
        parts = _parts(trace)
        table = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True).compress(
            msgspec.json.encode(parts[0])
        )
    except (OSError, ValueError, TypeError, msgspec.MsgspecError, RecursionError):
        return
    head = HEAD.pack(MAGIC, FORMAT, SCHEMA, size, digest, len(table), sum(map(len, parts[1])))
    write(path, [head, table, *parts[1]])


def cache_folder() -> Path | None:
    """The user's own; None where there is no home to keep it in."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder:
        return Path(folder)
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(home, "stepscope") if os.path.isabs(home) else None


def _cache_path(source: Source, folder: Path | None) -> Path | None:
    """Where the source's cache lies, in the user's folder unless another is given: a name made of
    where the source lies."""
    folder = folder or cache_folder()
    return None if folder is None else folder / file_name(place(source))


def place(source: Source) -> str:
    """Where the source lies, and which part of what lies there it is."""
    stem = source.stem
    where = stem.url if isinstance(stem, RemotePath) else os.path.realpath(stem)
    return "\x00".join(map(str, (where, source.offset, source.length, source.part, source.format)))


def file_name(key: str) -> str:
    """What a file of the cache folder is called whose content is found by this key."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()[:32] + SUFFIX


def _identity(source: Source) -> tuple[int, bytes]:
    """The size of what is read and a digest that tells it from all else; ValueError where nothing
    tells when it changes."""
    stem = source.stem
    if isinstance(stem, RemotePath):
        if stem.version is None:
            raise ValueError("the store tells no version")
        return stem.size, hashlib.sha256(f"{stem.size} {stem.version}".encode()).digest()
    digest = hashlib.sha256()
    total = 0
    for path in (stem, *_companions(source)):
        with path.open("rb") as file:
            state = os.fstat(file.fileno())
            total += state.st_size
            # A tool that sets a file's time back to what it was cannot set back when it did so.
            state_key = (path.name, state.st_size, state.st_mtime_ns, state.st_ctime_ns)
            digest.update(repr(state_key).encode("utf-8", "surrogateescape"))
            for start, length in _samples(state.st_size):
                file.seek(start)
                digest.update(file.read(length))
    return total, digest.digest()


def _samples(size: int) -> list[tuple[int, int]]:
    """Stretches of a file of this size that are looked at: its beginning, its end and some between;
    a small one whole."""
    if size <= 2 * END_BYTES + NUM_SAMPLES * SAMPLE_BYTES:
        return [(0, size)]
    room = size - 2 * END_BYTES - SAMPLE_BYTES
    between = [
        (END_BYTES + room * index // (NUM_SAMPLES - 1), SAMPLE_BYTES)
        for index in range(NUM_SAMPLES)
    ]
    return [(0, END_BYTES), *between, (size - END_BYTES, END_BYTES)]


def _companions(source: Source) -> list[Path]:
    """Files that are read along with the source's own."""
    if source.format is None or source.archive is not None or not isinstance(source.path, Path):
        return []
    companions = BY_NAME[source.format].reader().companions
    return [] if companions is None else list(companions(source.path))


def _trim(folder: Path) -> None:
    """Keep the folder bounded. Only files that we name so are ours to remove: the folder may hold
    others."""
    now_s = time.time()
    kept: list[tuple[float, int, str]] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.is_file(follow_symlinks=False):
                continue
            state = entry.stat(follow_symlinks=False)
            if NAME.fullmatch(entry.name):
                kept.append((state.st_mtime, state.st_size, entry.path))
            elif PART.fullmatch(entry.name) and now_s - state.st_mtime > ABANDONED_S:
                _remove(entry.path)
    total = sum(size for _, size, _ in kept)
    for _, size, path in sorted(kept):
        if total <= MAX_BYTES:
            return
        _remove(path)
        total -= size


def _remove(path: str) -> None:
    # Another process may have removed it first.
    with contextlib.suppress(OSError):
        os.unlink(path)


def write(path: Path, parts: list[bytes]) -> None:
    """Put a file into the cache folder; where that cannot be, not at all."""
    with contextlib.suppress(OSError):
        _write(path, parts)
        _trim(path.parent)


def _write(path: Path, parts: list[bytes]) -> None:
    """The whole file or nothing: another process may read it, or write it too."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, name = tempfile.mkstemp(prefix=PART_PREFIX, suffix=SUFFIX, dir=path.parent)
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
        arrays |= {
            f"memory.{name}": getattr(trace.memory, name) for name in MemoryEvents.__struct_fields__
        }
    columns, blobs = [], []
    for name, array in arrays.items():
        delta, narrow = _packed(array)
        blobs.append(compressor.compress(narrow.tobytes()))
        columns.append(
            Column(
                name=name,
                dtype=f"i{narrow.itemsize}",
                delta=delta,
                length=len(narrow),
                stored=len(blobs[-1]),
            )
        )
    return tables_of(trace, columns), blobs


def _packed(array: NDArray[Any]) -> tuple[bool, NDArray[Any]]:
    """The column, or its first differences, in the narrowest integers that hold it; and which of
    the two."""
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


def open_own(path: Path) -> BinaryIO:
    """A file of the cache folder. ValueError where it is not this user's own."""
    # Neither a link nor a pipe is a cache of ours, and a pipe would be waited for.
    flags = (
        os.O_RDONLY
        | getattr(os, "O_NOFOLLOW", 0)
        | getattr(os, "O_NONBLOCK", 0)
        | getattr(os, "O_BINARY", 0)
    )
    file = os.fdopen(os.open(path, flags), "rb")
    if not _is_own(os.fstat(file.fileno())):
        file.close()
        raise ValueError("not this user's own file")
    return file


def _load(path: Path, source: Source) -> Trace | None:
    with open_own(path) as file:
        head = file.read(HEAD.size)
        magic, version, schema, size, digest, table_bytes, column_bytes = HEAD.unpack(head)
        if (magic, version, schema) != (MAGIC, FORMAT, SCHEMA) or (size, digest) != _identity(
            source
        ):
            return None
        if os.fstat(file.fileno()).st_size != HEAD.size + table_bytes + column_bytes:
            return None
        data = memoryview(file.read())
    most_text = size * MAX_EXPANSION + EXPANSION_FREE_BYTES
    table = decompressed(data[:table_bytes], most_text)
    tables = msgspec.json.decode(table, type=Tables)
    arrays = _arrays(tables, data[table_bytes:], most_text // SMALLEST_EVENT_BYTES)
    if arrays is None:
        return None
    trace = trace_of(tables, arrays)
    return _relabelled(trace, source) if trace is not None and is_sound(trace) else None


def _is_own(state: os.stat_result) -> bool:
    """Whether this user wrote the file and nobody else can have: a folder named by
    STEPSCOPE_CACHE_DIR may be shared."""
    if not stat.S_ISREG(state.st_mode):
        return False
    return not hasattr(os, "geteuid") or (
        state.st_uid == os.geteuid() and not state.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    )


def _arrays(tables: Tables, data: memoryview, most_rows: int) -> dict[str, NDArray[Any]] | None:
    arrays: dict[str, NDArray[Any]] = {}
    for column in tables.columns:
        if (
            column.dtype not in DTYPES
            or not 0 <= column.length <= most_rows
            or not 0 <= column.stored <= len(data)
        ):
            return None
        dtype = np.dtype(DTYPES[column.dtype])
        raw = decompressed(data[: column.stored], column.length * dtype.itemsize)
        data = data[column.stored :]
        values = np.frombuffer(raw, dtype)
        if len(values) != column.length:
            return None
        arrays[column.name] = np.cumsum(values, dtype=np.int64) if column.delta else values
    return arrays


def decompressed(data: memoryview, limit: int) -> bytes:
    """The frame's content; ZstdError when it says, or turns out, to be larger than `limit`."""
    size = zstandard.frame_content_size(data)
    if size < 0 or size > limit:
        raise zstandard.ZstdError("its size is not what the cache says")
    return zstandard.ZstdDecompressor().decompress(data, max_output_size=max(size, 1))


def _relabelled(trace: Trace, source: Source) -> Trace:
    """Add what the source says now: its label, and its rank unless the file itself told it."""
    meta = replace(trace.meta, path=source.label)
    if meta.rank_source != "distributedInfo":
        meta = replace(meta, rank=source.rank, rank_source=source.rank_source)
    return replace(trace, meta=meta)


MIN_CACHED_BYTES = 8 << 20
"""Bytes of text below which reading is about as fast as reading a cache."""


def read_trace(
    source: Source, *, use_cache: bool = True, progress: Progress | None = None
) -> Trace:
    """The Trace of a source, from its cache where there is a good one. FormatError says what it is,
    when it is no trace."""
    before = None
    if use_cache:
        trace = load(source)
        if trace is not None:
            return trace
        before = identity(source)
    if source.format is None:
        refuse_unknown(source)
    reader = BY_NAME[source.format or KINETO].reader()
    assert reader.read_trace is not None, source.format
    read = reader.read_trace(source, progress)
    if is_cached(read, use_cache=use_cache):
        store(source, read, before)
    return read


def is_cached(trace: Trace, *, use_cache: bool) -> bool:
    """Whether the user's cache takes it."""
    return use_cache and trace.meta.size_bytes >= MIN_CACHED_BYTES
