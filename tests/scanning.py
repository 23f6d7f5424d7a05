"""The compiled scanner held against the Python one, on chunks of events damaged by a seed.

tests/readers/test_native.py runs some seeds, scripts/fuzz-native as many as one likes.
"""

from __future__ import annotations

import gzip
import random
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from stepscope.core.compiled import load
from stepscope.core.trace import Trace
from stepscope.readers.kineto import native
from stepscope.readers.kineto.event_decoder import ScanError, Scanner
from tests.builders import step_events, trace_text
from tests.mutations import BY_BYTE
from tests.shared_data import DEMO

SPLIT_BYTES = 500
"""Much less than a large chunk: two threads share it."""
EVENTS_PER_CHUNK = (1, 3, 10, 60)
MEMBER = re.compile(rb'"(?:[^"\\]|\\.)*"\s*:\s*(?:"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*|\w+|\[[^\]]*\])')
VALUE = re.compile(rb':\s*("(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*|\w+|\[[^\]]*\])')
BLANK = re.compile(rb"(?<=[,:{}\[\]])(?=[\s\"\d])")
TIME = re.compile(rb'("(?:ts|dur)"\s*:\s*)(-?\d+)(\.\d+)?')
TIMES = (
    b"%d.%03d", b"%d", b"%d.%05d", b"-%d.%d", b"%d.0005", b"%d.0015", b"%d.00050000", b"%d.5e%d",
    b'"%d.%d"', b"%d.123456789012", b"1700000000%06d.%03d", b"1700000000%06d",
    b"8796093022207.%d%d", b"8796093022208.%d%d", b"8796093022207%.0d%.0d",
    b"4611686018427386%.0d%.0d", b"461168601842738%d%.0d", b"0.%d%d", b"null%.0d%.0d", b"0%d.%d",
)  # fmt: skip
VALUES = (
    b"-1", b"0", b"-0", b"7", b"-7", b"1.0", b"1e3", b"null", b"true", b'""', b'"7"', b'"-7"',
    b'"--7"', b'"+7"', b'"0x1f"', b'"1_0"', b'" 7"', b'"7.5"', b'"inf"', b'"1e2"', b'"stream 7"',
    b'"\\u0037"', b'"\xd9\xa7"', b'"a\\"b"', b'"a\\u00e9\\n"', b'"\xc3\xa9"', b'"\\ud83d\\ude00"',
    b'"\\ud800"', b'"\xf0\x9f\x98\x80"', b'"\xed\xa0\x80"', b'"\xff"', b'"\x01"', b'"\\q"',
    b'"\x00"', b"9223372036854775807", b"9223372036854775808", b"-9223372036854775808",
    b"-9223372036854775809", b"18446744073709551615", b"18446744073709551616", b"32768",
    b"9" * 30, b"01", b"1.", b".5", b"-", b"[]", b"{}", b"[1,[2,{}]]", b'[{"ts": 1.5}]',
    b'{"dur": "x", "a": [1]}', b"[" * 70 + b"]" * 70, b'"X"', b'"i"', b'"M"', b'"B"', b'"E"',
    b'"C"', b'"s"', b'"?"', b'"kernel"', b'"Kernel"', b'"\xe2\x84\xaaernel"', b'"cpu_op"',
    b'"cuda_sync"', b'"gpu_memcpy"', b'"cuda_runtime"', b'"user_annotation"', b'"unknown"',
    b'"thread_name"', b'"[memory]"', b"NaN", b"1e999", b"'x'",
)  # fmt: skip
KEYS = tuple(
    name.encode()
    for name in (
        "ph", "cat", "name", "pid", "tid", "ts", "dur", "args", "id", "s", "bp", "x\\u0041", "",
        *(native.argument_names()),
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Scanned:
    """What a scanner made of some chunks."""

    columns: list[dict[str, Any] | None]
    """None for a chunk that was refused."""
    tables: list[list[Any]]
    scanner: Scanner


def scanned(scanner: Scanner, chunks: Iterable[bytes]) -> Scanned:
    taken: list[dict[str, Any] | None] = []
    for chunk in chunks:
        try:
            columns = scanner.scan(memoryview(chunk))
        except ScanError:
            taken.append(None)
        else:
            taken.append({name: getattr(columns, name) for name in (*Trace.COLUMNS, "memory")})
    tables = [
        t.table() for t in (scanner.names, scanner.threads, scanner.details, scanner.collectives)
    ]
    return Scanned(taken, tables, scanner)


def difference(chunks: list[bytes]) -> str | None:
    """What the two scanners do not agree on, the compiled one with one thread or with two; None
    where they do."""
    return _difference(chunks, 1) or _difference(chunks, 2)


def _difference(chunks: list[bytes], num_threads: int) -> str | None:
    library = load()
    assert library is not None
    pure = scanned(Scanner(), chunks)
    compiled = scanned(
        native.NativeScanner(library=library, num_threads=num_threads, split_bytes=SPLIT_BYTES),
        chunks,
    )
    for i, (one, other) in enumerate(zip(pure.columns, compiled.columns, strict=True)):
        if one is None or other is None:
            if one is not other:
                return f"chunk {i} is refused by one of them"
            continue
        for name, column in one.items():
            if not _equal(column, other[name]):
                return f"chunk {i}: {name} is {other[name]}, not {column}"
    for table, (mine, theirs) in enumerate(zip(pure.tables, compiled.tables, strict=True)):
        if mine != theirs or list(map(_types, mine)) != list(map(_types, theirs)):
            return f"table {table} is {theirs}, not {mine}"
    for name in ("tally", "thread_names", "times_as_text"):
        mine, theirs = getattr(pure.scanner, name), getattr(compiled.scanner, name)
        if mine != theirs:
            return f"{name} is {theirs}, not {mine}"
    return None


def _equal(one: Any, other: Any) -> bool:
    if one is None or other is None:
        return one is other
    return one.dtype == other.dtype and one.shape == other.shape and np.array_equal(one, other)


def _types(key: Any) -> Any:
    return [type(part) for part in key] if isinstance(key, tuple) else type(key)


@cache
def events() -> tuple[bytes, ...]:
    """Real events, and one of each kind."""
    text = gzip.decompress(DEMO.read_bytes()) + trace_text(step_events()).encode()
    start = text.index(b"[", text.index(b'"traceEvents"')) + 1
    found = re.split(rb"(?<=\})\s*,\s*(?=\{\s*\"(?:ph|name|cat)\")", text[start:])
    whole = [one.strip() for one in found if one.count(b"{") == one.count(b"}")]
    rare = [one for one in whole if b'"cpu_op"' not in one and b'"python_function"' not in one]
    memory = b'{"ph": "i", "s": "t", "name": "[memory]", "pid": 1, "tid": 2, "ts": 5.001, "args": {"Total Reserved": 9, "Total Allocated": 8, "Bytes": -512, "Addr": 140, "Device Id": 0, "Device Type": 1, "Ev Idx": 3}}'  # noqa: E501
    label = b'{"name": "thread_name", "ph": "M", "ts": 0, "pid": 1, "tid": "2", "args": {"name": "main"}}'  # noqa: E501
    return (*whole[:400], *rare[:400], *[memory, label] * 50)


def damaged_chunks(seed: int) -> list[bytes]:
    """A few chunks of events, most of them still JSON."""
    chance = random.Random(seed)
    chunks = []
    for _ in range(chance.choice([1, 2, 4])):
        # In the same order again, too: then the scanner guesses what comes.
        chosen = chance.choices(events(), k=chance.choice(EVENTS_PER_CHUNK))
        chosen *= chance.choice([1, 1, 6])
        piece = bytearray(chance.choice([b",", b", ", b" ,\n  "]).join(chosen))
        for _ in range(chance.choice([0, 1, 1, 2, 5, 20])):
            if piece:
                chance.choice(CHANGES)(piece, chance)
        chunks.append(bytes(piece))
    return chunks


def change_value(data: bytearray, chance: random.Random) -> None:
    found = VALUE.search(data, chance.randrange(len(data)))
    if found is not None:
        data[found.start(1) : found.end(1)] = chance.choice(VALUES)


def change_key(data: bytearray, chance: random.Random) -> None:
    found = MEMBER.search(data, chance.randrange(len(data)))
    if found is not None:
        value = found[0].partition(b":")[2]
        data[found.start() : found.end()] = b'"%b":%b' % (chance.choice(KEYS), value)


def add_member(data: bytearray, chance: random.Random) -> None:
    found = MEMBER.search(data, chance.randrange(len(data)))
    if found is not None:
        member = b'"%b": %b, ' % (chance.choice(KEYS), chance.choice(VALUES))
        data[found.start() : found.start()] = member


def move_phase(data: bytearray, chance: random.Random) -> None:
    """The phase last, after the arguments."""
    at = chance.randrange(len(data))
    found = re.compile(rb'\{\s*("ph"\s*:\s*"."),\s*').search(data, at)
    if found is not None:
        end = data.find(b"}, {", found.end())
        end = end if end >= 0 else len(data) - 1
        data[end:end] = b", " + found[1]
        data[found.start() + 1 : found.end()] = b""


def change_time(data: bytearray, chance: random.Random) -> None:
    found = TIME.search(data, chance.randrange(len(data)))
    if found is not None:
        form = chance.choice(TIMES)
        numbers = tuple(chance.choice([0, 5, 12, 999, 1500]) for _ in range(form.count(b"%")))
        data[found.start(2) : found.end()] = form % numbers


def change_times(data: bytearray, chance: random.Random) -> None:
    """All of them alike, as a recorder writes them."""
    form = chance.choice(TIMES)

    def written(found: re.Match[bytes]) -> bytes:
        numbers = tuple(chance.randrange(1000) for _ in range(form.count(b"%")))
        return found[1] + form % numbers

    data[:] = TIME.sub(written, bytes(data))


def add_blanks(data: bytearray, chance: random.Random) -> None:
    found = BLANK.search(data, chance.randrange(len(data)))
    if found is not None:
        data[found.start() : found.start()] = chance.choice([b" ", b"\n\t\r ", b"\x0b", b"\x00"])


CHANGES = (
    *(change_value,) * 12, *(change_key,) * 6, *(add_member,) * 6, *(change_time,) * 6,
    *(change_times,) * 2, *(move_phase,) * 3, *(add_blanks,) * 2, *BY_BYTE[:7], *BY_BYTE[-3:],
)  # fmt: skip
