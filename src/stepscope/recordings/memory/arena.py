"""The allocator's segments and the blocks in them, as its events move them: what is free, and in
what pieces.

An event has the bytes that were asked for, not the block that was given. The block follows from
the allocator's own rules (c10/cuda/CUDACachingAllocator.cpp): a size is rounded up to 512 bytes,
and a free piece is cut only if enough is left of it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct

from stepscope.api import FormatError

MAX_MOVED = 100_000_000
ROUND_BYTES = 512
SMALL_BYTES = 1 << 20
"""Up to here from the small pool, where a piece is cut whenever 512 bytes are left; above only if
more than this is left."""


class Rules(Struct, frozen=True, kw_only=True):
    """The allocator's settings that decide about sizes."""

    max_split_bytes: int | None = None
    divisions: tuple[int, ...] = ()
    """Of each power of two, from 1 MiB on, into which sizes are rounded; 0 for none."""

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
    live: list[int] = field(default_factory=list)
    """Addresses of the blocks in use, in order."""
    used: int = 0

    @property
    def end(self) -> int:
        return self.addr + self.size


class Arena:
    """All of one device."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.reserved = 0
        self.split = 0
        """Free bytes in pieces that are partly used."""
        self.blocks: dict[int, int] = {}
        """Bytes of each block in use."""
        self.moved = 0
        """Blocks looked at because their segment was cut: the one cost that a file could drive up
        without end."""
        self._starts: list[int] = []
        self._pieces: list[Piece] = []

    @property
    def num_pieces(self) -> int:
        return len(self._pieces)

    def has(self, addr: int) -> bool:
        """Whether the address lies in a segment."""
        return self._piece_at(addr) is not None

    def add(self, addr: int, size: int, *, expandable: bool) -> None:
        """The driver gives a segment. Expandable ones that touch are one."""
        self.reserved += size
        index = bisect_left(self._starts, addr)
        before = self._pieces[index - 1] if index else None
        if expandable and before is not None and before.expandable and before.end == addr:
            self._leave(before)
            before.size += size
            self._join(index - 1)
            self._enter(before)
            return
        self._starts.insert(index, addr)
        self._pieces.insert(index, Piece(addr, size, expandable))
        if expandable:
            self._join(index)
            self._enter(self._pieces[index])

    def take(self, addr: int, size: int) -> None:
        """The driver gets it back; of an expandable segment it may be a stretch in the middle."""
        self.reserved -= size
        piece = self._piece_at(addr)
        if piece is None:
            return
        if self.moved > MAX_MOVED:
            raise FormatError(
                "its expandable segments are cut too often to be followed; record fewer events "
                "(max_entries=)"
            )
        self._leave(piece)
        index = bisect_left(self._starts, piece.addr)
        del self._starts[index], self._pieces[index]
        for start, end in ((addr + size, piece.end), (piece.addr, addr)):
            if end > start and piece.expandable:
                rest = Piece(
                    start,
                    end - start,
                    True,
                    piece.live[bisect_left(piece.live, start) : bisect_left(piece.live, end)],
                )
                rest.used = sum(self.blocks.get(block, 0) for block in rest.live)
                self.moved += len(rest.live)
                self._starts.insert(index, start)
                self._pieces.insert(index, rest)
                self._enter(rest)

    def hold(self, addr: int, requested: int, size: int | None = None) -> int:
        """A block is in use from now on; gives its bytes."""
        piece = self._piece_at(addr)
        size = self._given(piece, addr, requested) if size is None else size
        self.blocks[addr] = size
        if piece is not None:
            self._leave(piece)
            insort(piece.live, addr)
            piece.used += size
            self._enter(piece)
        return size

    def release(self, addr: int) -> None:
        size = self.blocks.pop(addr, None)
        piece = self._piece_at(addr)
        if size is None or piece is None:
            return
        index = bisect_left(piece.live, addr)
        if index < len(piece.live) and piece.live[index] == addr:
            self._leave(piece)
            del piece.live[index]
            piece.used -= size
            self._enter(piece)

    def free_blocks(self) -> list[int]:
        """Bytes of every free stretch."""
        sizes = []
        for piece in self._pieces:
            start = piece.addr
            for addr in piece.live:
                if addr > start:
                    sizes.append(addr - start)
                start = max(start, addr + self.blocks.get(addr, 0))
            if piece.end > start:
                sizes.append(piece.end - start)
        return sizes

    def _given(self, piece: Piece | None, addr: int, requested: int) -> int:
        size = self.rules.rounded(requested)
        if piece is None:
            return size
        index = bisect_right(piece.live, addr)
        room = (piece.live[index] if index < len(piece.live) else piece.end) - addr
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
        index = bisect_right(self._starts, addr) - 1
        piece = self._pieces[index] if index >= 0 else None
        return piece if piece is not None and addr < piece.end else None

    def _join(self, index: int) -> None:
        """Take in the piece after this one, where it touches. The caller enters the whole again."""
        piece = self._pieces[index]
        after = self._pieces[index + 1] if index + 1 < len(self._pieces) else None
        if after is not None and after.expandable and piece.end == after.addr:
            self._leave(after)
            piece.size += after.size
            piece.live += after.live
            piece.used += after.used
            del self._starts[index + 1], self._pieces[index + 1]

    def _leave(self, piece: Piece) -> None:
        if piece.live:
            self.split -= piece.size - piece.used

    def _enter(self, piece: Piece) -> None:
        if piece.live:
            self.split += piece.size - piece.used
