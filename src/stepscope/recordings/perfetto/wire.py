"""Protocol buffers from the wire, as much as a Perfetto trace needs: the fields of a message, and
the packets of a file.

A field is a tag (its number and how it is written) and a value
(protobuf.dev/programming-guides/encoding). Nothing is built for what is not asked for: a message
inside another is given as its bytes.
"""

from __future__ import annotations

import zlib
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from stepscope.readers.stream import EXPANSION_FREE_BYTES, MAX_EXPANSION

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
MAX_VARINT = 10
"""Bytes of a number of 64 bits."""
MAX_PACKET_BYTES = 16 << 20
MAX_INFLATED_BYTES = 16 << 20
"""Bytes of one packet that holds others compressed: Perfetto squeezes half a megabyte at a time."""
MAX_FIELDS = 1 << 20
"""Fields of one message at most."""
PACKET = 0x0A
"""Trace.packet: field 1, bytes. Every other field of a trace is skipped."""
COMPRESSED, COMPRESSED_TAG = 50, b"\x92\x03"
"""TracePacket.compressed_packets"""

Value = int | bytes


class WireError(Exception):
    """The bytes are not a message."""


def fields(message: bytes) -> list[tuple[int, Value]]:
    """Each field's number and value: a whole number of 0 or more, or bytes."""
    entries: list[tuple[int, Value]] = []
    at, size = 0, len(message)
    while at < size:
        tag = message[at]
        at += 1
        if tag > 0x7F:
            tag, at = varint(message, at - 1)
        kind = tag & 7
        if kind in (VARINT, BYTES):
            value = message[at] if at < size else 0x80
            at += 1
            if value > 0x7F:
                value, at = varint(message, at - 1)
            if kind == VARINT:
                entries.append((tag >> 3, value))
            elif value <= size - at:
                entries.append((tag >> 3, message[at : at + value]))
                at += value
            else:
                raise WireError("a field is longer than its message")
        elif kind in (FIXED64, FIXED32):
            width = 8 if kind == FIXED64 else 4
            if width > size - at:
                raise WireError("a field is longer than its message")
            entries.append((tag >> 3, int.from_bytes(message[at : at + width], "little")))
            at += width
        else:
            raise WireError(f"a field of kind {kind}")
        if tag < 8 or len(entries) > MAX_FIELDS:
            raise WireError("a field of number 0" if tag < 8 else "too many fields")
    return entries


def varint(message: bytes, at: int) -> tuple[int, int]:
    """A number, and where it ends."""
    try:
        byte = message[at]
        if byte < 0x80:
            return byte, at + 1
        value, shift = byte & 0x7F, 7
        for end in range(at + 1, at + MAX_VARINT):
            byte = message[end]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & 0xFFFF_FFFF_FFFF_FFFF, end + 1
            shift += 7
    except IndexError:
        raise WireError("a number is cut off") from None
    raise WireError("a number of more than 64 bits")


def signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


class Block(NamedTuple):
    """Some packets: where each begins and ends in the text."""

    text: bytes
    starts: list[int]
    ends: list[int]


@dataclass(slots=True)
class Packets:
    """The packets of a file, some megabytes at a time."""

    blocks: Iterator[bytes]
    truncated: bool = False
    num_oversized: int = 0
    num_damaged: int = 0
    _inflated_bytes: int = 0
    _deflated_bytes: int = 0

    def __iter__(self) -> Iterator[Block]:
        text, at = b"", 0
        for block in self.blocks:
            text = text[at:] + block
            at = yield from self._whole(text)
        self.truncated = at < len(text)

    def _whole(self, text: bytes) -> Generator[Block, None, int]:
        """The packets that are whole in this text, and where they end. Those before damage come
        first, then it is told."""
        block, at, length = Block(text, [], []), 0, len(text)
        while at < length:
            body, size = at + 2, text[at + 1] if at + 1 < length else 0x80
            if size > 0x7F or text[at] != PACKET:  # Not as most of them are.
                try:
                    bounds = _next(text, at)
                    if bounds is not None and bounds[1] > MAX_PACKET_BYTES:
                        raise WireError(f"a packet of {bounds[1] >> 20} MiB")
                except WireError:
                    yield block
                    raise
                if bounds is None:
                    break
                body, size = bounds
            end = body + size
            if end > length:
                break
            if text.find(COMPRESSED_TAG, body, body + 16) >= 0 and (
                squeezed := _squeezed(text[body:end])
            ):
                yield block
                block = Block(text, [], [])
                yield from self._inflated(squeezed)
            elif text[at] == PACKET:
                block.starts.append(body)
                block.ends.append(end)
            at = end
        yield block
        return at

    def _inflated(self, squeezed: list[bytes]) -> Iterator[Block]:
        """The packets that were compressed together."""
        for value in squeezed:
            engine = zlib.decompressobj()
            try:
                inner = engine.decompress(value, MAX_INFLATED_BYTES)
            except zlib.error:
                self.num_damaged += 1
                continue
            self.num_oversized += not engine.eof
            self._deflated_bytes += len(value)
            self._inflated_bytes += len(inner)
            if self._inflated_bytes > EXPANSION_FREE_BYTES + MAX_EXPANSION * self._deflated_bytes:
                raise WireError(f"its compressed packets expand more than {MAX_EXPANSION} times")
            yield _bounds(inner)


def _squeezed(packet: bytes) -> list[bytes]:
    """What a packet holds compressed; nothing where it is another packet, or damaged."""
    try:
        return [
            value
            for field, value in fields(packet)
            if field == COMPRESSED and isinstance(value, bytes)
        ]
    except WireError:
        return []


def _bounds(text: bytes) -> Block:
    """The whole packets of a text that was unpacked; nothing is compressed twice."""
    block, at = Block(text, [], []), 0
    while (bounds := _next(text, at)) is not None and bounds[0] + bounds[1] <= len(text):
        if text[at] == PACKET:
            block.starts.append(bounds[0])
            block.ends.append(sum(bounds))
        at = sum(bounds)
    return block


def _next(text: bytes, at: int) -> tuple[int, int] | None:
    """Where the next packet's bytes begin and how many they are; None where the text ends first."""
    try:
        tag, after = varint(text, at)
        size, body = varint(text, after)
    except WireError:
        if len(text) - at > 2 * MAX_VARINT:
            raise
        return None
    if tag & 7 != BYTES:
        raise WireError(f"no packet but field {tag >> 3} of kind {tag & 7}")
    return body, size
