"""Damage that knows nothing of formats: files of different kinds spliced into one another, lengths
and offsets of binary ones changed, other encodings and packings. Deterministic from a seed.
"""

from __future__ import annotations

import bz2
import gzip
import io
import random
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Sequence

import zstandard

MAX_BYTES = 1 << 20
INTEGERS = ("B", "<H", ">H", "<I", ">I", "<Q", ">Q")
ENCODINGS = (
    "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be", "utf-8-sig", "utf-7", "cp500",
    "cp1252", "shift_jis", "iso2022_jp",
)  # fmt: skip
ENDS = ("\r\n", "\r", "\n\r", "\x85", "\u2028", "\x0c", "\x00")

Damage = Callable[[bytes, bytes, random.Random], bytes]


def spliced(one: bytes, other: bytes, chance: random.Random) -> bytes:
    """The first file, damaged in one to three ways, with pieces of the other."""
    data = one
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        data = chance.choice(WAYS)(data, other, chance)[:MAX_BYTES]
    return data


def name_of(names: Sequence[str], chance: random.Random) -> str:
    """One of the names, now and then with the end of another."""
    name, other = chance.choice(names), chance.choice(names)
    if chance.random() < 0.3:
        name = name.split(".", 1)[0] + "." + other.split(".", 1)[-1]
    return name.replace("/", "_")


def _at(data: bytes, chance: random.Random) -> int:
    """A place: anywhere, near the ends, or at a power of two."""
    size = len(data)
    edge = chance.choice((0, 1, 2, 4, 16, 100, 512, 4096, size // 2, size - 1, size - 8))
    return max(0, min(size, edge if chance.random() < 0.4 else chance.randint(0, size)))


def _piece(data: bytes, chance: random.Random) -> bytes:
    begin = _at(data, chance)
    return data[begin : begin + chance.choice((1, 4, 8, 64, 512, 5_000, 100_000))]


def cross(data: bytes, other: bytes, chance: random.Random) -> bytes:
    return data[: _at(data, chance)] + other[_at(other, chance) :]


def graft(data: bytes, other: bytes, chance: random.Random) -> bytes:
    at = _at(data, chance)
    return data[:at] + _piece(other, chance) + data[at:]


def overlay(data: bytes, other: bytes, chance: random.Random) -> bytes:
    at, piece = _at(data, chance), _piece(other, chance)
    return data[:at] + piece + data[at + len(piece) :]


def swap(data: bytes, other: bytes, chance: random.Random) -> bytes:
    a, b, c = sorted(_at(data, chance) for _ in range(3))
    return data[:a] + data[b:c] + data[a:b] + data[c:]


def weave(data: bytes, other: bytes, chance: random.Random) -> bytes:
    """Blocks or lines of both, in turn."""
    if chance.random() < 0.5:
        one, two = data.splitlines(keepends=True), other.splitlines(keepends=True)
    else:
        size = chance.choice((7, 64, 512, 4096))
        one, two = ([x[i : i + size] for i in range(0, len(x), size)] for x in (data, other))
    return b"".join(part for pair in zip(one, two, strict=False) for part in pair)


def number(data: bytes, other: bytes, chance: random.Random) -> bytes:
    """An integer somewhere, in some width and order, as lengths and offsets are: none, too much, or
    what just fits."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 4, 20))):
        form = chance.choice(INTEGERS)
        width = struct.calcsize(form)
        at = min(_at(data, chance), max(len(data) - width, 0))
        most = (1 << 8 * width) - 1
        values = (0, 1, most, most >> 1, (most >> 1) + 1, len(data), len(data) - at, at, 1 << 31)
        value = chance.choice(values) + chance.choice((-1, 0, 0, 1))
        changed[at : at + width] = struct.pack(form, value % (most + 1))
    return bytes(changed)


def varint(data: bytes, other: bytes, chance: random.Random) -> bytes:
    at = _at(data, chance)
    return data[:at] + b"\xff" * chance.choice((1, 4, 9, 10, 40)) + b"\x01" + data[at + 1 :]


def recoded(data: bytes, other: bytes, chance: random.Random) -> bytes:
    text = data.decode("utf-8", "replace")
    if chance.random() < 0.3:
        text = text.replace("\n", chance.choice(ENDS))
    return text.encode(chance.choice(ENCODINGS), "replace")


def padded(data: bytes, other: bytes, chance: random.Random) -> bytes:
    filler = chance.choice((b"\x00", b" ", b"\n", b"\xff", b"\xef\xbb\xbf", b"[", b"<"))
    filler *= chance.choice((1, 3, 512, 60_000))
    return filler + data if chance.random() < 0.5 else data + filler


def repeated(data: bytes, other: bytes, chance: random.Random) -> bytes:
    return data * chance.choice((2, 3, 10))


def cut(data: bytes, other: bytes, chance: random.Random) -> bytes:
    return data[: _at(data, chance)] if chance.random() < 0.7 else data[_at(data, chance) :]


def packed(data: bytes, other: bytes, chance: random.Random) -> bytes:
    """In one or two packings, whole or damaged inside."""
    for _ in range(chance.choice((1, 1, 2))):
        data = chance.choice(PACKINGS)(data[:MAX_BYTES], other[:MAX_BYTES])
    return data if chance.random() < 0.5 else number(data, other, chance)


def _tar(data: bytes, other: bytes) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, content in (("rank0.json", data), ("../x", other), ("a/b.sqlite", data)):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return file.getvalue()


def _zip(data: bytes, other: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as folder:
        folder.writestr("rank0.json", data)
        folder.writestr("../x", other)
    return file.getvalue()


PACKINGS: tuple[Callable[[bytes, bytes], bytes], ...] = (
    lambda data, other: gzip.compress(data, 1, mtime=0),
    lambda data, other: gzip.compress(data, 1, mtime=0) + gzip.compress(other, 1, mtime=0),
    lambda data, other: bz2.compress(data),
    lambda data, other: zlib.compress(data),
    lambda data, other: zstandard.compress(data),
    lambda data, other: zstandard.compress(data) + other[:1000],
    _tar,
    _zip,
)
WAYS: tuple[Damage, ...] = (
    cross, cross, graft, overlay, swap, weave, number, number, number, varint, recoded, padded,
    repeated, cut, packed,
)  # fmt: skip
