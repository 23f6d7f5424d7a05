"""Damage to files, by chance from a seed: to bytes, to lines and numbers of a text, to values of
JSON, to cells of a database."""

from __future__ import annotations

import copy
import gzip
import json
import random
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

SQLITE = b"SQLite format 3\x00"
TOKENS = (
    b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"\x00", b"\xff", b"\n", b"NaN",
    b"-Infinity", b"1e999", b"null", b"true", b"-", b'"ph":', b'"ts":', b'"dur":', b'"args":',
    b'"traceEvents":[', b"}, {", b'{"ph":"X"', b'"\\ud800"', b"9" * 30, b"[" * 2000, b"}]",
    b'{"a":' * 2000, b"\xed\xa0\x80", b"\xc3\x28", b"\x1b[2J", b"\x1b]0;x\x07",
    b"\xe2\x80\xae", b"=", b"|", b"/", b"\r",
)  # fmt: skip
NUMBERS = (
    b"NaN", b"nan", b"Infinity", b"-Infinity", b"inf", b"-1", b"0", b"-0.0", b"1e308",
    b"1e-308", b"5e-324", b"1e18", b"1e400", b"-1e300", b"1" + b"0" * 400, b"9" * 5000,
    b"9223372036854775807", b"9223372036854775808", b"-9223372036854775809",
    b"18446744073709551616", b"0x7fffffffffffffff", b"1_000", b"1,5", b"", b'"7"', b"null",
    b"true", b"[1]", b"{}", b"4294967296", b"2147483648", b"0.0001",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 2, 2**31, 2**53, 2**62, 2**63, -(2**63), 10**30, 10**400, 1.5,
    -0.5, 1e18, 1e308, -1e300, 5e-324, float("nan"), float("inf"), float("-inf"), "", "x", "7",
    "12.5", "nan", "\u202e", "\x1b[2J", "\ud800", "a" * 5000, [], [1], [None], [[2, 3], [3, 4]], {},
    {"a": 1}, [{}], "rank 3", "0/0", "ProfilerStep#1", "Optimizer.step#X", "kernel", "cpu_op",
    "cuda_runtime", "gpu_memcpy", "aten::mm", "step",
)  # fmt: skip
DEPTHS, DEEP = (20, 99, 150, 700, 50_000), "deep %d"
"""Values inside one another, and the word that stands for them until the text is written."""
NO_TEXT = (b"\xff", b"\xed\xa0\x80", b"\xf2", b"\x1b", b"\x00", b"\x9b")
WORD = re.compile(rb"[A-Za-z_]{3,}")
NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")

Mutation = Callable[[bytearray, random.Random], None]


def mutated(data: bytes, chance: random.Random) -> bytes:
    """The file, damaged in one to a few places; sometimes packed, before or after."""
    if chance.random() < 0.04:
        data, is_packed = gzip.compress(data, 1, mtime=0), True
    else:
        is_packed = False
    if data.startswith(SQLITE) and chance.random() < 0.6:
        damaged = _database(data, chance)
    elif data[:1] in (b"{", b"[") and chance.random() < 0.75:
        damaged = _structure(data, chance)
    else:
        piece = bytearray(data)
        for _ in range(chance.choice([1, 1, 2, 5])):
            if piece:
                chance.choice(BY_BYTE)(piece, chance)
        damaged = bytes(piece)
    return gzip.compress(damaged, 1) if not is_packed and chance.random() < 0.05 else damaged


def flip(data: bytearray, chance: random.Random) -> None:
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def insert(data: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(data))
    data[at:at] = chance.choice(TOKENS)


def overwrite(data: bytearray, chance: random.Random) -> None:
    at, token = chance.randrange(len(data)), chance.choice(TOKENS)
    data[at : at + len(token)] = token


def delete(data: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(data))
    del data[at : at + chance.choice([1, 2, 10, 500])]


def cut_off(data: bytearray, chance: random.Random) -> None:
    del data[chance.randrange(len(data)) :]


def repeat(data: bytearray, chance: random.Random) -> None:
    at, size = chance.randrange(len(data)), chance.choice([3, 50, 800])
    data[at:at] = data[at : at + size] * chance.choice([1, 2, 40])


def move(data: bytearray, chance: random.Random) -> None:
    at, size, to = (
        chance.randrange(len(data)),
        chance.choice([5, 100, 1000]),
        chance.randrange(len(data)),
    )
    data[to:to] = data[at : at + size]


def change_number(data: bytearray, chance: random.Random) -> None:
    found = NUMBER.search(data, chance.randrange(len(data)))
    if found is not None:
        data[found.start() : found.end()] = chance.choice(NUMBERS)


def change_same_numbers(data: bytearray, chance: random.Random) -> None:
    """Every number after some place, or the one of each line."""
    start, value = chance.randrange(len(data)), chance.choice(NUMBERS)
    data[start:] = NUMBER.sub(
        lambda _: value, bytes(data[start:]), count=chance.choice([3, 30, 300])
    )


def change_lines(data: bytearray, chance: random.Random) -> None:
    lines = bytes(data).split(b"\n")
    at, other = chance.randrange(len(lines)), chance.randrange(len(lines))
    action = chance.choice(("twice", "drop", "swap", "empty", "join"))
    if action == "twice":
        lines[at:at] = [lines[other]] * chance.choice([1, 30])
    elif action == "drop":
        del lines[at]
    elif action == "swap":
        lines[at], lines[other] = lines[other], lines[at]
    elif action == "empty":
        lines[at] = b""
    else:
        lines[at] += b"," + lines[other]
    data[:] = b"\n".join(lines)


def change_column(data: bytearray, chance: random.Random) -> None:
    """One cell of every row of a table."""
    lines = bytes(data).split(b"\n")
    mark = max((b",", b"\t", b"|", b" "), key=data.count)
    at, value, every = (
        chance.randrange(max(1, lines[0].count(mark) + 1)),
        chance.choice(NUMBERS),
        chance.choice([1, 1, 2, 5]),
    )
    for number, line in enumerate(lines):
        cells = line.split(mark)
        if number and number % every == 0 and at < len(cells):
            cells[at] = value
            lines[number] = mark.join(cells)
    data[:] = b"\n".join(lines)


def spoil_text(data: bytearray, chance: random.Random) -> None:
    """A byte inside a word that is no character."""
    found = WORD.search(data, chance.randrange(len(data)))
    if found is not None:
        data[found.start() + 1 : found.start() + 2] = chance.choice(
            [b"\xff", b"\xed\xa0\x80", b"\xf2", b"\x1b", b"\x00", b"\x9b"]
        )


BY_BYTE: tuple[Mutation, ...] = (
    flip, insert, overwrite, delete, cut_off, repeat, move, change_lines, change_lines, spoil_text,
    spoil_text, change_column, change_number, change_number, change_number, change_number,
    change_number, change_same_numbers,
)  # fmt: skip


def _structure(data: bytes, chance: random.Random) -> bytes:
    """JSON with values changed where they stand; lines of JSON line by line."""
    try:
        value = json.loads(data)
    except ValueError:
        lines = data.split(b"\n")
        at = chance.randrange(len(lines))
        with suppress(ValueError):
            lines[at] = _written(_changed(json.loads(lines[at]), chance), chance)
        return b"\n".join(lines)
    return _written(_changed(value, chance), chance)


def _changed(value: Any, chance: random.Random) -> Any:
    """Some places changed: a name is drawn first, for a trace has thousands of some and one of
    others."""
    holder = {"": copy.deepcopy(value)}
    for _ in range(chance.choice([1, 1, 1, 2, 4, 30])):
        places = _places(holder)
        _change_one(chance.choice(places[chance.choice(sorted(places))]), places, chance)
    return holder[""]


def _change_one(
    place: tuple[Any, Any], places: dict[str, list[tuple[Any, Any]]], chance: random.Random
) -> None:
    parent, key = place
    action = chance.choice(("change",) * 8 + ("every",) * 4 + ("drop", "twice", "deep"))
    if action == "drop" and key != "":
        del parent[key]
    elif action == "twice" and isinstance(parent, list):
        parent.insert(key, copy.deepcopy(parent[key]))
    elif action == "deep":
        parent[key] = DEEP % chance.choice(DEPTHS)
    elif action == "every" and isinstance(key, str):
        new, step = chance.choice(VALUES), chance.choice([1, 1, 2, 10])
        for holder, name in places[key][::step]:
            holder[name] = copy.deepcopy(new)
    else:
        parent[key] = copy.deepcopy(chance.choice(VALUES))


def _places(value: Any) -> dict[str, list[tuple[Any, Any]]]:
    """Every place of the value by its name: what holds it, and its key. Those of a list have none
    of their own."""
    places: dict[str, list[tuple[Any, Any]]] = {}
    pending = [(value, "")]
    while pending:
        holder, name = pending.pop()
        for key in holder if isinstance(holder, dict) else range(len(holder)):
            own = str(key) if isinstance(holder, dict) else f"{name}[]"
            places.setdefault(own, []).append((holder, key))
            if isinstance(holder[key], dict | list):
                pending.append((holder[key], own))
    return places


def _written(value: Any, chance: random.Random) -> bytes:
    """The value as JSON, with what json.dumps does not write: bytes that are no text, values deep
    in one another."""
    text = json.dumps(value).encode()
    for depth in DEPTHS:
        inner = (
            (b"[" * depth, b"]" * depth)
            if chance.random() < 0.5
            else (b'{"a":[' * (depth // 2), b"]}" * (depth // 2))
        )
        text = text.replace(f'"{DEEP % depth}"'.encode(), b"7".join(inner))
    return text.replace(b'"\\ud800"', b'"\xff"') if chance.random() < 0.3 else text


def _database(data: bytes, chance: random.Random) -> bytes:
    """A database with other cells, or without a table or a column; as it was where that cannot
    be."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "base"
        path.write_bytes(data)
        with (
            closing(sqlite3.connect(path)) as base,
            suppress(sqlite3.Error, OverflowError, UnicodeEncodeError),
        ):
            tables = [
                row[0]
                for row in base.execute("select name from sqlite_master where type = 'table'")
            ]
            for _ in range(chance.choice([1, 2, 5])):
                _damage_table(base, chance.choice(tables), chance)
            base.commit()
        return path.read_bytes()


def _damage_table(base: sqlite3.Connection, table: str, chance: random.Random) -> None:
    columns = [row[1] for row in base.execute(f"pragma table_info([{table}])")]
    if not columns:  # Dropped in this round.
        return
    column, action = (
        chance.choice(columns),
        chance.choice(("cell", "cell", "column", "rename", "drop", "drop column", "twice")),
    )
    value = chance.choice(
        [v for v in VALUES if isinstance(v, int | float | str | None) and v != 10**30]
    )
    if action == "cell":
        base.execute(
            f"update [{table}] set [{column}] = ? where rowid % ? = 0",  # noqa: S608
            (value, chance.choice([1, 2, 7])),
        )
    elif action == "column":
        base.execute(
            f"update [{table}] set [{column}] = [{column}] * ?",  # noqa: S608
            (chance.choice([0, -1, 2**40, 1e300, 0.5]),),
        )
    elif action == "rename":
        base.execute(f"alter table [{table}] rename column [{column}] to other")
    elif action == "drop":
        base.execute(f"drop table [{table}]")
    elif action == "drop column":
        base.execute(f"alter table [{table}] drop column [{column}]")
    else:
        base.execute(f"insert into [{table}] select * from [{table}]")  # noqa: S608
