"""The compiled scanner (scan.c) in the place of the Python one, where it was built.

It scans chunks of clean JSON; any other chunk it refuses, and the Python code takes that as it
always did. Its tables number raw bytes; here their keys are decoded, once each, and numbered in the
tables of the Scanner, so both may take turns in one file.
"""

from __future__ import annotations

import ctypes
import os
import secrets
from collections.abc import Callable, Sequence
from ctypes import POINTER, c_char_p, c_int, c_int64, c_uint64, c_void_p
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from stepscope.core.trace import NONE, Int64, Kind, Trace
from stepscope.readers.kineto.event_decoder import MEMORY_FIELDS, SEPARATOR, Scanner, string_of
from stepscope.readers.trace.categories import (
    KIND_OF_CATEGORY,
    OTHER_PHASES,
    SILENT_PHASES,
    UNNAMED,
    phase_label,
)
from stepscope.readers.trace.columns import Codes, Columns

LIBRARY = Path(__file__).with_name("scan.so")
PURE = "STEPSCOPE_PURE"
"""Set to anything but 0, this environment variable keeps to the Python code."""
ABI_VERSION = 1
OK, LOSSY_TIMES = 0, 2
NUM_PHASES = 128
COMPLETE, META, INSTANT, SKIPPED = 1, 2, 3, 4
LABEL_WIDTH = 6

DTYPES: dict[str, Any] = {
    "start_ns": np.int64,
    "dur_ns": np.int64,
    "kind": np.uint8,
    "name": np.int32,
    "thread": np.int32,
    "device": np.int16,
    "stream": np.int64,
    "correlation": np.int64,
    "external": np.int64,
    "sequence": np.int64,
    "fwd_thread": np.int64,
    "size_bytes": np.int64,
    "detail": np.int32,
    "collective": np.int32,
    "category": np.int32,
}
"""The columns in the order of scan.c's Result."""
NAMES, CATEGORIES, THREADS = 0, 1, 2
DETAILS = (3, 4, 5)
"""Tables of scan.c: those of operators, launches and waits, in the order in which the Python code
numbers them."""
COLLECTIVES = (6, 7)
"""Of hosts, then of devices."""


class _Result(ctypes.Structure):
    _fields_ = (
        ("num_rows", c_int64),
        ("num_raw", c_int64),
        ("num_no_time", c_int64),
        ("num_no_duration", c_int64),
        ("num_negative", c_int64),
        ("num_memory_seen", c_int64),
        ("num_memory", c_int64),
        ("num_labels", c_int64),
        ("phases", c_int64 * NUM_PHASES),
        *((name, c_void_p) for name in DTYPES),
        ("memory", c_void_p),
        ("labels", c_void_p),
    )


class _TableView(ctypes.Structure):
    _fields_ = (("bytes", c_void_p), ("ends", c_void_p), ("num", c_int64))


def scanner_for_file() -> Scanner:
    """A Scanner for one file: the compiled one where it is there and wanted."""
    library = load()
    return Scanner() if library is None or is_unwanted() else NativeScanner(engine=Engine(library))


def in_use() -> str:
    """Which scanner is used, and why, in words."""
    if is_unwanted():
        return f"pure Python ({PURE} is set)"
    if not LIBRARY.exists():
        return "pure Python (no compiler at install)"
    return "compiled" if load() is not None else "pure Python (the compiled one does not load here)"


def is_unwanted() -> bool:
    return os.environ.get(PURE, "0") not in ("", "0")


@cache
def load(path: Path = LIBRARY) -> ctypes.CDLL | None:
    """The library; None where it was not built, or is not for this machine or this version."""
    try:
        library = ctypes.CDLL(str(path))
        if library.stepscope_scan_abi() != ABI_VERSION:
            return None
    except (OSError, AttributeError):
        return None
    library.stepscope_scan_new.restype = c_void_p
    library.stepscope_scan_new.argtypes = (c_uint64, c_char_p, c_char_p, c_char_p, c_int64)
    library.stepscope_scan_free.restype = None
    library.stepscope_scan_free.argtypes = (c_void_p,)
    library.stepscope_scan.restype = c_int
    library.stepscope_scan.argtypes = (c_void_p, c_void_p, c_int64, c_int)
    library.stepscope_scan_result.restype = POINTER(_Result)
    library.stepscope_scan_result.argtypes = (c_void_p,)
    library.stepscope_scan_table.restype = None
    library.stepscope_scan_table.argtypes = (c_void_p, c_int, POINTER(_TableView))
    library.stepscope_scan_argument.restype = c_char_p
    library.stepscope_scan_argument.argtypes = (c_int,)
    return library


def argument_names() -> list[str]:
    """The names of arguments that the library knows; none without it."""
    library = load()
    names: list[str] = []
    while library is not None and (name := library.stepscope_scan_argument(len(names))):
        names.append(name.decode())
    return names


class Engine:
    """One handle of the library, freed with this object."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._free = library.stepscope_scan_free
        phases = bytearray(NUM_PHASES)
        for phase in (*SILENT_PHASES, *OTHER_PHASES):
            phases[ord(phase)] = SKIPPED
        phases[ord("X")], phases[ord("M")], phases[ord("i")] = COMPLETE, META, INSTANT
        self._handle = library.stepscope_scan_new(
            secrets.randbits(64),
            bytes(phases),
            b"".join(category.encode() + b"\0" for category in KIND_OF_CATEGORY),
            bytes(KIND_OF_CATEGORY.values()),
            len(KIND_OF_CATEGORY),
        )
        if not self._handle:
            raise MemoryError
        self.result: _Result = library.stepscope_scan_result(self._handle).contents

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._free(self._handle)
            self._handle = None

    def scan(self, text: NDArray[np.uint8], *, as_text: bool) -> int:
        """The status; Python's lock is not held meanwhile."""
        status: int = self._library.stepscope_scan(
            self._handle, text.ctypes.data, len(text), as_text
        )
        return status

    def column(self, name: str) -> NDArray[Any]:
        return _copied(getattr(self.result, name), self.result.num_rows, DTYPES[name])

    def memory(self) -> Int64:
        width = 1 + len(MEMORY_FIELDS)
        flat = _copied(self.result.memory, self.result.num_memory * width, np.int64)
        return flat.reshape(-1, width)

    def labels(self) -> list[list[int]]:
        flat = _copied(self.result.labels, self.result.num_labels * LABEL_WIDTH, np.int64)
        labels: list[list[int]] = flat.reshape(-1, LABEL_WIDTH).tolist()
        return labels

    def new_keys(self, table: int, known: int) -> list[bytes]:
        """The keys of a table from number `known` on."""
        view = _TableView()
        self._library.stepscope_scan_table(self._handle, table, ctypes.byref(view))
        if view.num == known:
            return []
        first = max(known - 1, 0)
        ends = _copied(view.ends + 8 * first, view.num - first, np.uint64).tolist()
        begins = ends[:-1] if known else [0, *ends[:-1]]
        ends = ends[1:] if known else ends
        data = ctypes.string_at((view.bytes or 0) + begins[0], ends[-1] - begins[0])
        return [data[b - begins[0] : e - begins[0]] for b, e in zip(begins, ends, strict=True)]


def _copied(address: int | None, num: int, dtype: Any) -> NDArray[Any]:
    """An array of ours with what stands at the address."""
    array = np.empty(num, dtype)
    if num:
        assert address is not None
        ctypes.memmove(array.ctypes.data, address, array.nbytes)
    return array


@dataclass(slots=True)
class Numbers:
    """For each code of one of the library's columns: its number in a table of the Scanner."""

    tables: tuple[int, ...]
    """What the column points into: a code is a number in one of them, times how many they are, and
    which it is."""
    codes: Codes[Any]
    key: Callable[[bytes], Any]
    _array: NDArray[np.int32] = field(init=False)
    """A row for each number, a column for each table. The last row stays NONE: a column's NONE, -1,
    finds it."""
    _nums: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self._array = np.full((64, len(self.tables)), NONE, np.int32)
        self._nums = [0] * len(self.tables)

    def update(self, engine: Engine) -> None:
        """Number the keys that are new, in their order."""
        for i, table in enumerate(self.tables):
            keys = engine.new_keys(table, self._nums[i])
            if not keys:
                continue
            known, num = self._nums[i], self._nums[i] + len(keys)
            if num >= len(self._array):
                grown = np.full((2 * num, len(self.tables)), NONE, np.int32)
                grown[: len(self._array)] = self._array
                self._array = grown
            self._array[known:num, i] = [self.codes[self.key(key)] for key in keys]
            self._nums[i] = num

    def __getitem__(self, codes: NDArray[np.int32]) -> NDArray[np.int32]:
        return self._array.ravel()[codes]


@dataclass(slots=True, kw_only=True)
class NativeScanner(Scanner):
    """A Scanner that leaves clean chunks to the library."""

    engine: Engine
    num_refused: int = 0
    """Chunks left to the Python code."""
    _names: Numbers = field(init=False)
    _threads: Numbers = field(init=False)
    _details: Numbers = field(init=False)
    _collectives: Numbers = field(init=False)
    _categories: list[str] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self._names = Numbers((NAMES,), self.names, _name)
        self._threads = Numbers((THREADS,), self.threads, _thread)
        self._details = Numbers(DETAILS, self.details, bytes)
        self._collectives = Numbers(COLLECTIVES, self.collectives, _collective)

    def scan(self, chunk: bytes | memoryview) -> Columns:
        """Columns of the chunk's events, as Scanner.scan gives them."""
        text = np.frombuffer(chunk, np.uint8) if len(chunk) else np.empty(0, np.uint8)
        status = self.engine.scan(text, as_text=self.times_as_text)
        as_text = self.times_as_text
        if status == LOSSY_TIMES:
            as_text = True
            status = self.engine.scan(text, as_text=True)
        if status != OK:
            self.num_refused += 1
            return Scanner.scan(self, chunk)
        self.times_as_text = as_text
        self._take_counts()
        self._take_labels(memoryview(chunk))
        return self._native_columns()

    def _take_counts(self) -> None:
        result, tally = self.engine.result, self.tally
        tally.raw_events += result.num_raw
        tally.no_time += result.num_no_time
        tally.no_duration += result.num_no_duration
        tally.negative_duration += result.num_negative
        for phase in OTHER_PHASES:
            if result.phases[ord(phase)]:
                tally.count_unknown(phase_label(phase), result.phases[ord(phase)])

    def _take_labels(self, chunk: memoryview) -> None:
        for label in self.engine.labels():
            pid, tid, name = (bytes(chunk[at : at + n]) for at, n in _pairs(label))
            text = string_of(name)
            if text is not None:
                self.thread_names[str(_place(pid)), str(_place(tid))] = text

    def _native_columns(self) -> Columns:
        engine = self.engine
        columns = Columns(**{name: engine.column(name) for name in Trace.COLUMNS})
        for name, numbers in (
            ("name", self._names),
            ("thread", self._threads),
            ("detail", self._details),
            ("collective", self._collectives),
        ):
            numbers.update(engine)
            setattr(columns, name, numbers[getattr(columns, name)])
        self._count_categories(columns.kind)
        if engine.result.num_memory_seen:
            columns.memory = engine.memory()
        return columns

    def _count_categories(self, kind: NDArray[np.uint8]) -> None:
        other = kind == Kind.OTHER
        if not other.any():
            return
        self._categories += [
            key.decode() for key in self.engine.new_keys(CATEGORIES, len(self._categories))
        ]
        found, counts = np.unique(self.engine.column("category")[other], return_counts=True)
        for number, count in zip(found.tolist(), counts.tolist(), strict=True):
            self.tally.count_unknown(self._categories[number] or UNNAMED, count)


def _pairs(values: Sequence[int]) -> list[tuple[int, int]]:
    return list(zip(values[::2], values[1::2], strict=True))


def _name(key: bytes) -> str:
    return key.decode() if b"\\" not in key else msgspec.json.decode(b'"%b"' % key, type=str)


def _thread(key: bytes) -> tuple[int | str, int | str]:
    pid, tid = key.split(SEPARATOR)
    return _place(pid), _place(tid)


def _place(raw: bytes) -> int | str:
    """A process or thread as it is written; "" where it is not there."""
    return msgspec.json.decode(raw, type=int | str) if raw else ""


def _collective(key: bytes) -> tuple[bytes, ...]:
    return tuple(key.split(SEPARATOR))
