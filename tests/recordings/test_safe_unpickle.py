"""Pickles without the loader: plain values come out as they went in, everything else is refused and
nothing is run."""

from __future__ import annotations

import ast
import random
import subprocess
import sys
from pathlib import Path
from struct import pack
from typing import Any

import pytest

from stepscope.errors import FormatError
from stepscope.recordings import safe_unpickle as plain_pickle
from stepscope.recordings.safe_unpickle import load_plain
from tests.memory_snapshots import pickled

VALUE: dict[str, Any] = {
    "words": ["", "a", "é€", "x" * 300, "a"],
    "numbers": [
        0,
        1,
        -1,
        255,
        256,
        65536,
        -(2**31),
        2**31,
        2**63 + 5,
        -(2**70),
        1.5,
        -0.0,
        float("inf"),
    ],
    "more": [
        True,
        False,
        None,
        (),
        (1,),
        (1, 2),
        (1, 2, 3),
        (1, 2, 3, 4),
        [],
        [[[]]],
        {},
        {"a": {"b": []}},
        b"",
        b"\x00\xff" * 200,
    ],
    "sets": [{1, 2, "a"}, frozenset({3, None})],
    "many": list(range(3000)),
}


def written(protocol: int) -> bytes:
    """By the standard library's writer, in a process of its own; sets are plain from protocol 4
    on."""
    value = {name: part for name, part in VALUE.items() if protocol >= 4 or name != "sets"}
    if protocol < 3:
        value["more"] = VALUE["more"][:-2]  # Bytes are made by a call there.
    code = (
        f"import pickle, sys; inf = float('inf'); sys.stdout.buffer.write(pickle.dumps({value!r}, "
        f"protocol={protocol}))"
    )
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_values_come_back(protocol: int) -> None:
    told = load_plain(written(protocol), "x")
    assert told["words"] == VALUE["words"]
    assert told["numbers"] == VALUE["numbers"]
    assert told["more"] == (VALUE["more"] if protocol >= 3 else VALUE["more"][:-2])
    assert told["many"] == VALUE["many"]
    assert [type(value) for value in told["more"][:3]] == [bool, bool, type(None)]
    assert protocol < 4 or told["sets"] == VALUE["sets"]


def text(word: str) -> bytes:
    return b"\x8c" + bytes([len(word)]) + word.encode()


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_a_payload_is_refused_and_not_run(tmp_path: Path, protocol: int) -> None:
    mark = tmp_path / "ran"
    call = b"cposix\nsystem\n" if protocol == 2 else text("posix") + text("system") + b"\x93"
    data = b"\x80" + bytes([protocol]) + call + text(f"touch {mark}") + b"\x85R."
    with pytest.raises(FormatError, match=r"snap: .*byte \d+: .*(STACK_)?GLOBAL"):
        load_plain(data, "snap")
    assert not mark.exists()


def test_a_payload_inside_a_real_looking_snapshot_is_refused_at_its_place(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    start = b"\x80\x04}(" + text("segments")
    data = start + text("posix") + text("system") + b"\x93" + text(f"touch {mark}") + b"\x85Ru."
    with pytest.raises(FormatError, match=rf"byte {len(start) + 7 + 8}: .*STACK_GLOBAL"):
        load_plain(data, "snap")
    assert not mark.exists()


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (b"cos\nsystem\n", "GLOBAL"),
        (b"\x93", "STACK_GLOBAL"),
        (b"R", "REDUCE"),
        (b"b", "BUILD"),
        (b"ios\nsystem\n", "INST"),
        (b"o", "OBJ"),
        (b"\x81", "NEWOBJ"),
        (b"\x92", "NEWOBJ_EX"),
        (b"\x82\x01", "EXT1"),
        (b"\x83\x01\x00", "EXT2"),
        (b"\x84\x01\x00\x00\x00", "EXT4"),
        (b"Pid\n", "PERSID"),
        (b"Q", "BINPERSID"),
        (b"\x97", "NEXT_BUFFER"),
    ],
)
def test_every_code_that_can_run_something_is_refused_by_name(code: bytes, name: str) -> None:
    with pytest.raises(FormatError, match=rf"byte 5: .*\b{name}\b"):
        load_plain(b"\x80\x04}](" + code + b".", "snap")


def test_protocol_0_is_refused() -> None:
    with pytest.raises(FormatError, match="protocol 2 to 5"):
        load_plain(b"cos\nsystem\n(S'true'\ntR.", "snap")


def test_cut_off_anywhere_it_says_so() -> None:
    data = written(4)[:4000]
    for length in (*range(60), *range(60, len(data), 17)):
        with pytest.raises(FormatError):
            load_plain(data[:length], "snap")


def test_damaged_bytes_never_end_in_anything_but_words() -> None:
    data, draw = written(4)[:1500] + b".", random.Random(9)
    outcomes = set()
    for _ in range(800):
        hurt = bytearray(data)
        for _ in range(draw.randint(1, 4)):
            hurt[draw.randrange(2, len(hurt))] = draw.randrange(256)
        try:
            load_plain(bytes(hurt), "snap")
            outcomes.add("read")
        except FormatError as problem:
            outcomes.add(str(problem).split()[1])
    assert len(outcomes) > 3


@pytest.mark.parametrize(
    "body",
    [
        b"\x8d" + pack("<Q", 1 << 60) + b"x",  # BINUNICODE8
        b"\x8e" + pack("<Q", (1 << 64) - 1) + b"x",  # BINBYTES8
        b"X" + pack("<I", 0xFFFFFFFF) + b"x",
        b"B" + pack("<I", 0xFFFFFFFF) + b"x",
        b"\x8b" + pack("<I", 0x7FFFFFFF) + b"x",  # LONG4
        b"j" + pack("<I", 0xFFFFFFFF),  # LONG_BINGET
        b"]r" + pack("<I", 0xFFFFFFFF),  # LONG_BINPUT
        b"e",
        b"u",
        b"t",
        b"\x86",
        b"0",
        b"a",
        b"s",
        b"\x90",
        b"((",
        b"\x8c\x02\xff\xfe",
        b"I1\n",
        b"\xff",
        b"",
    ],
)
def test_huge_counts_and_missing_values_are_refused(body: bytes) -> None:
    with pytest.raises(FormatError):
        load_plain(b"\x80\x04" + body + b".", "snap")


def test_nesting_has_no_limit_and_costs_no_recursion() -> None:
    depth = 200_000
    value = load_plain(b"\x80\x04" + b"]" * depth + b"a" * (depth - 1) + b".", "snap")
    for _ in range(depth - 1):
        (value,) = value
    assert value == []


@pytest.mark.parametrize(
    "key", [b")" + b"\x85" * 200_000, b"]", b"}", b"\x8a\x09" + b"\xff" * 8 + b"\x00"]
)
def test_keys_that_hash_deep_or_slowly_are_refused(key: bytes) -> None:
    with pytest.raises(FormatError, match="as a key"):
        load_plain(b"\x80\x04}" + key + b"Ns.", "snap")


def test_more_containers_than_a_snapshot_has_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_pickle, "MAX_CONTAINERS", 1000)
    for code in (b"}", b"]", b"\x8f", b"N\x85"):
        with pytest.raises(FormatError, match="more than 1,000 containers"):
            load_plain(b"\x80\x04" + code * 1001 + b".", "snap")


def test_the_writer_of_these_tests_is_read_back() -> None:
    value = {"a": [1, -5, 1 << 40, "é", None, True, 2.5, (1, 2)], "b": {}}
    assert load_plain(pickled(value), "x") == value
    assert ast.literal_eval(repr(load_plain(pickled(value), "x"))) == value
