"""The compiled scanner (scan.c) in the place of the Python one, where it was built.

It scans chunks of clean JSON; any other chunk it refuses, and the Python code takes that as it
always did. Its tables number raw bytes; here their keys are decoded, once each, and numbered in the
tables of the Scanner, so both may take turns in one file.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from ctypes import POINTER, c_char_p, c_int, c_int64, c_uint64, c_void_p
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from stepscope.core.compiled import library, load
from stepscope.core.trace import NONE, Int64, Kind, Trace
from stepscope.readers.kineto.event_decoder import MEMORY_FIELDS, SEPARATOR, Scanner, string_of
from stepscope.readers.kineto.json_chunks import CUT
from stepscope.readers.trace.categories import (
    KIND_OF_CATEGORY,
    OTHER_PHASES,
    SILENT_PHASES,
    UNNAMED,
    phase_label,
)
from stepscope.readers.trace.columns import COLUMN_DTYPES, Codes, Columns

OK = 0
MAX_THREADS = 2
SPLIT_BYTES = 1 << 20
"""Size from which a chunk is scanned in two halves at once, where there are cores for it."""
NUM_PHASES = 128
COMPLETE, META, INSTANT, SKIPPED = 1, 2, 3, 4
LABEL_WIDTH = 6

DTYPES = COLUMN_DTYPES | {"category": np.int32}
"""The columns in the order of scan.c's Result."""
NAMES, CATEGORIES, THREADS = 0, 1, 2
DETAILS = (3, 4)
"""Tables of scan.c: those of operators and launches, in the order in which the Python code numbers
them."""
COLLECTIVES = (5, 6)
"""Tables of the collectives of hosts, then of devices."""


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
        ("beyond_doubles", c_int64),
        ("not_whole", c_int64),
        ("phases", c_int64 * NUM_PHASES),
        *((name, c_void_p) for name in DTYPES),
        ("memory", c_void_p),
        ("labels", c_void_p),
    )


class _TableView(ctypes.Structure):
    _fields_ = (("bytes", c_void_p), ("ends", c_void_p), ("num", c_int64))


def scanner_for_file() -> Scanner:
    """A Scanner for one file: the compiled one where it is there and wanted."""
    loaded = library()
    if loaded is None:
        return Scanner()
    return NativeScanner(library=loaded, num_threads=min(_num_cores(), MAX_THREADS))


def _num_cores() -> int:
    """Cores for this file: one where other processes read others beside it."""
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None and processes.parent_process() is not None:
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


@cache
def _declared(loaded: ctypes.CDLL) -> ctypes.CDLL:
    """The library, told what its functions take."""
    loaded.stepscope_scan_new.restype = c_void_p
    loaded.stepscope_scan_new.argtypes = (c_uint64, c_char_p, c_char_p, c_char_p, c_int64)
    loaded.stepscope_scan_free.restype = None
    loaded.stepscope_scan_free.argtypes = (c_void_p,)
    loaded.stepscope_scan.restype = c_int
    loaded.stepscope_scan.argtypes = (c_void_p, c_void_p, c_int64, c_int)
    loaded.stepscope_scan_take_back.restype = None
    loaded.stepscope_scan_take_back.argtypes = (c_void_p,)
    loaded.stepscope_scan_result.restype = POINTER(_Result)
    loaded.stepscope_scan_result.argtypes = (c_void_p,)
    loaded.stepscope_scan_table.restype = None
    loaded.stepscope_scan_table.argtypes = (c_void_p, c_int, POINTER(_TableView))
    loaded.stepscope_scan_argument.restype = c_char_p
    loaded.stepscope_scan_argument.argtypes = (c_int,)
    return loaded


def argument_names() -> list[str]:
    """The names of arguments that the library knows; none without it."""
    loaded = load()
    names: list[str] = []
    while loaded is not None and (name := _declared(loaded).stepscope_scan_argument(len(names))):
        names.append(name.decode())
    return names


class Engine:
    """One handle of the library, freed with this object."""

    def __init__(self, library: ctypes.CDLL) -> None:
        library = _declared(library)
        self._library = library
        self._free = library.stepscope_scan_free
        phases = bytearray(NUM_PHASES)
        for phase in (*SILENT_PHASES, *OTHER_PHASES):
            phases[ord(phase)] = SKIPPED
        phases[ord("X")], phases[ord("M")], phases[ord("i")] = COMPLETE, META, INSTANT
        self._handle = library.stepscope_scan_new(
            int.from_bytes(os.urandom(8), sys.byteorder),
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

    def take_back(self) -> None:
        """Forget the keys that the last chunk brought."""
        self._library.stepscope_scan_take_back(self._handle)

    def column(self, name: str) -> NDArray[Any]:
        """Column as it stands in the library: until the next scan."""
        return _seen(getattr(self.result, name), self.result.num_rows, DTYPES[name])

    def memory(self) -> Int64:
        width = 1 + len(MEMORY_FIELDS)
        flat = _seen(self.result.memory, self.result.num_memory * width, np.int64)
        return flat.reshape(-1, width)

    def labels(self) -> list[list[int]]:
        flat = _seen(self.result.labels, self.result.num_labels * LABEL_WIDTH, np.int64)
        labels: list[list[int]] = flat.reshape(-1, LABEL_WIDTH).tolist()
        return labels

    def new_keys(self, table: int, known: int) -> list[bytes]:
        """The keys of a table from number `known` on."""
        view = _TableView()
        self._library.stepscope_scan_table(self._handle, table, ctypes.byref(view))
        if view.num == known:
            return []
        first = max(known - 1, 0)
        ends = _seen(view.ends + 8 * first, view.num - first, np.uint64).tolist()
        begins = ends[:-1] if known else [0, *ends[:-1]]
        ends = ends[1:] if known else ends
        data = ctypes.string_at((view.bytes or 0) + begins[0], ends[-1] - begins[0])
        return [data[b - begins[0] : e - begins[0]] for b, e in zip(begins, ends, strict=True)]


def _seen(address: int | None, num: int, dtype: Any) -> NDArray[Any]:
    """What stands at the address, where it stands."""
    if not num:
        return np.empty(0, dtype)
    assert address is not None
    size = num * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_char * size).from_address(address), dtype)


@dataclass(slots=True)
class Numbers:
    """Numbers of a column's codes in a table of the Scanner, as each engine has them."""

    tables: tuple[int, ...]
    """What the column points into: a code is a number in one of them, times how many they are, and
    which it is."""
    codes: Codes[Any]
    key: Callable[[bytes], Any]
    _arrays: list[NDArray[np.int32]] = field(default_factory=list)
    """A row for each number, a column for each table. The last row stays NONE: a column's NONE, -1,
    finds it."""
    _nums: list[list[int]] = field(default_factory=list)

    def update(self, engines: Sequence[Engine]) -> None:
        """Number the keys that are new: table after table, each in the order of the text."""
        while len(self._arrays) < len(engines):
            self._arrays.append(np.full((64, len(self.tables)), NONE, np.int32))
            self._nums.append([0] * len(self.tables))
        for i, table in enumerate(self.tables):
            for array, engine in enumerate(engines):
                keys = engine.new_keys(table, self._nums[array][i])
                if keys:
                    self._add(array, i, [self.codes[self.key(key)] for key in keys])

    def _add(self, array: int, table: int, numbers: list[int]) -> None:
        known = self._nums[array][table]
        num = known + len(numbers)
        if num >= len(self._arrays[array]):
            grown = np.full((2 * num, len(self.tables)), NONE, np.int32)
            grown[: len(self._arrays[array])] = self._arrays[array]
            self._arrays[array] = grown
        self._arrays[array][known:num, table] = numbers
        self._nums[array][table] = num

    def translated(self, engine: int, codes: NDArray[np.int32]) -> NDArray[np.int32]:
        return self._arrays[engine].ravel().take(codes, mode="wrap")


@dataclass(slots=True, kw_only=True)
class NativeScanner(Scanner):
    """A Scanner that leaves clean chunks to the library."""

    library: ctypes.CDLL
    num_threads: int = 1
    """A second scans the second half of a large chunk."""
    split_bytes: int = SPLIT_BYTES
    num_refused: int = 0
    """Chunks left to the Python code."""
    _engines: list[Engine] = field(init=False)
    _pool: ThreadPoolExecutor | None = field(init=False, default=None)
    _numbers: dict[str, Numbers] = field(init=False)

    def __post_init__(self) -> None:
        self._engines = [Engine(self.library)]
        self._numbers = {
            "name": Numbers((NAMES,), self.names, _name),
            "thread": Numbers((THREADS,), self.threads, _thread),
            "detail": Numbers(DETAILS, self.details, bytes),
            "collective": Numbers(COLLECTIVES, self.collectives, _collective),
        }

    def scan(self, chunk: bytes | memoryview) -> Columns:
        """Columns of the chunk's events, as Scanner.scan gives them."""
        pieces = self.scan_in_place(chunk)
        memory = [piece.memory for piece in pieces if piece.memory is not None]
        return Columns(
            **{
                name: np.concatenate([getattr(piece, name) for piece in pieces])
                for name in Trace.COLUMNS
            },
            memory=np.concatenate(memory) if memory else None,
        )

    def scan_in_place(self, chunk: bytes | memoryview) -> list[Columns]:
        """The same, of each engine, where they stand in the library."""
        parts = self._parts(chunk)
        is_clean, as_text = self._scan_parts(parts, as_text=self.times_as_text), self.times_as_text
        if is_clean and not as_text and self._is_lossy(len(parts)):
            is_clean, as_text = self._scan_parts(parts, as_text=True), True
        if not is_clean:
            self.num_refused += 1
            return [Scanner.scan(self, chunk)]
        self.times_as_text = as_text
        engines = self._engines[: len(parts)]
        for part, engine in zip(parts, engines, strict=True):
            self._take_counts(engine)
            for label in engine.labels():
                pid, tid, name = (bytes(part.data[at : at + n]) for at, n in _pairs(label))
                string = string_of(name)
                if string is not None:
                    self.thread_names[str(_place(pid)), str(_place(tid))] = string
        return self._native_columns(engines)

    def _parts(self, chunk: bytes | memoryview) -> list[NDArray[np.uint8]]:
        """The chunk, or its halves, without the comma between."""
        text = np.frombuffer(chunk, np.uint8) if len(chunk) else np.empty(0, np.uint8)
        if self.num_threads == 1 or len(text) < self.split_bytes:
            return [text]
        cut = CUT.search(chunk, len(text) // 2)
        # The pattern's blanks are more than JSON's.
        if cut is None or cut[0].strip(b"} \t\r\n,"):
            return [text]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="stepscope-scan")
            self._engines.append(Engine(self.library))
        return [text[: cut.start() + 1], text[cut.end() :]]

    def _scan_parts(self, parts: list[NDArray[np.uint8]], *, as_text: bool) -> bool:
        """Whether all are clean; otherwise it is as if none had been scanned."""
        engines = self._engines[: len(parts)]
        later = None
        if self._pool is not None and len(parts) > 1:
            later = self._pool.submit(engines[1].scan, parts[1], as_text=as_text)
        statuses = [engines[0].scan(parts[0], as_text=as_text)]
        if later is not None:
            statuses.append(later.result())
        if any(status != OK for status in statuses):
            for engine in engines:
                engine.take_back()
            return False
        return True

    def _is_lossy(self, num_parts: int) -> bool:
        """Whether the chunk's times need their text; then it is as if it had not been scanned."""
        engines = self._engines[:num_parts]
        is_lossy = any(engine.result.beyond_doubles for engine in engines) and any(
            engine.result.not_whole for engine in engines
        )
        if is_lossy:
            for engine in engines:
                engine.take_back()
        return is_lossy

    def _take_counts(self, engine: Engine) -> None:
        result, tally = engine.result, self.tally
        tally.raw_events += result.num_raw
        tally.no_time += result.num_no_time
        tally.no_duration += result.num_no_duration
        tally.negative_duration += result.num_negative
        for phase in OTHER_PHASES:
            if result.phases[ord(phase)]:
                tally.count_unknown(phase_label(phase), result.phases[ord(phase)])

    def _native_columns(self, engines: Sequence[Engine]) -> list[Columns]:
        for numbers in self._numbers.values():
            numbers.update(engines)
        pieces = []
        for i, engine in enumerate(engines):
            is_other = engine.column("kind") == int(Kind.OTHER)
            if is_other.any():
                names = engine.new_keys(CATEGORIES, 0)
                categories, counts = np.unique(
                    engine.column("category")[is_other], return_counts=True
                )
                for number, count in zip(categories.tolist(), counts.tolist(), strict=True):
                    self.tally.count_unknown(names[number].decode() or UNNAMED, count)
            columns = {name: engine.column(name) for name in Trace.COLUMNS}
            for name, numbers in self._numbers.items():
                columns[name] = numbers.translated(i, columns[name])
            has_memory = engine.result.num_memory_seen
            pieces.append(Columns(**columns, memory=engine.memory().copy() if has_memory else None))
        return pieces


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
