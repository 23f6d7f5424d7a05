"""Protocol buffers on the wire, as much as a Perfetto trace needs: single fields, and many messages
of one layout at once.

A field is a tag (its number and how it is written) and a value; a message inside another is its
length and its bytes (protobuf.dev/programming-guides/encoding). A number may be written with more
bytes than it needs. So messages that differ in their values alone can be given one length, and be
made as rows of one numpy array.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from stepscope.core.trace import Float64, Int64, UInt8

VARINT, FIXED64, BYTES = 0, 1, 2

Piece = bytes | UInt8
"""A part of a layout: the same bytes in every message, or one row of bytes for each."""


def varint(value: int) -> bytes:
    """A whole number of 0 or more, seven bits a byte, the lowest first."""
    assert value >= 0
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def tag(field: int, kind: int) -> bytes:
    return varint(field << 3 | kind)


def number(field: int, value: int) -> bytes:
    """An integer, a flag or an enum's value; a negative one as its 64-bit complement."""
    return tag(field, VARINT) + varint(value & 0xFFFF_FFFF_FFFF_FFFF)


def real(field: int, value: float) -> bytes:
    return tag(field, FIXED64) + struct.pack("<d", value)


def data(field: int, value: bytes) -> bytes:
    """A message inside this one, or bytes."""
    return tag(field, BYTES) + varint(len(value)) + value


def text(field: int, value: str) -> bytes:
    return data(field, value.encode("utf-8"))


def numbers(field: int, values: Int64) -> list[Piece]:
    """A whole number of 0 or more per message, all in as many bytes as the greatest needs."""
    width = max(1, -(-int(values.max()).bit_length() // 7)) if len(values) else 1
    shifts = np.arange(0, 7 * width, 7, dtype=np.int64)
    rows = (values[:, None] >> shifts & 0x7F).astype(np.uint8)
    rows[:, :-1] |= 0x80
    return [tag(field, VARINT), rows]


def fixed(field: int, values: Int64) -> list[Piece]:
    """A number of eight bytes per message."""
    return [tag(field, FIXED64), np.ascontiguousarray(values, "<i8").view(np.uint8).reshape(-1, 8)]


def reals(field: int, values: Float64) -> list[Piece]:
    return [tag(field, FIXED64), np.ascontiguousarray(values, "<f8").view(np.uint8).reshape(-1, 8)]


def inside(field: int, pieces: Sequence[Piece]) -> list[Piece]:
    """Write these pieces as one message inside another."""
    return [tag(field, BYTES) + varint(sum(map(_width, pieces))), *pieces]


def rows_of(pieces: Sequence[Piece], count: int) -> UInt8:
    """The messages, one a row."""
    rows = np.empty((count, sum(map(_width, pieces))), np.uint8)
    at = 0
    for piece in pieces:
        width = _width(piece)
        rows[:, at : at + width] = (
            np.frombuffer(piece, np.uint8) if isinstance(piece, bytes) else piece
        )
        at += width
    return rows


def interleaved(parts: Sequence[tuple[Int64, UInt8]], count: int) -> bytes:
    """Messages of several layouts, each part with the positions of its rows among all `count`, in
    the order of their positions."""
    sizes = np.zeros(count, np.int64)
    for positions, rows in parts:
        sizes[positions] = rows.shape[1]
    begins = np.cumsum(sizes) - sizes
    out = np.empty(int(sizes.sum()), np.uint8)
    for positions, rows in parts:
        out[begins[positions][:, None] + np.arange(rows.shape[1])] = rows
    return out.tobytes()


def _width(piece: Piece) -> int:
    return len(piece) if isinstance(piece, bytes) else piece.shape[1]
