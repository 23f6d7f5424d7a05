"""The allocator's segments and the blocks in them, as its events move them: what is free, and in
what pieces.

An event has the bytes that were asked for, not the block that was given. The block follows from
the allocator's own rules (c10/cuda/CUDACachingAllocator.cpp): a size is rounded up to 512 bytes,
and a free piece is cut only if enough is left of it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from msgspec import Struct

ROUND_BYTES = 512
SMALL_BYTES = 1 << 20
"""Bytes up to which a block is from the small pool, where a piece is cut whenever 512 bytes are
left; above only if more than this is left."""
SUMMED = 512
"""Addresses of which the sizes are summed up together."""


class Rules(Struct, frozen=True, kw_only=True):
    """The allocator's settings that decide about sizes."""

    max_split_bytes: int | None = None
    divisions: tuple[int, ...] = ()
    """Divisions of each power of two, from 1 MiB on, into which sizes are rounded; 0 for none."""

    @classmethod
    def of(cls, settings: dict[str, Any]) -> Rules:
        split = settings.get("max_split_size")
        table = settings.get("roundup_power2_divisions")
        parts: tuple[Any, ...] = (
            tuple(table.get(str(1 << i), 0) for i in range(16)) if isinstance(table, dict) else ()
        )
        return cls(
            max_split_bytes=split if type(split) is int and 0 < split < 1 << 62 else None,
            divisions=parts
            if all(type(part) is int and 0 <= part <= 1 << 16 for part in parts)
            else (),
        )

    def rounded(self, size: int) -> int:
        if size < ROUND_BYTES:
            return ROUND_BYTES
        if self.divisions:
            index = min(max((size >> 20).bit_length() - 1, 0), len(self.divisions) - 1)
            parts = self.divisions[index]
            if parts > 1 and size > ROUND_BYTES * parts:
                piece = (1 << (size.bit_length() - 1)) // parts
                return max(ROUND_BYTES, -(-size // piece) * piece) if piece else size
        return -(-size // ROUND_BYTES) * ROUND_BYTES


@dataclass(slots=True)
class Piece:
    """One stretch of addresses that the driver gave."""

    addr: int
    size: int
    expandable: bool
    num: int = 0
    """Blocks in use."""
    used: int = 0

    @property
    def end(self) -> int:
        return self.addr + self.size


class Arena:
    """All of one device. The addresses at which segments and blocks may begin are known before."""

    def __init__(self, rules: Rules, starts: Iterable[int], blocks: Iterable[int]) -> None:
        self.rules = rules
        self.reserved = 0
        self.split = 0
        """Free bytes in pieces that are partly used."""
        self.blocks: dict[int, int] = {}
        """Bytes of each block in use."""
        self._pieces: dict[int, Piece] = {}
        self._starts = Marked(starts)
        self._live = Marked(blocks)

    @property
    def num_pieces(self) -> int:
        return len(self._pieces)

    def has(self, addr: int) -> bool:
        """Whether the address lies in a segment."""
        return self._piece_at(addr) is not None

    def add(self, addr: int, size: int, *, expandable: bool) -> None:
        """The driver gives a segment. Expandable ones that touch are one."""
        self.reserved += size
        before = self._piece_before(addr)
        if expandable and before is not None and before.expandable and before.end == addr:
            self._leave(before)
            before.size += size
            self._join(before)
            self._enter(before)
            return
        if addr in self._pieces:
            # Given twice, in a file that makes no sense.
            again = self._pieces[addr]
            self._remove(again)
            self._live.clear(addr, again.end)
        piece = self._put(Piece(addr, size, expandable))
        if expandable:
            self._join(piece)
        self._enter(piece)

    def take(self, addr: int, size: int) -> None:
        """The driver gets it back; of an expandable segment it may be a stretch in the middle."""
        self.reserved -= size
        piece = self._piece_at(addr)
        if piece is None:
            return
        self._remove(piece)
        stays = ((piece.addr, addr), (addr + size, piece.end)) if piece.expandable else ()
        gone = (addr, min(addr + size, piece.end)) if piece.expandable else (piece.addr, piece.end)
        for start, end in stays:
            if end > start:
                num, used = self._live.between(start, end)
                self._enter(self._put(Piece(start, end - start, True, num, used)))
        self._live.clear(*gone)

    def hold(self, addr: int, requested: int, size: int | None = None) -> int:
        """A block is in use from now on; gives its bytes."""
        piece = self._piece_at(addr)
        size = self._given(piece, addr, requested) if size is None else size
        self.release(addr)
        self.blocks[addr] = size
        if piece is not None:
            self._leave(piece)
            self._live.mark(addr, size)
            piece.num += 1
            piece.used += size
            self._enter(piece)
        return size

    def release(self, addr: int) -> None:
        self.blocks.pop(addr, None)
        piece = self._piece_at(addr)
        size = self._live.unmark(addr)
        if size is not None and piece is not None:
            self._leave(piece)
            piece.num -= 1
            piece.used -= size
            self._enter(piece)

    def free_blocks(self) -> list[int]:
        """Bytes of every free stretch."""
        sizes = []
        for addr in sorted(self._pieces):
            piece = self._pieces[addr]
            start = piece.addr
            for block in self._live.inside(piece.addr, piece.end):
                if block > start:
                    sizes.append(block - start)
                start = max(start, block + self.blocks.get(block, 0))
            if piece.end > start:
                sizes.append(piece.end - start)
        return sizes

    def _given(self, piece: Piece | None, addr: int, requested: int) -> int:
        size = self.rules.rounded(requested)
        if piece is None:
            return size
        following = self._live.after(addr)
        room = (piece.end if following is None else min(following, piece.end)) - addr
        left = room - size
        if left <= 0 or piece.expandable:
            return size
        limit = self.rules.max_split_bytes
        cuts = (
            left >= ROUND_BYTES
            if size <= SMALL_BYTES
            else left > SMALL_BYTES and (limit is None or size < limit)
        )
        return size if cuts else room

    def _piece_at(self, addr: int) -> Piece | None:
        piece = self._piece_before(addr + 1)
        return piece if piece is not None and addr < piece.end else None

    def _piece_before(self, addr: int) -> Piece | None:
        start = self._starts.before(addr)
        return None if start is None else self._pieces[start]

    def _put(self, piece: Piece) -> Piece:
        self._pieces[piece.addr] = piece
        self._starts.mark(piece.addr, 0)
        return piece

    def _remove(self, piece: Piece) -> None:
        self._leave(piece)
        del self._pieces[piece.addr]
        self._starts.unmark(piece.addr)

    def _join(self, piece: Piece) -> None:
        """Take in the piece after this one, where it touches. The caller enters the whole again."""
        after = self._pieces.get(piece.end)
        if after is not None and after.expandable and after is not piece:
            self._remove(after)
            piece.size += after.size
            piece.num += after.num
            piece.used += after.used

    def _leave(self, piece: Piece) -> None:
        if piece.num > 0:
            self.split -= piece.size - piece.used

    def _enter(self, piece: Piece) -> None:
        if piece.num > 0:
            self.split += piece.size - piece.used


class Marked:
    """Addresses that are known before, some of them marked, each of those with a size. To mark one
    takes the same however many there are; to look for one goes through their bytes at the pace of
    memory."""

    def __init__(self, addresses: Iterable[int]) -> None:
        self._addresses = sorted(set(addresses))
        self._at = {addr: i for i, addr in enumerate(self._addresses)}
        self._is_on = bytearray(len(self._addresses))
        self._sizes = [0] * len(self._addresses)
        self._sums = [0] * (len(self._addresses) // SUMMED + 1)

    def mark(self, addr: int, size: int) -> None:
        """One that is not."""
        at = self._at[addr]
        self._is_on[at] = 1
        self._sizes[at] = size
        self._sums[at // SUMMED] += size

    def unmark(self, addr: int) -> int | None:
        """Unmark an address and return its size; None where it is not marked."""
        at = self._at.get(addr)
        return None if at is None or not self._is_on[at] else self._off(at)

    def before(self, addr: int) -> int | None:
        at = self._is_on.rfind(1, 0, bisect_left(self._addresses, addr))
        return None if at < 0 else self._addresses[at]

    def after(self, addr: int) -> int | None:
        at = self._is_on.find(1, bisect_right(self._addresses, addr))
        return None if at < 0 else self._addresses[at]

    def inside(self, start: int, end: int) -> Iterator[int]:
        first, last = self._range(start, end)
        at = self._is_on.find(1, first, last)
        while at >= 0:
            yield self._addresses[at]
            at = self._is_on.find(1, at + 1, last)

    def between(self, start: int, end: int) -> tuple[int, int]:
        """How many, and the sum of their sizes."""
        first, last = self._range(start, end)
        one, other = -(-first // SUMMED), last // SUMMED
        if one >= other:
            total = sum(self._sizes[first:last])
        else:
            total = sum(self._sums[one:other])
            total += sum(self._sizes[first : one * SUMMED]) + sum(
                self._sizes[other * SUMMED : last]
            )
        return self._is_on.count(1, first, last), total

    def clear(self, start: int, end: int) -> None:
        for addr in self.inside(start, end):
            self._off(self._at[addr])

    def _range(self, start: int, end: int) -> tuple[int, int]:
        return bisect_left(self._addresses, start), bisect_left(self._addresses, end)

    def _off(self, at: int) -> int:
        size = self._sizes[at]
        self._is_on[at] = self._sizes[at] = 0
        self._sums[at // SUMMED] -= size
        return size
