"""Protocol buffers decoded many messages at a time: the first field of all of them, then the second
of all, and so on.

A file has millions of small packets that look alike. One operation of numpy's over thousands of
them costs what a few on one of them cost in Python.

    messages          08 05 1a 02 61 62 | 08 ac 02
    fields  owner     0     0             1
            number    1     3             1
            value     5     4             300          a number, or the place of the first byte
            size      NONE  2             NONE         of bytes
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepscope.core.trace import NONE, Bool, Int64
from stepscope.recordings.perfetto.wire import BYTES, FIXED32, FIXED64, MAX_VARINT, VARINT

UInt8 = NDArray[np.uint8]
MAX_FIELDS = 256
"""Fields of one message at most. Perfetto's events have some ten; one with more is taken for
damage, so that no message holds up the others."""
PADDING = 16
"""Bytes after the text, so that a number that is cut off is read to its end before it is found
out."""


def padded(text: bytes) -> UInt8:
    return np.frombuffer(text + bytes(PADDING), np.uint8)


@dataclass(slots=True)
class Fields:
    """The fields of `num` messages, message by message, in the order they stand in each."""

    num: int
    owner: Int64
    number: Int64
    value: Int64
    size: Int64
    bad: Bool
    """Mask of the messages that cannot be read, and have no fields here."""

    def numbers(self, *wanted: int, default: int = NONE) -> list[int]:
        """Number of each message in one of these fields, the last one where there are several."""
        mine = np.isin(self.number, wanted) & (self.size == NONE)
        numbers = np.full(self.num, default, np.int64)
        numbers[self.owner[mine]] = self.value[mine]
        return numbers.tolist()  # type: ignore[no-any-return]

    def spans(self, wanted: int) -> tuple[Int64, Int64]:
        """Begin and end of the bytes of a field in each message, the last one's where there are
        several; else NONE."""
        mine = (self.number == wanted) & (self.size != NONE)
        start, end = np.full(self.num, NONE, np.int64), np.full(self.num, NONE, np.int64)
        start[self.owner[mine]] = self.value[mine]
        end[self.owner[mine]] = self.value[mine] + self.size[mine]
        return start, end


def decode(data: UInt8, start: Int64, end: Int64) -> Fields:
    """The fields of the messages that lie between these places of padded text."""
    bad = np.zeros(len(start), np.bool_)
    at = start.copy()
    live = np.flatnonzero(at < end)
    chunks: list[tuple[Int64, Int64, Int64, Int64]] = []
    for _ in range(MAX_FIELDS):
        if not len(live):
            break
        tag, key_end, is_whole = _varints(data, at[live])
        number, kind = tag >> 3, tag & 7
        value, after, is_number = _varints(data, key_end)
        has_bytes = kind == BYTES
        size = np.where(has_bytes, value, NONE)
        value = np.where(has_bytes, after, value)
        after = np.where(has_bytes, after + size, after)
        for fixed, width in ((FIXED64, 8), (FIXED32, 4)):
            if (some := np.flatnonzero(kind == fixed)).size:
                value[some] = _fixed(data, key_end[some], width)
                after[some] = key_end[some] + width
                is_number[some] = True
        is_known = np.isin(kind, (VARINT, BYTES, FIXED64, FIXED32))
        good = (
            is_whole
            & is_number
            & is_known
            & (number > 0)
            & (size >= NONE)
            & (after >= key_end)
            & (after <= end[live])
        )
        bad[live[~good]] = True
        live, after = live[good], after[good]
        chunks.append((live, number[good], value[good], size[good]))
        at[live] = after
        live = live[after < end[live]]
    bad[live] = True
    owner, numbers, values, sizes = (
        (np.concatenate(part) for part in zip(*chunks, strict=True))
        if chunks
        else (np.empty(0, np.int64) for _ in range(4))
    )
    order = np.argsort(owner, kind="stable")
    order = order[~bad[owner[order]]]
    return Fields(
        num=len(start),
        owner=owner[order],
        number=numbers[order],
        value=values[order],
        size=sizes[order],
        bad=bad,
    )


def first_numbers(data: UInt8, fields: Fields, wanted: int) -> list[int]:
    """Numbers of a field that may also be written as many numbers together, as `numbers` has them:
    then the first of them."""
    together = (fields.number == wanted) & (fields.size > 0)
    value = fields.value.copy()
    value[together] = _varints(data, fields.value[together])[0]
    mine = together | ((fields.number == wanted) & (fields.size == NONE))
    numbers = np.full(fields.num, NONE, np.int64)
    numbers[fields.owner[mine]] = value[mine]
    return numbers.tolist()  # type: ignore[no-any-return]


def _varints(data: UInt8, at: Int64) -> tuple[Int64, Int64, Bool]:
    """The numbers that begin at these places (64 bits, those past 2 ** 63 below 0), where they end,
    and whether each does."""
    byte = data[np.minimum(at, len(data) - 1)].astype(np.uint64)
    value, after = byte & np.uint64(0x7F), at + 1
    more = np.flatnonzero(byte > 0x7F)
    for turn in range(1, MAX_VARINT):
        if not len(more):
            break
        byte = data[np.minimum(at[more] + turn, len(data) - 1)].astype(np.uint64)
        value[more] |= (byte & np.uint64(0x7F)) << np.uint64(7 * turn)
        after[more] += 1
        more = more[byte > 0x7F]
    is_whole = np.ones(len(at), np.bool_)
    is_whole[more] = False
    return value.view(np.int64), after, is_whole


def _fixed(data: UInt8, at: Int64, width: int) -> Int64:
    indices = np.minimum(at[:, None] + np.arange(width), len(data) - 1)
    shifts = np.uint64(8) * np.arange(width, dtype=np.uint64)
    summed: NDArray[np.uint64] = (data[indices].astype(np.uint64) << shifts).sum(
        axis=1, dtype=np.uint64
    )
    return summed.view(np.int64)
